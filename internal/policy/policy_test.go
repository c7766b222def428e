package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Validate names all invalid fields in one error, with their limits.
func TestPolicyValidateNamesEveryFieldAtOnce(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the default policy is refused: %v", err)
	}
	err := Policy{VisibilityTimeout: time.Millisecond, MaxAttempts: 2_000_000, RetryMin: -1,
		RetryMax: 20 * lua.MaxDelay / 10}.Validate()
	if !errors.Is(err, lua.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{
		`visibility_ms "1ms": must be between 100ms and 168h0m0s`, `max_attempts "2000000": must be between 1 and 1000000`,
		"retry_min_ms", "retry_max_ms",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	err = Policy{VisibilityTimeout: time.Second, MaxAttempts: 1, RetryMin: time.Minute, RetryMax: time.Second}.Validate()
	if err == nil || !strings.Contains(err.Error(), "retry_max_ms") {
		t.Errorf("retry_max below retry_min: %v", err)
	}
}

// Retry delays double from RetryMin to RetryMax. Each is random between half and one and a half times its mean, and
// never above RetryMax.
func TestDelaysGrowJitteredAndNeverExceedRetryMax(t *testing.T) {
	p := Policy{VisibilityTimeout: time.Second, MaxAttempts: 3, RetryMin: time.Second, RetryMax: time.Minute}
	redistest.Want(t, "delays until retry_max is reached", len(p.Attempts().Delays), 7) // 1 2 4 8 16 32 60
	differ := false
	for range 200 {
		first := p.Attempts()
		second := p.Attempts()
		middle := p.RetryMin
		for i, d := range first.Delays {
			if d > p.RetryMax || d < middle/2 || d > middle*3/2 {
				t.Fatalf("delay %d is %s, around %s", i+1, d, middle)
			}
			differ = differ || d != second.Delays[i]
			middle = min(2*middle, p.RetryMax)
		}
	}
	if !differ {
		t.Error("no jitter")
	}
	for _, attempt := range []int{-1, 0, 1, 2, 50} {
		if d := p.Delay(attempt); d <= 0 || d > p.RetryMax {
			t.Errorf("attempt %d: delay %s", attempt, d)
		}
	}
	longest := Policy{RetryMin: MinRetryDelay, RetryMax: lua.MaxDelay}.Attempts().Delays
	if len(longest) > 64 {
		t.Errorf("%d delays", len(longest))
	}
	redistest.Want(t, "constant delay", len(Policy{RetryMin: time.Second, RetryMax: time.Second}.Attempts().Delays), 1)
	redistest.Want(t, "zero value", len(Policy{}.Attempts().Delays), 1)
}

// The default policy must outlast an outage of a partner. Regression: ten attempts from a second on took nine minutes,
// so an outage of a quarter of an hour made dead letters of all messages. README.md says how long the default policy
// tries.
func TestDefaultPolicyTriesForAboutADay(t *testing.T) {
	t.Parallel()
	p := Default()
	if d := p.TriedFor(); d < 24*time.Hour || d > 30*time.Hour || p.RetryMax != time.Hour || p.RetryMin > 2*time.Second {
		t.Errorf("tried for %s, delays from %s to %s", d, p.RetryMin, p.RetryMax)
	}
	text, err := os.ReadFile("../../README.md")
	if said := strings.ReplaceAll(strings.ReplaceAll(p.TriedFor().Round(time.Minute).String(), "h", " h "), "m0s",
		" min"); err != nil || !strings.Contains(string(text), "after about "+said) {
		t.Errorf("README.md does not say %q: %v", said, err)
	}
}

// TriedFor is the mean time from the first attempt to the last. The test compares it with the mean of 2,000 drawn lists
// of delays, and allows 2 % and a second.
func TestTriedForIsTheSumOfTheMeanDelays(t *testing.T) {
	t.Parallel()
	for _, p := range []Policy{
		Default(),
		{MaxAttempts: 1, RetryMin: time.Second, RetryMax: time.Hour},
		{MaxAttempts: 10, RetryMin: time.Second, RetryMax: time.Hour},
		{MaxAttempts: 7, RetryMin: time.Second, RetryMax: 10 * time.Second},
		{MaxAttempts: 5, RetryMin: time.Minute, RetryMax: time.Minute},
	} {
		var sum time.Duration
		const rounds = 2000
		for range rounds {
			delays := p.Attempts().Delays
			for i := range p.MaxAttempts - 1 {
				if i >= len(delays) { // each one is random
					sum += p.Delay(i + 1)
				} else {
					sum += delays[i]
				}
			}
		}
		if drawn, said := sum/rounds, p.TriedFor(); (drawn - said).Abs() > drawn/50+time.Second {
			t.Errorf("%d attempts: %s on average, %s by TriedFor", p.MaxAttempts, drawn, said)
		}
	}
	redistest.Want(t, "the longest TriedFor does not overflow", Policy{MaxAttempts: 1_000_000, RetryMin: lua.MaxDelay,
		RetryMax: lua.MaxDelay}.TriedFor() > lua.MaxDelay, true)
}

// Delays that are given as a list are used as they are, without jitter, and the last one is repeated. RetryFor limits
// the time of the attempts, and MaxAttempts their number.
func TestDelaysOfAListAreExact(t *testing.T) {
	t.Parallel()
	p := Default()
	p.RetryDelays, p.RetryFor = lua.NewDelays(time.Minute, 3*time.Minute, 5*time.Minute), time.Hour
	redistest.Want(t, "delays", fmt.Sprint(p.Attempts().Delays, p.Attempts().For), "[1m0s 3m0s 5m0s] 1h0m0s")
	redistest.Want(t, "delay after attempt 40", p.Delay(40), 5*time.Minute)
	p.MaxSnoozes, p.MaxCrashes = 5, 7
	redistest.Want(t, "limits", fmt.Sprint(p.Attempts().MaxSnoozes, p.Attempts().MaxCrashes), "5 7")
	redistest.Want(t, "tried for, limited by RetryFor", p.TriedFor(), time.Hour)
	p.RetryFor, p.MaxAttempts = 0, 6
	redistest.Want(t, "six attempts are tried for", p.TriedFor(), 19*time.Minute) // 1+3+5+5+5
	p.MaxAttempts = 2
	redistest.Want(t, "two attempts are tried for", p.TriedFor(), time.Minute)
	p.RetryDelays, p.RetryFor = "1,", -time.Second
	for _, part := range []string{`retry_delays_ms "1,"`, "retry_for_ms"} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}

// The JSON of a Policy has the names of the hash of settings in Redis. Optional settings that are not set are left out:
// zero or an empty list would override the settings of the queue or the defaults. A bridge removes from the stored
// defaults the settings that its own policy does not have.
func TestPolicyJSONUsesTheNamesOfTheHash(t *testing.T) {
	p := Policy{VisibilityTimeout: 1500 * time.Millisecond, MaxAttempts: 3, RetryMin: time.Second, RetryMax: time.Minute,
		Held: true}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "json", string(text),
		`{"visibility_ms":1500,"max_attempts":3,"retry_min_ms":1000,"retry_max_ms":60000,"held":true,`+
			`"history":0,"history_ms":0}`)
	listed := p
	listed.RetryDelays, listed.RetryFor, listed.MaxSnoozes, listed.MaxCrashes = "1,2", time.Second, 3, 4
	again, err := json.Marshal(listed)
	wanted := `"retry_delays_ms":"1,2","retry_for_ms":1000,"max_snoozes":3,"max_crashes":4,`
	if err != nil || !strings.Contains(string(again), wanted) {
		t.Errorf("%s, %v", again, err)
	}
	var back Policy
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "read from its JSON", back, p)
}

// Read skips invalid values in Redis, and names them in its warning. In their place it uses the next valid value of the
// queue or the defaults, or the built-in one. The policy that Read returns is always valid.
func TestPolicyValuesThatDoNotCountAreSkippedAndNamed(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	r.Policy(map[string]string{
		"visibility_ms": "soon", "group:g:visibility_ms": "99", "max_attempts": "0", "retry_min_ms": "7200000", "held": "yes",
	})
	p, warning, err := Read(t.Context(), r.Client, r.Prefix, r.Queue, "g")
	if err != nil {
		t.Fatal(err)
	}
	expected := Default()
	expected.RetryMin, expected.RetryMax = 2*time.Hour, 2*time.Hour
	redistest.Want(t, "policy", p, expected)
	for _, part := range []string{
		`field visibility_ms: visibility_ms "soon"`, "field group:g:visibility_ms", "field max_attempts", "field held",
		"retry_max_ms (1h0m0s) is less",
	} {
		if warning == nil || !strings.Contains(warning.Error(), part) {
			t.Errorf("%q is not in the warning: %v", part, warning)
		}
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
}
