package lua

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// exit is a way out of the pending list, with the state that its winner leaves behind.
type exit struct {
	name      string
	action    Action // if the exit is a call of Retry
	due, dead int    // how many scheduled messages and dead letters its winner adds
	do        func(b *testQueue, group, entry string) bool
}

// exits returns all ways out of the pending list.
func exits() []exit {
	failed := func(action Action, won Outcome) func(b *testQueue, group, entry string) bool {
		return func(b *testQueue, group, entry string) bool {
			out, err := Retry(b.ctx, b.c, b.k, group, policy,
				[]Failure{{Held: Held{Entry: entry}, Action: action, Delay: -1, Reason: ReasonDeadLetter, Error: "boom"}})
			if err != nil || out[0] != won && out[0] != Lost {
				b.Errorf("%s: %v %v", action, out, err)
				return false
			}
			return out[0] == won
		}
	}
	return []exit{
		{"ack", "", 0, 0, func(b *testQueue, group, entry string) bool {
			won, err := Ack(b.ctx, b.c, b.k, group, []Held{{Entry: entry}})
			if err != nil {
				b.Error(err)
				return false
			}
			return won[0]
		}},
		{"XACK", "", 0, 0, func(b *testQueue, group, entry string) bool {
			n, err := b.try("XACK", b.k.Stream, group, entry).AsInt64()
			if err != nil {
				b.Error(err)
			}
			return n == 1
		}},
		{"retry", ActionRetry, 1, 0, failed(ActionRetry, Retried)},
		{"release", ActionRelease, 1, 0, failed(ActionRelease, Released)},
		{"dead-letter", ActionDead, 0, 1, failed(ActionDead, Dead)},
		{"reclaim", "", 1, 0, func(b *testQueue, group, _ string) bool {
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: group, Attempts: policy, Limit: 1, MaxBytes: 1 << 20})
			if err != nil || r.Stuck+r.Skipped+r.Dead > 0 {
				b.Errorf("%+v %v", r, err)
			}
			return r.Retried == 1
		}},
	}
}

// All exits race for many entries, each exit over its own connection. Each entry must leave the pending list through
// exactly one of them.
func TestOneOfManyRacingExitsWins(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		var names []string
		for i := range 25 {
			names = append(names, fmt.Sprint("m", i))
		}
		es := b.deliver([]string{"g"}, names...)
		var mu sync.Mutex
		won, due, dead := 0, 0, 0
		var wg sync.WaitGroup
		for _, x := range exits() {
			own := b.again()
			own.k = b.k
			wg.Go(func() {
				for _, e := range es {
					if x.do(own, "g", e.EntryID) {
						mu.Lock()
						won, due, dead = won+1, due+x.due, dead+x.dead
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		redistest.Want(b, "won", won, len(es))
		redistest.Want(b, "retries", b.count("ZCARD", b.k.Due), due)
		redistest.Want(b, "dead letters", b.count("XLEN", b.k.Dead), dead)
		redistest.Want(b, "pending", b.pending("g"), 0)
	})
}

// A call that settles or changes something that does not exist creates no key: not for a deleted queue, an unknown
// partition, or an invented name. Before, a dead letter for an entry that was no longer pending left an empty
// dead-letter stream behind.
func TestCallsForMissingThingsCreateNoKey(t *testing.T) {
	creates := []*script{enqueueScript, enqueueFreshScript, enqueueOneScript, ensureGroupScript, planScript, recurScript,
		runRecurrenceScript,
		registerScript, heartbeatScript, configureScript, setPolicyScript, signalScript, takeScript, restoreScript,
		claimScript}
	everywhere(t, func(b *testQueue) {
		none := func(after string) {
			b.Helper()
			for _, key := range append(keysOf(b.k), b.k.History, b.k.Rate) {
				if b.count("EXISTS", key) != 0 {
					b.Errorf("%s made %s", after, key)
					b.do("DEL", key)
				}
			}
		}
		for _, c := range calls() {
			if !slices.Contains(creates, c.script) {
				_ = c.run(b) // some are refused: there is no group
				none(c.script.name)
			}
		}
		for _, action := range []Action{ActionRetry, ActionDead, ActionRelease, ActionSnooze} {
			out, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{
				{Held: Held{Entry: "5-5", ID: "m"}, Action: action, Delay: time.Second, Reason: "x", Error: "y"}})
			if err != nil {
				b.Fatalf("%s for a group that is gone: %v", action, err)
			}
			redistest.Want(b, string(action), out[0], Lost)
			none(string(action))
		}
		// The group is there, and the entry is not pending.
		b.groups("g")
		for _, action := range []Action{ActionRetry, ActionDead, ActionRelease, ActionSnooze} {
			redistest.Want(b, "late "+string(action), b.retry("g", policy, Failure{Held: Held{Entry: "5-5", ID: "m"},
				Action: action, Delay: time.Second, Reason: "x", Error: "y"}), Lost)
			if b.count("EXISTS", b.k.Dead) != 0 {
				b.Errorf("late %s made %s", action, b.k.Dead)
				b.do("DEL", b.k.Dead)
			}
		}
	})
}
