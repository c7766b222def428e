package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// A group may turn off retry settings that the defaults turn on. So "off" must be stored as a value: it differs from
// "not set", which means the value of the next level.
func TestALevelCanTurnRetrySettingsOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	want := policy.Default()
	defaults := want
	defaults.RetryDelays, defaults.RetryFor = "1000,2000", time.Hour
	read := func(what, group string, want policy.Policy) {
		t.Helper()
		p, warning, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, group)
		if warning != nil || err != nil {
			t.Fatalf("warning %v, error %v", warning, err)
		}
		redistest.Want(t, what, p, want)
	}
	write := func(group string, u policy.Update) {
		t.Helper()
		if err := WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, group, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := policy.WriteDefaults(t.Context(), r.Client, r.Prefix, defaults); err != nil {
		t.Fatal(err)
	}
	read("defaults", "g", defaults)
	write("g", policy.Update{RetryDelays: new(lua.Delays), RetryFor: new(time.Duration)})
	read("turned off", "g", want)
	read("of another group", "h", defaults)
	write("g", policy.Update{Clear: []string{policy.SettingRetryDelays, policy.SettingRetryFor}})
	read("cleared", "g", defaults)
	if err := policy.WriteDefaults(t.Context(), r.Client, r.Prefix, want); err != nil {
		t.Fatal(err)
	}
	read("new defaults", "g", want)
	// Two times, the attempts and the visibility timeout. The retry settings that are off again are not stored.
	redistest.Want(t, "fields", r.Number("HLEN", lua.NewGlobals(r.Prefix).Defaults), int64(4))
}

// A setting comes from the group, otherwise from the queue, otherwise from the defaults, for each setting by itself.
func TestPolicyComesFromTheMostSpecificLevelThatCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	read := func(group string) policy.Policy {
		t.Helper()
		p, warning, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, group)
		if warning != nil || err != nil {
			t.Fatalf("warning %v, error %v", warning, err)
		}
		return p
	}
	redistest.Want(t, "nothing set", read("g"), policy.Default())

	defaults := policy.Policy{
		VisibilityTimeout: time.Minute,
		MaxAttempts:       4,
		RetryMin:          2 * time.Second,
		RetryMax:          time.Minute,
		Held:              true,
	}
	if err := policy.WriteDefaults(t.Context(), r.Client, r.Prefix, defaults); err != nil {
		t.Fatal(err)
	}
	defaults.Held = false // held and history belong to a queue
	defaults.HistoryAge = policy.DefaultHistoryAge
	redistest.Want(t, "defaults", read("g"), defaults)

	write := func(group string, u policy.Update) {
		t.Helper()
		if err := WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, group, u); err != nil {
			t.Fatal(err)
		}
	}
	write("", policy.Update{VisibilityTimeout: new(10 * time.Second), MaxAttempts: new(5), Held: new(true)})
	group := "naïve group:visibility_ms +%" // looks like a name of a setting
	write(group, policy.Update{VisibilityTimeout: new(5 * time.Second), RetryMin: new(time.Second)})

	want := defaults
	want.VisibilityTimeout, want.MaxAttempts, want.Held = 10*time.Second, 5, true
	redistest.Want(t, "queue", read("g"), want)
	want.VisibilityTimeout, want.RetryMin = 5*time.Second, time.Second
	redistest.Want(t, "group", read(group), want)

	both, _, err := policy.ReadGroups(t.Context(), r.Client, r.Prefix, r.Queue, []string{"g", group, ""})
	if err != nil || len(both) != 3 || both[group] != want || both["g"].VisibilityTimeout != 10*time.Second {
		t.Errorf("several groups: %v, %v", both, err)
	}

	write(group, policy.Update{Clear: []string{policy.SettingVisibility, policy.SettingRetryMin}})
	redistest.Want(t, "cleared", read(group), read("g"))
}

// If one setting of an update is invalid, nothing must be written, and the error must name all that is wrong.
func TestPolicyUpdateIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	err := WritePolicy(t.Context(), r.Client, r.Prefix, "a/b", "g", policy.Update{
		VisibilityTimeout: new(time.Millisecond), RetryMin: new(time.Hour), RetryMax: new(time.Minute), Held: new(true),
		Clear: []string{"colour", policy.SettingRetryMin},
	})
	for _, part := range []string{
		"queue",
		"visibility_ms",
		"retry_max_ms",
		"held",
		`setting "colour"`,
		"set and cleared",
	} {
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	redistest.Want(t, "keys written", r.Number("EXISTS", r.Keys.Policy), int64(0))

	r.Do("SET", r.Keys.Policy, "x")
	if _, _, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, "g"); !errors.Is(err, lua.ErrWrongType) ||
		!strings.Contains(err.Error(), r.Keys.Policy) {
		t.Errorf("wrong type: %v", err)
	}
}

// Of two operators who have read the same settings only the first may save, and a setting that neither changes does not
// matter.
func TestPolicyIsNotWrittenOverAChangeThatTheCallerHasNotSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	write := func(group string, before map[string]string, attempts int) error {
		return WritePolicyOver(t.Context(), r.Client, nil, r.Prefix, r.Queue,
			PolicyChange{Group: group, Before: before, Update: policy.Update{MaxAttempts: &attempts}})
	}
	for _, group := range []string{"", "g"} {
		none := map[string]string{policy.SettingMaxAttempts: ""}
		if err := write(group, none, 3); err != nil {
			t.Fatal(err)
		}
		if err := write(group, none, 4); !errors.Is(err, ErrPolicyChanged) {
			t.Errorf("group %q: the second one has written: %v", group, err)
		}
		if err := write(group, map[string]string{policy.SettingMaxAttempts: "3"}, 5); err != nil {
			t.Errorf("group %q: %v", group, err)
		}
		p, _, err := policy.Read(t.Context(), r.Client, r.Prefix, r.Queue, group)
		redistest.Want(t, "attempts", fmt.Sprint(p.MaxAttempts, err), "5 <nil>")
	}
}
