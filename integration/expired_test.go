package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// An occurrence that an operator expires becomes a dead letter, and counts as done. The next occurrences come, even
// with OverlapSkip, which skips an occurrence while an earlier one is not done. No occurrence comes twice.
func TestAnOccurrenceThatExpiresIsDone(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(patient())
	const every = 2 * time.Second
	for _, r := range []bridge.Recurrence{{Name: "allow"}, {Name: "skip", Overlap: bridge.OverlapSkip}} {
		r.Queue, r.Every = s.queue, every
		if _, err := s.client.Recur(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	all := s.collect("g", nil) // reads all occurrences; an unread one would make the recurrence skip leave out the next
	// Wait until enough occurrences are planned: at least one of skip that is not due for half an interval, so that the
	// operator expires it before it is delivered.
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		c := s.redis.Client
		planned, err := c.Do(t.Context(), c.B().Zrange().Key(s.keys().Due).Min("0").Max("-1").Build()).AsStrSlice()
		skip := 0
		for _, id := range planned {
			if strings.HasPrefix(id, "skip@") && id > fmt.Sprint("skip@", s.serverNow()+every.Milliseconds()/2) {
				skip++
			}
		}
		return len(planned) >= 4 && skip > 0, fmt.Sprint(planned, " are planned; ", err)
	})
	op := s.operator()
	r, err := op.Bulk().Expire(t.Context(), s.queue, admin.BulkFilter{}, admin.BulkOptions{})
	if err != nil || r.Changed < 4 {
		t.Fatal(r, err)
	}
	seen := map[string]map[int64]int{"allow": {}, "skip": {}} // by name and time of the occurrence: how often it came
	last := map[string]int64{}                                // by name: the time of the last occurrence that was expired
	count := func(id string) (name string, at int64) {
		name, text, _ := strings.Cut(id, "@")
		at, _ = strconv.ParseInt(text, 10, 64)
		seen[name][at]++
		return name, at
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := s.number("XLEN", s.keys().Dead)
		return n == int64(r.Changed), fmt.Sprintf("%d dead letters of %d", n, r.Changed)
	})
	for l, err := range op.DeadLetters().List(t.Context(), s.queue, admin.LetterFilter{}) {
		if err != nil || l.Reason != lua.ReasonExpired {
			t.Fatalf("%+v %v", l, err)
		}
		name, at := count(l.ID)
		last[name] = max(last[name], at)
	}
	if len(last) != 2 {
		t.Fatal("letters of ", last)
	}
	// Wait for two occurrences of each recurrence after the last expired one.
	for later := map[string]int{}; later["allow"] < 2 || later["skip"] < 2; {
		if name, at := count(next(t, all).ID); at > last[name] {
			later[name]++
		}
	}
	for name, times := range seen {
		for at, n := range times {
			if n > 1 {
				t.Errorf("%s@%d: %d times", name, at, n)
			}
		}
	}
	for at := range seen["allow"] {
		if at <= last["allow"] && seen["allow"][at+every.Milliseconds()] == 0 {
			t.Errorf("after allow@%d one is missing", at)
		}
	}
}
