package planner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// A change of the payload must keep the occurrences that were missed while no bridge was alive. Only a change of the
// times starts from now. Regression: any change lost the missed occurrences.
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
			now := b.serverTime()
			spec := recurrence.Spec{Every: time.Hour, Missed: recurrence.MissedAll,
				Phase: time.Duration(now.Add(-time.Minute).UnixMilli()%3_600_000) * time.Millisecond}
			b.put(spec)
			b.Do("DEL", b.Keys.Due, b.Keys.Payload)
			b.storePlan(now.Add(-5*time.Hour - time.Minute + time.Second))
			c.change(&spec)
			b.put(spec)
			b.pass(b.freshQueue())
			redistest.Want(t, "missed occurrences, and the next one", len(b.scheduled()), c.missed+1)
		})
	}
}

// An occurrence may be moved before its time, and be delivered. It must not be planned again, and must not suppress
// earlier occurrences of a changed spec.
func TestWhatWasMovedIsNeitherRepeatedNorLeavesOthersOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spec := recurrence.Spec{Every: 4 * time.Hour}
	b.put(spec)
	moved := b.scheduled()[0]
	b.Do("DEL", b.Keys.Due, b.Keys.Payload) // as if it had been moved before its time, and drained
	spec.Payload = []byte("new")
	b.put(spec)
	b.pass(b.freshQueue())
	if ids := b.scheduled(); len(ids) != 0 {
		t.Errorf("%s has left, then %v", moved, ids)
	}
	spec.Count = 1000 // this change starts from now
	b.put(spec)
	b.pass(b.freshQueue())
	if ids := b.scheduled(); slices.Contains(ids, moved) {
		t.Errorf("%s is planned again", moved)
	}
	spec.Every, spec.Count = time.Hour, 0
	b.put(spec)
	b.pass(b.freshQueue())
	spec.Name, spec.Queue = "r", b.Rig.Queue
	s, err := spec.Compile()
	if err != nil {
		t.Fatal(err)
	}
	next, _ := s.Next(b.serverTime())
	if ids, want := b.scheduled(), fmt.Sprint("r@", next.UnixMilli()); len(ids) != 1 || ids[0] == moved ||
		ids[0] != want && want != moved {
		t.Errorf("planned with other times: %v, want %s", ids, want)
	}
	// A message that is already due, because it was moved, stays.
	b.Do("ZADD", b.Keys.Due, "5", b.scheduled()[0])
	spec.Payload = []byte("newer")
	redistest.Want(t, "messages taken back that are due already", b.put(spec).TakenBack, 0)
}

// Regression: all data was lost and written again, with as many changes as before. The bridge saw no change, and
// followed the old spec for a minute.
func TestAfterAllIsLostAnotherSpecIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.freshQueue()
	b.put(recurrence.Spec{Every: time.Hour})
	b.pass(q)
	b.Do("DEL", b.Keys.Due, b.Keys.Payload, b.Keys.Recurring, b.Keys.Planned)
	b.put(recurrence.Spec{Every: 2 * time.Second})
	b.pass(q)
	if it := q.items["r"]; it.schedule.Every != 2*time.Second {
		t.Errorf("the bridge follows a spec with every %s", it.schedule.Every)
	}
}

// With overlap skip, no occurrence may be planned while an earlier message of the recurrence is unfinished: a run by
// hand, an occurrence that was moved before its time, or a retry.
func TestOverlapSkipKnowsAllThatIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	b.put(recurrence.Spec{Every: time.Hour, Overlap: recurrence.OverlapSkip, Payload: []byte("p")})
	first := b.scheduled()[0]
	b.Do("ZADD", b.Keys.Due, "5", first) // moved to before its time
	q := b.freshQueue()
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
	wantUnfinished := func(what string) {
		t.Helper()
		for _, one := range []*Queue{q, b.freshQueue()} { // the second queue has no knowledge from earlier passes
			b.pass(one)
			if unfinished, _, err := one.isUnfinished(t.Context(), one.items["r"]); !unfinished || err != nil {
				t.Errorf("%s: unfinished is %v, want true; %v", what, unfinished, err)
			}
		}
	}
	early := drain()
	wantUnfinished("an occurrence is pending before its time")
	var run []string
	for range 2 {
		if _, _, err := b.Run(t.Context(), b.Rig.Queue, "r"); err != nil {
			t.Fatal(err)
		}
		run = append(run, drain()...)
	}
	wantUnfinished("three messages are pending")
	p := b.storedPlan()
	p.Spans[0].To = p.Spans[0].To.Add(-2 * time.Hour) // so that one occurrence is due, which must be left out
	b.Do("HSET", b.Keys.Planned, "r", p.String())
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	redistest.Want(t, "unfinished messages in the plan", len(b.storedPlan().Recent), 3)
	redistest.Want(t, "planned beside them", len(b.scheduled()), 0)
	b.Do("XACK", b.Keys.Stream, "g", run[0], run[1])
	wantUnfinished("the runs by hand are done, and the occurrence is pending")
	failed, err := lua.Retry(t.Context(), b.Client, b.Keys, "g", lua.Attempts{Max: 5, Delays: []time.Duration{time.Hour}},
		[]lua.Failure{{Held: lua.Held{Entry: early[0]}, Action: lua.ActionRetry, Delay: time.Hour, Reason: "max_attempts",
			Error: "no"}})
	if err != nil || len(failed) != 1 {
		t.Fatal(failed, err)
	}
	wantUnfinished("the occurrence waits for a retry")
	b.Do("DEL", b.Keys.Due)
	b.pass(b.freshQueue())
	redistest.Want(t, "planned when none is left", len(b.scheduled()), 1)
}

// A worker holds an occurrence. The occurrence is cancelled before another group has read it, so its entry is gone from
// the stream. The next occurrence must still wait for the worker, because the last look saw the entry.
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
	q := b.freshQueue()
	b.pass(q)
	unfinished := func() bool {
		t.Helper()
		is, _, err := q.isUnfinished(t.Context(), q.items["r"])
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	redistest.Want(t, "unfinished before it is cancelled", unfinished(), true)
	_, found, err := lua.CancelEntries(t.Context(), b.Client, b.Keys, lua.EntryWalk{Limit: 10}, []string{id},
		lua.Durability{})
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	redistest.Want(t, "entries", b.Length(b.Keys.Stream), int64(0))
	redistest.Want(t, "unfinished while it is held", unfinished(), true)
	b.Xack("holds", entry)
	redistest.Want(t, "unfinished afterwards", unfinished(), false)
}

// Regression: bridge a stood still while bridge b planned, and went on with its old plan. It read past the entry of b's
// message, then learned of the new plan, and did not read the stream again for that message.
func TestOverlapSkipLooksAgainWhenAnotherBridgeHasPlanned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	b.put(recurrence.Spec{Every: time.Second, Overlap: recurrence.OverlapSkip})
	deliver := func() (entry string) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20)
			return err == nil && d.Moved == 1, fmt.Sprintf("no occurrence is due: %+v, %v", d, err)
		})
		m := b.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", b.Keys.Stream, ">")
		read, err := m.AsXRead()
		if err != nil || len(read[b.Keys.Stream]) != 1 {
			t.Fatal(read, err)
		}
		return read[b.Keys.Stream][0].ID
	}
	stopped, other := b.freshQueue(), b.freshQueue()
	b.pass(stopped)
	b.Do("XACK", b.Keys.Stream, "g", deliver())
	b.pass(other)
	entry, pending := deliver(), b.storedPlan().Planned()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		b.pass(stopped)
		redistest.Want(t, "planned beside the one that is pending", len(b.scheduled()), 0)
		return b.storedPlan().Planned().After(pending), "the next occurrence is not left out yet"
	})
	b.Do("XACK", b.Keys.Stream, "g", entry)
	b.pass(b.freshQueue())
	redistest.Want(t, "planned when it is done", len(b.scheduled()), 1)
}

// A user's own message with the ID of an occurrence takes the place of the occurrence. It must be neither overwritten
// nor taken back, also if the recurrence is removed, paused or changed.
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
			b.pass(b.freshQueue())
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

// When the last recurrence is removed, by a client of duestream or by plain commands, no field and no key may be left.
func TestTheLastRecurrenceLeavesNoField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	wantNoKeys := func(what string) {
		t.Helper()
		for _, key := range []string{b.Keys.Recurring, b.Keys.Planned, b.Keys.Due, b.Keys.Payload, b.Keys.Meta} {
			m := b.Do("EXISTS", key)
			n, err := m.AsInt64()
			redistest.Want(t, fmt.Sprint(what, ": keys named ", key, " ", err), n, 0)
		}
	}
	b.put(recurrence.Spec{Every: time.Hour})
	q := b.freshQueue()
	b.pass(q)
	if _, err := b.Remove(t.Context(), b.Rig.Queue, "r"); err != nil {
		t.Fatal(err)
	}
	b.pass(q)
	wantNoKeys("removed")
	b.put(recurrence.Spec{Every: time.Hour})
	b.pass(q)
	b.Do("HDEL", b.Keys.Recurring, "r")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	wantNoKeys("removed by a plain client")
	b.Do("HSET", b.Keys.Recurring, "wrong", "{")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	b.Do("HDEL", b.Keys.Recurring, "wrong")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	wantNoKeys("an invalid one, of which nothing was planned")
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(b.freshQueue())
	wantNoKeys("the count of changes alone, as a former release left it")
	redistest.Want(t, "empty", q.Empty(), true)
}

// A recurrence is removed while its last message is pending or waits for a retry, and is added again. The new
// recurrence must wait for that message like the old one. The plan that is kept for this must go when the message is
// done.
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
			pending, q := entry(), b.freshQueue()
			b.pass(q)
			removeAndAdd := func(wantScheduled string) {
				t.Helper()
				remove(b, q)
				b.pass(q)
				redistest.Want(t, "nothing is left behind", q.Empty(), false)
				b.put(spec)
				b.pass(q)
				b.pass(b.freshQueue())
				redistest.Want(t, "scheduled", strings.Join(b.scheduled(), " "), wantScheduled)
			}
			removeAndAdd("")
			failure := lua.Failure{Held: lua.Held{Entry: pending}, Action: lua.ActionRetry, Delay: time.Hour}
			_, err := lua.Retry(t.Context(), b.Client, b.Keys, "g", lua.Attempts{Max: 5}, []lua.Failure{failure})
			if err != nil {
				t.Fatal(err)
			}
			retry := b.scheduled()
			removeAndAdd(retry[0])
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
			redistest.Want(t, "used", b.storedPlan().Used, 1)
		})
	}
}

// Of two callers who have read the same recurrence only the first may change it, also if this release cannot read it.
func TestARecurrenceIsNotChangedOverAChangeThatTheCallerHasNotSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := New(b.Client, b.Prefix, "test", nil)
	spec := recurrence.Spec{Queue: b.Rig.Queue, Name: "r", Every: time.Hour}
	if _, err := p.Replace(t.Context(), spec, "any"); !errors.Is(err, ErrNoRecurrence) {
		t.Errorf("there is none: %v", err)
	}
	if _, err := p.Put(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	version := func() string {
		t.Helper()
		s, err := p.Get(t.Context(), b.Rig.Queue, "r")
		if err != nil {
			t.Fatal(err)
		}
		return s.Version
	}
	first := version()
	spec.Every = 2 * time.Hour
	if c, err := p.Replace(t.Context(), spec, first); err != nil || !c.Changed {
		t.Errorf("the version that is stored: %+v, %v", c, err)
	}
	spec.Every = 3 * time.Hour
	if _, err := p.Replace(t.Context(), spec, first); !errors.Is(err, ErrChanged) {
		t.Errorf("a version that was replaced: %v", err)
	}
	b.Do("HSET", b.Keys.Recurring, "r", `{"every_ms":1000,"of_a_newer_release":1}`)
	second := version()
	b.Do("HSET", b.Keys.Recurring, "r", `{"every_ms":1000,"of_a_newer_release":2}`)
	if _, err := p.Replace(t.Context(), spec, second); !errors.Is(err, ErrChanged) {
		t.Errorf("an unreadable spec that was replaced: %v", err)
	}
	if _, err := p.Replace(t.Context(), spec, version()); err != nil {
		t.Errorf("an unreadable spec: %v", err)
	}
}
