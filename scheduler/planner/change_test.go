package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// A change of the payload while no bridge was alive used to lose the missed occurrences, whatever the spec promised.
// Only a change of the times starts from now.
func TestAChangeKeepsWhatWasMissedUnlessTheTimesChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *recurrence.Spec)
		missed int
	}{
		"payload": {func(s *recurrence.Spec) { s.Payload = []byte("new") }, 5},
		"headers": {func(s *recurrence.Spec) { s.Headers = map[string]string{"a": "b"} }, 5},
		"missed":  {func(s *recurrence.Spec) { s.Missed = recurrence.MissedOnce }, 1},
		"phase":   {func(s *recurrence.Spec) { s.Phase += time.Millisecond }, 0},
		"count":   {func(s *recurrence.Spec) { s.Count = 1000 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			now := b.clock()
			spec := recurrence.Spec{Every: time.Hour, Missed: recurrence.MissedAll,
				Phase: time.Duration(now.Add(-time.Minute).UnixMilli()%3_600_000) * time.Millisecond}
			b.put(spec)
			b.Do("DEL", b.Keys.Due, b.Keys.Payload)
			b.remember(now.Add(-5*time.Hour - time.Minute + time.Second))
			c.change(&spec)
			b.put(spec)
			b.pass(b.fresh())
			redistest.Want(t, "made up for", len(b.scheduled()), c.missed+1)
		})
	}
}

// An occurrence that was moved before its time, and delivered, does not suppress earlier occurrences of a changed spec,
// and is not planned again.
func TestWhatWasMovedIsNeitherRepeatedNorLeavesOthersOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spec := recurrence.Spec{Every: 4 * time.Hour}
	b.put(spec)
	moved := b.scheduled()[0]
	b.Do("DEL", b.Keys.Due, b.Keys.Payload) // it was moved, and drained
	spec.Payload = []byte("new")
	b.put(spec)
	b.pass(b.fresh())
	if ids := b.scheduled(); len(ids) != 0 {
		t.Errorf("%s has left, then %v", moved, ids)
	}
	spec.Count = 1000 // starts from now
	b.put(spec)
	b.pass(b.fresh())
	if ids := b.scheduled(); slices.Contains(ids, moved) {
		t.Errorf("%s is planned again", moved)
	}
	spec.Every, spec.Count = time.Hour, 0
	b.put(spec)
	b.pass(b.fresh())
	spec.Name, spec.Queue = "r", b.Rig.Queue
	s, err := spec.Compile()
	if err != nil {
		t.Fatal(err)
	}
	next, _ := s.Next(b.clock())
	if ids, want := b.scheduled(), fmt.Sprint("r@", next.UnixMilli()); len(ids) != 1 || ids[0] == moved ||
		ids[0] != want && want != moved {
		t.Errorf("planned with other times: %v, want %s", ids, want)
	}
	// A message that is already due, because it was moved, stays.
	b.Do("ZADD", b.Keys.Due, "5", b.scheduled()[0])
	spec.Payload = []byte("newer")
	redistest.Want(t, "taken back of what is due", b.put(spec).TakenBack, 0)
}

// All data is lost and written again, with equally many changes: the former spec used to stay in force for a minute.
func TestAfterAllIsLostAnotherSpecIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.fresh()
	b.put(recurrence.Spec{Every: time.Hour})
	b.pass(q)
	b.Do("DEL", b.Keys.Due, b.Keys.Payload, b.Keys.Recurring, b.Keys.Planned)
	b.put(recurrence.Spec{Every: 2 * time.Second})
	b.pass(q)
	if it := q.items["r"]; it.schedule.Every != 2*time.Second {
		t.Errorf("in force: every %s", it.schedule.Every)
	}
}

// Runs by hand, occurrences before their time, and retries: while any of them is unfinished, no occurrence is planned
// beside it.
func TestOverlapSkipKnowsAllThatIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	b.put(recurrence.Spec{Every: time.Hour, Overlap: recurrence.OverlapSkip, Payload: []byte("p")})
	first := b.scheduled()[0]
	b.Do("ZADD", b.Keys.Due, "5", first) // moved to before its time
	q := b.fresh()
	drain := func() (entries []string) {
		b.T.Helper()
		if _, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil {
			t.Fatal(err)
		}
		read, err := b.Client.Do(t.Context(), b.Client.B().Xreadgroup().Group("g", "c").Streams().Key(b.Keys.Stream).Id(">").
			Build()).AsXRead()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range read[b.Keys.Stream] {
			entries = append(entries, e.ID)
		}
		return entries
	}
	want := func(what string) {
		t.Helper()
		for _, one := range []*Queue{q, b.fresh()} { // the second one starts without knowledge
			b.pass(one)
			if is, _, err := one.isUnfinished(t.Context(), one.items["r"]); !is || err != nil {
				t.Errorf("%s: something is left: %v %v", what, is, err)
			}
		}
	}
	early := drain()
	want("pending, before its time")
	var run []string
	for range 2 {
		if _, _, err := b.Run(t.Context(), b.Rig.Queue, "r"); err != nil {
			t.Fatal(err)
		}
		run = append(run, drain()...)
	}
	want("three are")
	p := b.remembered()
	p.Spans[0].To = p.Spans[0].To.Add(-2 * time.Hour) // one occurrence is due, and left out
	b.Do("HSET", b.Keys.Planned, "r", p.String())
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	redistest.Want(t, "remembered", len(b.remembered().Recent), 3)
	redistest.Want(t, "planned beside them", len(b.scheduled()), 0)
	b.Do("XACK", b.Keys.Stream, "g", run[0], run[1])
	want("those that were run are done")
	failed, err := lua.Retry(t.Context(), b.Client, b.Keys, "g", lua.Attempts{Max: 5, Delays: []time.Duration{time.Hour}},
		[]lua.Failure{{Held: lua.Held{Entry: early[0]}, Action: lua.ActionRetry, Delay: time.Hour, Reason: "max_attempts",
			Error: "no"}})
	if err != nil || len(failed) != 1 {
		t.Fatal(failed, err)
	}
	want("it is to be tried again")
	b.Do("DEL", b.Keys.Due)
	b.pass(b.fresh())
	redistest.Want(t, "planned when none is left", len(b.scheduled()), 1)
}

// A worker holds an occurrence. It is cancelled before another group has read it, so its entry is gone. The next one
// waits for the worker: the last look saw the entry.
func TestOverlapSkipWaitsForACancelledOneThatIsHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("holds", "unread")
	b.put(recurrence.Spec{Every: time.Hour, Overlap: recurrence.OverlapSkip})
	id := b.scheduled()[0]
	b.Do("ZADD", b.Keys.Due, "5", id) // moved to before its time
	if d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil || d.Moved != 1 {
		t.Fatal(d, err)
	}
	entry := b.Take("holds", "c", 1)[0]
	q := b.fresh()
	b.pass(q)
	unfinished := func() bool {
		t.Helper()
		left, _, err := q.isUnfinished(t.Context(), q.items["r"])
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	redistest.Want(t, "unfinished before it is cancelled", unfinished(), true)
	_, found, err := lua.CancelEntries(t.Context(), b.Client, b.Keys, lua.EntryWalk{Limit: 10}, []string{id}, lua.Durability{})
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	redistest.Want(t, "entries", b.Length(b.Keys.Stream), int64(0))
	redistest.Want(t, "unfinished while it is held", unfinished(), true)
	b.Xack("holds", entry)
	redistest.Want(t, "unfinished afterwards", unfinished(), false)
}

// Bridge a stood still while b planned, and continues with the old plan. It reads past the entry of b's message, learns
// of the new plan, and must read again.
func TestOverlapSkipLooksAgainWhenAnotherBridgeHasPlanned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	b.put(recurrence.Spec{Every: time.Second, Overlap: recurrence.OverlapSkip})
	deliver := func() (entry string) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20)
			return err == nil && d.Moved == 1, fmt.Sprintf("one is due: %+v, %v", d, err)
		})
		m := b.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", b.Keys.Stream, ">")
		read, err := m.AsXRead()
		if err != nil || len(read[b.Keys.Stream]) != 1 {
			t.Fatal(read, err)
		}
		return read[b.Keys.Stream][0].ID
	}
	stopped, other := b.fresh(), b.fresh()
	b.pass(stopped)
	b.Do("XACK", b.Keys.Stream, "g", deliver())
	b.pass(other)
	entry, pending := deliver(), b.remembered().Planned()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		b.pass(stopped)
		redistest.Want(t, "planned beside the one that is pending", len(b.scheduled()), 0)
		return b.remembered().Planned().After(pending), "the one after it is not left out yet"
	})
	b.Do("XACK", b.Keys.Stream, "g", entry)
	b.pass(b.fresh())
	redistest.Want(t, "planned when it is done", len(b.scheduled()), 1)
}

// A user's own message with the ID of an occurrence takes the occurrence's place. It is neither overwritten nor taken
// back with the recurrence, whatever happens to that.
func TestAMessageOfSomebodysOwnIsNotTakenBack(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(b *bench) error{
		"removed": func(b *bench) error {
			_, err := b.Remove(t.Context(), b.Rig.Queue, "r")
			return err
		},
		"paused": func(b *bench) error {
			_, err := b.Pause(t.Context(), b.Rig.Queue, "r", true)
			return err
		},
		"changed": func(b *bench) error {
			b.put(recurrence.Spec{Every: 48 * time.Hour, Paused: true, Payload: []byte("other")})
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.put(recurrence.Spec{Every: 240 * time.Hour, Payload: []byte("planned")})
			id := b.scheduled()[0]
			if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
				t.Fatal(err)
			}
			own := []lua.Item{{ID: id, When: lua.After(30 * time.Minute), Payload: []byte("own")}}
			if _, err := lua.Enqueue(t.Context(), b.Client, b.Keys, lua.Token{}, own, lua.Durability{}); err != nil {
				t.Fatal(err)
			}
			b.put(recurrence.Spec{Every: 240 * time.Hour, Payload: []byte("planned")})
			b.pass(b.fresh())
			if err := do(b); err != nil {
				t.Fatal(err)
			}
			redistest.Want(t, "scheduled", strings.Join(b.scheduled(), " "), id)
			m := b.Do("HGET", b.Keys.Payload, id)
			body, err := m.ToString()
			redistest.Want(t, fmt.Sprint("payload ", err), body, "own")
		})
	}
}

// Removing the last recurrence leaves no field behind, whoever removes it.
func TestTheLastRecurrenceLeavesNoField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	left := func(what string) {
		t.Helper()
		for _, key := range []string{b.Keys.Recurring, b.Keys.Planned, b.Keys.Due, b.Keys.Payload, b.Keys.Meta} {
			m := b.Do("EXISTS", key)
			n, err := m.AsInt64()
			redistest.Want(t, fmt.Sprint(what, ": keys named ", key, " ", err), n, 0)
		}
	}
	b.put(recurrence.Spec{Every: time.Hour})
	q := b.fresh()
	b.pass(q)
	if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
		t.Fatal(err)
	}
	b.pass(q)
	left("removed")
	b.put(recurrence.Spec{Every: time.Hour})
	b.pass(q)
	b.Do("HDEL", b.Keys.Recurring, "r")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	left("removed by a plain client")
	b.Do("HSET", b.Keys.Recurring, "wrong", "{")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	b.Do("HDEL", b.Keys.Recurring, "wrong")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	left("a wrong one, of which nothing was planned")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(b.fresh())
	left("the count alone, as a former release left it")
	redistest.Want(t, "empty", q.Empty(), true)
}

// A recurrence is removed while its last message is pending or waits for a retry, and added again. The new one waits
// for that message like the old one. The plan that is kept for this goes with the message.
func TestOverlapSkipHoldsAlsoForOneThatIsAddedAgain(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(b *bench, q *Queue){
		"removed": func(b *bench, _ *Queue) {
			if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
				t.Error(err)
			}
		},
		"removed by a plain client": func(b *bench, q *Queue) {
			b.Do("HDEL", b.Keys.Recurring, "r")
			b.Do("HINCRBY", b.Keys.Planned, "", "1")
			b.pass(q)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.Groups("g")
			spec := recurrence.Spec{Every: 240 * time.Hour, Count: 3, Overlap: recurrence.OverlapSkip, Payload: []byte("p")}
			b.put(spec)
			b.Do("ZADD", b.Keys.Due, "5", b.scheduled()[0])
			entry := func() string {
				t.Helper()
				if d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil || d.Moved != 1 {
					t.Fatal(d, err)
				}
				m := b.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", b.Keys.Stream, ">")
				read, err := m.AsXRead()
				if err != nil || len(read[b.Keys.Stream]) != 1 {
					t.Fatal(read, err)
				}
				return read[b.Keys.Stream][0].ID
			}
			pending, q := entry(), b.fresh()
			b.pass(q)
			again := func(left string) {
				t.Helper()
				remove(b, q)
				b.pass(q)
				redistest.Want(t, "left behind is nothing", q.Empty(), false)
				b.put(spec)
				b.pass(q)
				b.pass(b.fresh())
				redistest.Want(t, "scheduled", strings.Join(b.scheduled(), " "), left)
			}
			again("")
			failure := lua.Failure{Held: lua.Held{Entry: pending}, Action: lua.ActionRetry, Delay: time.Hour}
			if _, err := lua.Retry(t.Context(), b.Client, b.Keys, "g", lua.Attempts{Max: 5}, []lua.Failure{failure}); err != nil {
				t.Fatal(err)
			}
			retry := b.scheduled()
			again(retry[0])
			b.Do("ZADD", b.Keys.Due, "5", retry[0])
			last := entry()
			remove(b, q)
			b.pass(q)
			b.Do("XACK", b.Keys.Stream, "g", last)
			b.pass(q)
			b.pass(q)
			redistest.Want(t, "nothing is left", q.Empty(), true)
			m := b.Do("EXISTS", b.Keys.Planned, b.Keys.Recurring)
			n, err := m.AsInt64()
			redistest.Want(t, fmt.Sprint("keys ", err), n, 0)
			b.put(spec)
			redistest.Want(t, "planned when it is done", len(b.scheduled()), 1)
			redistest.Want(t, "used", b.remembered().Used, 1)
		})
	}
}
