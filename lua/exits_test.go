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
	action    Action // when it goes through Retry
	due, dead int
	do        func(b *rig, group, entry string) bool
}

func exits() []exit {
	failed := func(action Action, won Outcome) func(b *rig, group, entry string) bool {
		return func(b *rig, group, entry string) bool {
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
		{"ack", "", 0, 0, func(b *rig, group, entry string) bool {
			won, err := Ack(b.ctx, b.c, b.k, group, []Held{{Entry: entry}})
			if err != nil {
				b.Error(err)
				return false
			}
			return won[0]
		}},
		{"XACK", "", 0, 0, func(b *rig, group, entry string) bool {
			n, err := b.try("XACK", b.k.Stream, group, entry).AsInt64()
			if err != nil {
				b.Error(err)
			}
			return n == 1
		}},
		{"retry", ActionRetry, 1, 0, failed(ActionRetry, Retried)},
		{"release", ActionRelease, 1, 0, failed(ActionRelease, Released)},
		{"dead-letter", ActionDead, 0, 1, failed(ActionDead, Dead)},
		{"reclaim", "", 1, 0, func(b *rig, group, _ string) bool {
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: group, Attempts: policy, Limit: 1, MaxBytes: 1 << 20})
			if err != nil || r.Stuck+r.Skipped+r.Dead > 0 {
				b.Errorf("%+v %v", r, err)
			}
			return r.Retried == 1
		}},
	}
}

// Every pair of exits, one after the other on the same delivery: the first wins; the second is told so, and leaves no
// trace. Scripts run one at a time, so these are all possible interleavings.
func TestExitsAreGuarded(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i, first := range exits() {
			for j, second := range exits() {
				b := b.queue(fmt.Sprintf("q%d-%d", i, j))
				e := b.deliver([]string{"g"}, "m")[0]
				name := first.name + " before " + second.name
				redistest.Want(b, name+": first won", first.do(b, "g", e.EntryID), true)
				after := b.state("g")
				redistest.Want(b, name+": second won", second.do(b, "g", e.EntryID), false)
				b.wantState(after, "g")
				redistest.Want(b, name+": scheduled", b.count("ZCARD", b.k.Due), first.due)
				redistest.Want(b, name+": dead letters", b.count("XLEN", b.k.Dead), first.dead)
				redistest.Want(b, name+": pending", b.pending("g"), 0)
			}
		}
	})
}

// The same with all exits at once, each over its own connection, on many entries.
func TestExitsRacingAreWonOnce(t *testing.T) {
	everywhere(t, func(b *rig) {
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

// After a failover an entry ID may stand for another message: the holder of the old message must not take the new one
// away.
func TestExitsCompareTheMessageID(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "new")[0]
		before := b.state("g")
		for _, action := range []Action{ActionRetry, ActionDead, ActionRelease} {
			out, err := Retry(b.ctx, b.c, b.k, "g", policy,
				[]Failure{{Held: Held{Entry: e.EntryID, ID: "old"}, Action: action, Delay: -1}})
			if err != nil || out[0] != Lost {
				b.Fatalf("%s: %v %v", action, out, err)
			}
			b.wantState(before, "g")
		}
		out, err := Retry(b.ctx, b.c, b.k, "g", policy,
			[]Failure{{Held: Held{Entry: e.EntryID, ID: "new"}, Action: ActionRetry, Delay: -1}})
		if err != nil || out[0] != Retried {
			b.Fatalf("%v %v", out, err)
		}
	})
}

// A retry is for one group. Another group can only acknowledge it, so retries cannot multiply.
func TestExitsOfAForeignRetryOnlyAcknowledge(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i, x := range exits() {
			b := b.queue(fmt.Sprint("q", i))
			b.groups("a", "b")
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p", "attempt", "9", "due_ms", "5", "for", "a")
			e := b.read("b", "c", 1)[0]
			b.read("a", "c", 1)
			switch {
			case x.name == "reclaim":
				redistest.Want(b, "reclaimed", b.reclaim("b", 0), Reclaimed{Skipped: 1})
			case x.action == "":
				redistest.Want(b, x.name, x.do(b, "b", e.EntryID), true)
			default:
				redistest.Want(b, x.name, b.fail("b", e.EntryID, x.action, "", ""), Skipped)
			}
			b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 a=1 b=0", "a", "b")
			b.ack("a", Held{Entry: e.EntryID})
			redistest.Want(b, "left", b.count("XLEN", b.k.Stream), 0)
		}
	})
}

// Three groups fail every message. Once each retry went to all of them: six attempts made 729 dead letters from one
// message (PITFALLS A1). Now every group has one chain of retries.
func TestRetriesOfThreeFailingGroupsGrowLinearly(t *testing.T) {
	everywhere(t, func(b *rig) {
		groups := []string{"a", "b", "c"}
		b.groups(groups...)
		b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("p")})
		six := Attempts{Max: 6, Delays: []time.Duration{0}}
		failed, given := map[string]int{}, 0
		for range 12 {
			for _, g := range groups {
				for _, e := range b.read(g, "c", 1000) {
					given++
					out, err := Retry(b.ctx, b.c, b.k, g, six,
						[]Failure{{Held: Held{Entry: e.EntryID, ID: e.ID}, Action: ActionRetry, Delay: -1,
							Reason: ReasonMaxAttempts}})
					if err != nil {
						b.Fatal(err)
					}
					if out[0] != Skipped {
						failed[g]++
						redistest.Want(b, "attempt", e.Attempt, failed[g])
					}
				}
			}
			b.makeDue()
			b.drain(1000)
		}
		for _, g := range groups {
			redistest.Want(b, "failures of "+g, failed[g], 6)
		}
		redistest.Want(b, "deliveries, of which most were skipped", given, 3+3*5*3)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=3 a=0 b=0 c=0", groups...)
		seen := map[string]bool{}
		for _, d := range b.entries(b.k.Dead) {
			seen[d.Group] = true
			redistest.Want(b, "attempt of the dead letter", d.Attempt, 6)
		}
		redistest.Want(b, "groups with a dead letter", len(seen), 3)
	})
}

// A call that settles or changes something that does not exist creates no key: not for a deleted queue, an unknown
// partition, or an invented name. A late dead letter left an empty stream behind.
func TestCallsAboutNothingMakeNoKey(t *testing.T) {
	creates := []*script{enqueueScript, enqueueFreshScript, ensureGroupScript, planScript, recurScript, runRecurrenceScript,
		registerScript, heartbeatScript, configureScript, signalScript, takeScript, restoreScript}
	everywhere(t, func(b *rig) {
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
