package lua

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

const anySpec = `{"every_ms":1000}`

// recur writes a recurrence, and returns its plan.
func (b *testQueue) recur(name, spec string) string {
	b.Helper()
	r, err := Recur(b.ctx, b.c, b.k, name, "", spec, "t", false)
	if err != nil || !r.Written {
		b.Fatalf("%+v %v", r, err)
	}
	return r.Plan
}

// upTo returns one span that covers everything up to a point in time.
func upTo(at time.Time) []Span { return []Span{{time.UnixMilli(1), at}} }

// plan adds occurrences, so many ms from now, and returns the current plan.
func (b *testQueue) plan(name, before string, ahead ...int64) (plan string, ok bool) {
	b.Helper()
	now, all := b.now(), []Occurrence(nil)
	for _, ms := range ahead {
		all = append(all, Occurrence{At: time.UnixMilli(now + ms), Due: time.UnixMilli(now + ms)})
	}
	ok, plan, err := PlanOccurrences(b.ctx, b.c, b.k, name, before, upTo(all[len(all)-1].At), []byte("p"), `{"h:a":"b"}`, all)
	if err != nil {
		b.Fatal(err)
	}
	return plan, ok
}

// The revision is in a field that plain clients can write: an odd value stops no call half way.
func TestInvalidCountOfChangesStartsAgain(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.recur("stays", anySpec) // the revision goes with the last recurrence
		for _, odd := range []string{"junk", "", "-5", "1e30", strings.Repeat("9", 100)} {
			b.do("HSET", b.k.Planned, "", odd)
			b.recur("r", anySpec)
			added, _ := strconv.ParseInt(b.text("HGET", b.k.Planned, ""), 10, 64)
			if _, _, err := RemoveRecurrence(b.ctx, b.c, b.k, "r", false); err != nil {
				b.Error(err)
			}
			removed, _ := strconv.ParseInt(b.text("HGET", b.k.Planned, ""), 10, 64)
			if from := b.now()*1000 - 1e9; added < from || removed <= added {
				b.Errorf("count after %q: %d, after the removal %d", odd, added, removed)
			}
		}
	})
}

// unfinished walks until an unfinished message is found, or all entries were looked at.
func (b *testQueue) unfinished(w *Unfinished, ids ...string) bool {
	b.Helper()
	for steps := 0; ; steps++ {
		left, done, err := FindUnfinished(b.ctx, b.c, b.k, w, 3, ids)
		if err != nil || steps > 1000 {
			b.Fatal(steps, err)
		}
		if done {
			return left
		}
	}
}

// If a message is cancelled for all groups while one group holds it and another has not read it, its entry is deleted.
// It must count as unfinished until the first group is done. Before, it counted as finished at once, and the next
// occurrence began beside the handler of the first group.
func TestACancelledMessageIsUnfinishedWhileItIsHeld(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		if b.inProcess() { // that server does not count a deleted entry as pending
			return
		}
		b.groups("holds", "unread")
		b.enqueue(Item{ID: "m", When: After(0), Meta: `{"overlap":"skip"}`})
		e := b.read("holds", "c", 1)[0]
		var walk Unfinished
		redistest.Want(b, "unfinished before", b.unfinished(&walk, "m"), true)
		wantList(b, "cancelled", b.cancelRunning("", "m"), "m holds 2 c", "m  1")
		redistest.Want(b, "entries that are left", len(b.entries(b.k.Stream)), 0)
		redistest.Want(b, "unfinished while it is held", b.unfinished(&walk, "m"), true)
		b.fail("holds", e.EntryID, ActionRetry, "max_attempts", "no")
		redistest.Want(b, "unfinished afterwards", b.unfinished(&walk, "m"), false)
	})
}

// A message is unfinished while it is scheduled, ready, pending, or waiting for a retry in any group. A walk that goes
// on must find the same as one that begins again.
func TestAMessageIsUnfinishedUntilEveryGroupIsDone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		var all Unfinished // a walk that goes on from check to check; each check also begins another one
		want := func(what string, is bool) {
			b.Helper()
			if on, anew := b.unfinished(&all, "m"), b.unfinished(&Unfinished{}, "m"); on != is || anew != is {
				b.Errorf("%s: unfinished is %v, and looked for anew %v", what, on, anew)
			}
		}
		const skip = `{"overlap":"skip"}`
		want("nothing", false)
		b.enqueue(Item{ID: "m", When: After(time.Hour)})
		want("scheduled", true)
		b.do("DEL", b.k.Due)
		b.groups("g", "h")
		for i := range 5 { // others, on both sides
			b.enqueue(Item{ID: fmt.Sprint("a", i), When: After(0)})
		}
		b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("p"), Meta: skip}, Item{ID: "z", When: After(0)})
		want("ready", true)
		var entry string
		for _, group := range []string{"g", "h"} {
			for _, e := range b.read(group, "c1", 100) {
				if e.ID == "m" {
					entry = e.EntryID
				}
			}
		}
		want("pending", true)
		b.ack("g", Held{Entry: entry})
		want("acknowledged by one", true)
		b.do("XACK", b.k.Stream, "h", entry)
		want("acknowledged by both, and not trimmed", false)

		b.deliver([]string{"g"}, "m") // and h must still read it
		b.read("h", "c1", 100)
		for _, group := range []string{"g", "h"} {
			for _, e := range b.entries(b.k.Stream) {
				if e.ID == "m" {
					b.try("XACK", b.k.Stream, group, e.EntryID)
				}
			}
		}
		want("done again", false)
		b.do("DEL", b.k.Stream)
		b.groups("g")
		b.enqueue(Item{ID: "m", When: After(0), Meta: skip})
		held := b.read("g", "c1", 100)[0]
		b.fail("g", held.EntryID, ActionRetry, "max_attempts", "no")
		for i := range 20 {
			b.enqueue(Item{ID: fmt.Sprint("later", i), When: After(time.Hour)})
		}
		want("waiting to be tried again", true)
		b.makeDue()
		b.drain(100)
		want("tried again", true)
		for _, e := range b.read("g", "c1", 100) {
			b.fail("g", e.EntryID, ActionDead, "dead_letter", "no")
		}
		want("dead", false)
		b.do("DEL", b.k.Stream)
		b.enqueue(Item{ID: "m", When: After(0)})
		want("ready, and nobody reads", true)
	})
}

// An imported message waits in the schedule under a name that follows from ID and group, or from the ID alone if the
// stream had no group.
func TestAnImportedMessageIsUnfinishedWhileItWaits(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g", "h")
		for _, group := range []string{"", "g", "h"} {
			member := Member{Kind: MemberImported, ID: "m", Group: group, Of: OfOverlap}.String()
			b.do("ZADD", b.k.Due, "5", member)
			redistest.Want(b, "left for "+group, b.unfinished(&Unfinished{}, "m"), true)
			redistest.Want(b, "left of another", b.unfinished(&Unfinished{}, "n"), false)
			b.do("ZREM", b.k.Due, member)
		}
		redistest.Want(b, "left", b.unfinished(&Unfinished{}, "m"), false)
	})
}

// A recurrence with large payloads is taken back in several calls. Until the last one, the former spec is in force, and
// messages taken back count as not planned. So a bridge plans them again if the calls do not go on.
func TestManyOccurrencesAreTakenBackInSteps(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Own(t))
	const n, size, step, other = 40, 1000, 4, `{"every_ms":2000}`
	few := newScales(b.c, size/4) // bytes that a call may read, so that it may free 3 messages and one more
	prepare := func() (first Plan) {
		b.do("DEL", b.k.Recurring, b.k.Planned, b.k.Due, b.k.Payload, b.k.Meta)
		var all []Occurrence
		for i := range n {
			at := time.UnixMilli(b.now() + int64(60_000+1000*i))
			all = append(all, Occurrence{At: at, Due: at})
		}
		ok, plan, err := PlanOccurrences(b.ctx, b.c, b.k, "r", b.recur("r", anySpec), upTo(all[n-1].At), make([]byte, size), "",
			all)
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		first, _ = ParsePlan(plan)
		return first
	}
	for what, c := range map[string]struct{ step, whole func() (taken int, err error) }{
		"a change": {func() (int, error) {
			r, later, err := recurStep(b.ctx, few, b.k, "r", anySpec, other, "u", false)
			redistest.Want(b, "a change is not done", !r.Written && !r.Same && later, true)
			return r.TakenBack, err
		}, func() (int, error) {
			r, err := Recur(b.ctx, few, b.k, "r", anySpec, other, "u", false)
			redistest.Want(b, "a change is done", r.Written, true)
			return r.TakenBack, err
		}},
		"a removal": {func() (int, error) {
			reply, err := removeRecurrenceScript.integers(b.ctx, few, b.k.ofRecurrences(), []string{"r", "", "", ""}, 2,
				Durability{})
			redistest.Want(b, "a removal", reply[0], int64(notReached))
			return int(reply[1]), err
		}, func() (int, error) {
			removed, back, err := RemoveRecurrence(b.ctx, few, b.k, "r", false)
			redistest.Want(b, "a removal is done", removed, true)
			return back, err
		}},
		"one alone": {func() (int, error) {
			reply, err := runRecurrenceScript.list(b.ctx, few, b.k.ofRecurrences(b.k.Wake), []string{"r", "", "", "1", ""}, 2)
			due, _ := reply[0].AsInt64()
			redistest.Want(b, "one alone", due, int64(notReached))
			return step, err
		}, func() (int, error) {
			_, _, ok, err := RunRecurrence(b.ctx, few, b.k, "r", nil, "", true)
			redistest.Want(b, "it is run", ok, true)
			b.do("ZREM", b.k.Due, b.texts("ZRANGE", b.k.Due, "0", "0")[0])
			return n - step, err
		}},
	} {
		first := prepare()
		revision := b.text("HGET", b.k.Planned, "")
		taken, err := c.step()
		p, ok := ParsePlan(b.text("HGET", b.k.Planned, "r"))
		if err != nil || !ok || taken != step || p.Used != n-step || p.Version != SpecVersion(anySpec) ||
			!slices.Equal(p.Recent, first.Recent[:n-step]) || ms(p.Planned().UnixMilli()+1) != first.Recent[n-step] {
			b.Errorf("%s: %d taken back, %s, %v", what, taken, p, err)
		}
		b.wantState(fmt.Sprintf("due=%d payload=%d meta=0 stream=0 dead=0", n-step, n-step))
		redistest.Want(b, what+": the spec in force", b.text("HGET", b.k.Recurring, "r"), anySpec)
		redistest.Want(b, what+": bridges are told", b.text("HGET", b.k.Planned, "") != revision, true)
		rest, err := c.whole()
		if err != nil || rest != n-step {
			b.Errorf("%s: %d taken back then, %v", what, rest, err)
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	}
}

// Specs are read about 1 MiB at a time, whatever their size: the size of the last step decides how many specs the next
// one asks for. Before, 100 specs of a megabyte each came in one reply.
func TestStepsOverSpecsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	large, small := []string{"a", strings.Repeat("p", 1<<20)}, []string{"a", "p", "b", "p"}
	count := int64(4)
	for range 10 {
		count = nextCount(count, small)
	}
	redistest.Want(t, "small ones", count, 100)
	redistest.Want(t, "behind a large one", nextCount(count, large), 1)
	redistest.Want(t, "behind none", nextCount(1, nil), 2)
}
