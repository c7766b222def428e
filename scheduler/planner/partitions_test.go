package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// A user schedules a message with the ID of the next occurrence, to replace its payload. In a queue with partitions,
// the message is in the partition of its ID or ordering key. Regression: the occurrence was planned in partition 0 as
// well, and both were delivered.
func TestAMessageOfAnyPartitionTakesThePlaceOfAnOccurrence(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"the client that adds the recurrence", "a bridge"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			queuetest.PublishCount(t, b.Client, b.Prefix, b.Rig.Queue, 4)
			spec := recurrence.Spec{Every: 240 * time.Hour, Count: 1, Payload: []byte("planned")}
			b.put(spec)
			id := b.scheduled()[0]
			if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
				t.Fatal(err)
			}
			enqueueOwn := func() {
				t.Helper()
				own := []lua.Item{{ID: id, When: lua.After(time.Hour), Payload: []byte("own")}}
				_, err := lua.Enqueue(t.Context(), b.Client, b.Part(2).Keys, lua.Token{}, own, lua.Durability{})
				if err != nil {
					t.Fatal(err)
				}
			}
			if by == "a bridge" {
				b.put(spec)
				b.Do("DEL", b.Keys.Due, b.Keys.Payload)
				b.storePlan(b.serverTime().Add(-time.Minute))
				p := b.storedPlan()
				p.Used = 0
				b.Do("HSET", b.Keys.Planned, "r", p.String())
				enqueueOwn()
				b.pass(b.freshQueue())
			} else {
				enqueueOwn()
				b.put(spec)
			}
			redistest.Want(t, "scheduled in partition 0", strings.Join(b.scheduled(), " "), "")
			redistest.Want(t, "occurrences used", b.storedPlan().Used, 1)
			redistest.Want(t, "recent occurrences in the plan", strings.Join(b.storedPlan().Recent, " "), "")
			b.pass(b.freshQueue())
			redistest.Want(t, "scheduled in partition 0 later", strings.Join(b.scheduled(), " "), "")
			if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
				t.Fatal(err)
			}
			redistest.Want(t, "messages of the user", b.Number("ZCARD", b.Part(2).Keys.Due), int64(1))
		})
	}
}

// A partition that does not answer may hold a user's message with the ID of an occurrence. The occurrence must wait for
// the partition while there is time, and must never be late.
func TestAPartitionThatDoesNotAnswerMakesNoOccurrenceLate(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		every time.Duration
		waits bool
	}{"far": {240 * time.Hour, true}, "near": {time.Second, false}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.put(recurrence.Spec{Every: c.every})
			b.Do("DEL", b.Keys.Due, b.Keys.Payload)
			b.storePlan(b.serverTime())
			queuetest.PublishCount(t, b.Client, b.Prefix, b.Rig.Queue, 4)
			broken := b.Part(3).Keys.Due
			b.Do("SET", broken, "no sorted set")
			q := b.freshQueue()
			redistest.Want(t, "the next pass is in time", b.pass(q) <= Interval, true)
			redistest.Want(t, "nothing is planned", len(b.scheduled()) == 0, c.waits)
			b.pass(q)
			redistest.Want(t, "lines in the log", strings.Count(b.log.String(), "occurrences wait for a partition"),
				map[bool]int{true: 1}[c.waits])
			b.Do("DEL", broken)
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				b.pass(q)
				return len(b.scheduled()) > 0, "nothing is planned when it answers"
			})
		})
	}
}
