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
func (b *rig) recur(name, spec string) string {
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
func (b *rig) plan(name, before string, ahead ...int64) (plan string, ok bool) {
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

func TestAnOccurrenceIsPlannedOnceByAnyNumberOfBridges(t *testing.T) {
	everywhere(t, func(b *rig) {
		before := b.recur("r", anySpec)
		first, ok := b.plan("r", before, 1000, 2000)
		_, again := b.plan("r", before, 1000, 2000)
		redistest.Want(b, "planned by the first and the second", [2]bool{ok, again}, [2]bool{true, false})
		b.wantState("due=2 payload=2 meta=2 stream=0 dead=0")
		p, ok := ParsePlan(first)
		if !ok || len(p.Recent) != 2 || p.Used != 2 || p.Version != SpecVersion(anySpec) {
			b.Errorf("%q", first)
		}
		members := b.texts("ZRANGE", b.k.Due, "0", "-1")
		redistest.Want(b, "its ID", members[0], "r@"+p.Recent[0])
		redistest.Want(b, "due at", fmt.Sprintf("%.0f", b.dueOf(members[1])), p.Recent[1])
		redistest.Want(b, "planned up to", ms(p.Planned().UnixMilli()), p.Recent[1])
		if b.token() == "" {
			b.Error("no wake token")
		}
		// It is an ordinary message: it can be cancelled, and is then not planned again.
		if done, err := Cancel(b.ctx, b.c, b.k, members[:1], Durability{}); err != nil || !done[0] {
			b.Error(done, err)
		}
		next, _ := b.plan("r", first, 3000)
		if p, _ := ParsePlan(next); len(p.Recent) != 3 || p.Used != 3 {
			b.Errorf("%q", next)
		}
		b.makeDue()
		redistest.Want(b, "moved", b.drain(10).Moved, 2)
		last, _ := b.plan("r", next, 4000)
		if p, _ := ParsePlan(last); len(p.Recent) != 2 || p.Used != 4 { // the last that left the schedule, and the new one
			b.Errorf("%q", last)
		}
	})
}

func TestAChangeTakesBackWhatWasPlanned(t *testing.T) {
	everywhere(t, func(b *rig) {
		plan := b.recur("r", anySpec)
		planned, _ := b.plan("r", plan, -1000, 60_000, 120_000)
		other, err := Recur(b.ctx, b.c, b.k, "r", "", `{"every_ms":2000}`, "t", false)
		redistest.Want(b, "taken back", other.TakenBack, 2)
		p, _ := ParsePlan(other.Plan)
		if first, _ := ParsePlan(planned); err != nil || p.Used != 1 || ms(p.Planned().UnixMilli()+1) != first.Recent[1] {
			b.Errorf("%+v %v", other, err)
		}
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=0") // the one whose time had come
		same, err := Recur(b.ctx, b.c, b.k, "r", "", `{"every_ms":2000}`, "t", false)
		if err != nil || !same.Same || same.Plan != other.Plan {
			b.Errorf("%+v %v", same, err)
		}
		if no, err := Recur(b.ctx, b.c, b.k, "r", anySpec, `{"every_ms":3000}`, "t", false); err != nil || no.Written || no.Same {
			b.Errorf("%+v %v", no, err)
		}
		redistest.Want(b, "the spec", b.text("HGET", b.k.Recurring, "r"), `{"every_ms":2000}`)
		paused, err := Recur(b.ctx, b.c, b.k, "r", `{"every_ms":2000}`, `{"paused":true}`, "t", true)
		if err != nil || paused.TakenBack != 1 {
			b.Errorf("%+v %v", paused, err)
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// An occurrence that was moved, and drained before its time, stays in the plan, whatever changes: it is not planned
// again, and no other one is left out for it.
func TestAChangeRemembersWhatHasLeftTheSchedule(t *testing.T) {
	everywhere(t, func(b *rig) {
		plan, _ := b.plan("r", b.recur("r", anySpec), 60_000)
		p, _ := ParsePlan(plan)
		b.do("ZREM", b.k.Due, "r@"+p.Recent[0])
		r, err := Recur(b.ctx, b.c, b.k, "r", "", `{"every_ms":2000}`, "t", false)
		q, _ := ParsePlan(r.Plan)
		if err != nil || !slices.Equal(q.Recent, p.Recent) || q.Used != 1 || !q.Planned().Equal(p.Planned()) {
			b.Errorf("%q, then %q: %v", plan, r.Plan, err)
		}
	})
}

func TestARemovedRecurrenceLeavesNothing(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.plan("r", b.recur("r", anySpec), -1000, 60_000)
		for i, want := range []bool{true, false} {
			removed, back, err := RemoveRecurrence(b.ctx, b.c, b.k, "r", false)
			if err != nil || removed != want || back != 2-2*i {
				b.Error(removed, back, err)
			}
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		redistest.Want(b, "recurrences", b.count("HLEN", b.k.Recurring), 0)
		redistest.Want(b, "fields of planned", strings.Join(b.texts("HKEYS", b.k.Planned), ","), "")
	})
}

// A bridge that read a spec before it was removed or changed plans nothing of it any more.
func TestNothingIsPlannedOfAFormerSpec(t *testing.T) {
	everywhere(t, func(b *rig) {
		before := b.recur("r", anySpec)
		b.recur("r", `{"every_ms":5000}`)
		if _, ok := b.plan("r", before, 1000); ok {
			b.Error("planned of the former spec")
		}
		before = b.text("HGET", b.k.Planned, "r")
		b.do("HDEL", b.k.Recurring, "r") // a plain client
		if _, ok := b.plan("r", before, 1000); ok {
			b.Error("planned of a spec that is gone")
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// The revision is in a field that plain clients can write: an odd value stops no call half way.
func TestACountOfChangesThatIsNoneIsBegunAnew(t *testing.T) {
	everywhere(t, func(b *rig) {
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

func TestRunningOneNow(t *testing.T) {
	everywhere(t, func(b *rig) {
		if _, _, ok, err := RunRecurrence(b.ctx, b.c, b.k, "r", nil, "", false); ok || err != nil {
			b.Error(ok, err)
		}
		b.plan("r", b.recur("r", anySpec), 60_000)
		var seen []string
		for _, alone := range []bool{false, false, true} {
			id, _, ok, err := RunRecurrence(b.ctx, b.c, b.k, "r", []byte("p"), "", alone)
			if !ok || err != nil || !strings.HasPrefix(id, "r@") || !strings.HasSuffix(id, RunSuffix) {
				b.Error(id, ok, err)
			}
			seen = append(seen, id)
		}
		if seen[0] == seen[1] || seen[1] == seen[2] {
			b.Error(seen)
		}
		b.wantState("due=3 payload=3 meta=0 stream=0 dead=0") // alone: the messages planned for later are gone
		p, _ := ParsePlan(b.text("HGET", b.k.Planned, "r"))
		redistest.Want(b, "used", p.Used, 0)
		redistest.Want(b, "remembered", len(p.Recent), 3)
		redistest.Want(b, "moved", b.drain(10).Moved, 3)
	})
}

// unfinished walks until an unfinished message is found, or all entries were looked at.
func (b *rig) unfinished(w *Unfinished, ids ...string) bool {
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

// A message is cancelled for all groups, while one group holds it and another has not read it. Then it has no body any
// more. It counted as finished at once, and the next occurrence began beside the handler of the first group.
func TestACancelledMessageIsUnfinishedWhileItIsHeld(t *testing.T) {
	everywhere(t, func(b *rig) {
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

func TestAMessageIsUnfinishedUntilEveryGroupIsDone(t *testing.T) {
	everywhere(t, func(b *rig) {
		var all Unfinished // one walk that goes on, and another that begins each time
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

		b.deliver([]string{"g"}, "m") // and h has not read it yet
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
	everywhere(t, func(b *rig) {
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
func TestMuchIsTakenBackInSteps(t *testing.T) {
	t.Parallel()
	b := newRig(t, redistest.Own(t))
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
