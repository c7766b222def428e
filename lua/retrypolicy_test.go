package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A list has at most MaxDelays delays, each of 1 ms to 10 years (315,360,000,000 ms). An empty text is no list.
func TestListsOfDelaysAreChecked(t *testing.T) {
	t.Parallel()
	redistest.Want(t, "list", NewDelays(time.Minute, 1500*time.Millisecond, time.Nanosecond), "60000,1500,1")
	redistest.Want(t, "shown", NewDelays(time.Minute, 1500*time.Millisecond).String(), "1m0s,1.5s")
	redistest.Want(t, "read", fmt.Sprint(Delays("60000,1").List()), "[1m0s 1ms]")
	for _, list := range []Delays{"", "1", "315360000000", NewDelays(make([]time.Duration, MaxDelays)...)} {
		if err := CheckDelays(list); (err != nil) != strings.HasPrefix(string(list), "0") {
			t.Errorf("%q: %v", list, err)
		}
	}
	for _, list := range []Delays{"0", ",", "1,", "1, 2", "+1", "-1", "1m", "315360000001", "99999999999999999999",
		Delays(strings.Repeat("1,", MaxDelays) + "1")} {
		if CheckDelays(list) == nil || list.List() != nil {
			t.Errorf("%q passes", list)
		}
	}
}

// A message with an invalid list of delays is retried after the delays of the policy.
func TestInvalidDelaysOfAMessageCountAsNone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		tooMany := strings.Repeat("1,", MaxDelays) + "1"
		for _, list := range []string{"", "0", ",", "1,", "1,,2", "1, 2", "+1", "-1", "1m", "315360000001", tooMany} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "retry_delays_ms", list)
			entry := b.read("g", "c", 1)[0].EntryID
			before := b.now()
			redistest.Want(b, "outcome", b.fail("g", entry, ActionRetry, ReasonMaxAttempts, "x"), Retried)
			due := int64(b.dueOf("m" + Separator + "g" + Separator + entry))
			if delay := policy.Delays[0].Milliseconds(); due < before+delay || due > b.now()+delay {
				b.Errorf("list %q: due %d ms after the failure, want %d", list, due-before, delay)
			}
		}
	})
}

// A limit of a message that is no number counts as none: the policy decides. 0 means no limit.
func TestInvalidLimitsOfAMessageCountAsNone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		short := Attempts{Max: 3, Delays: policy.Delays, For: time.Millisecond, MaxSnoozes: 1}
		for _, c := range []struct {
			field, value string
			action       Action
			want         Outcome
		}{
			{FieldRetryFor, "soon", ActionRetry, Dead},
			{FieldRetryFor, "0", ActionRetry, Retried},
			{FieldMaxSnoozes, "some", ActionSnooze, Snoozed},
		} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "due_ms", "5", c.field, c.value)
			held := Held{Entry: b.read("g", "c", 1)[0].EntryID}
			got := b.retry("g", short, Failure{Held: held, Action: c.action, Reason: ReasonMaxAttempts})
			redistest.Want(b, c.field+" "+c.value, got, c.want)
		}
	})
}
