package planner

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// bench is a queue with a planner and its log.
type bench struct {
	*queuetest.Rig
	*Planner
	log *bytes.Buffer
}

func newBench(t *testing.T) *bench {
	r, log := queuetest.New(t, redistest.Shared(t)), &bytes.Buffer{}
	return &bench{r, New(r.Client, r.Prefix, "", slog.New(slog.NewTextHandler(log, nil))), log}
}

func (b *bench) put(spec recurrence.Spec) Change {
	b.T.Helper()
	spec.Name, spec.Queue = "r", b.Rig.Queue
	change, err := b.Put(b.T.Context(), spec)
	if err != nil {
		b.T.Fatal(err)
	}
	return change
}

func (b *bench) pass(q *Queue) time.Duration {
	b.T.Helper()
	wait, err := q.Pass(b.T.Context())
	if err != nil {
		b.T.Fatal(err)
	}
	return wait
}

func (b *bench) fresh() *Queue { return b.Planner.Queue(b.Rig.Queue) }

func (b *bench) scheduled() []string {
	b.T.Helper()
	m := b.Do("ZRANGE", b.Keys.Due, "0", "-1")
	list, err := m.AsStrSlice()
	if err != nil {
		b.T.Fatal(err)
	}
	return list
}

func (b *bench) clock() time.Time {
	b.T.Helper()
	now, err := b.now(b.T.Context(), b.Rig.Queue)
	if err != nil {
		b.T.Fatal(err)
	}
	return now
}

func (b *bench) remembered() lua.Plan {
	b.T.Helper()
	m := b.Do("HGET", b.Keys.Planned, "r")
	text, _ := m.ToString()
	p, ok := lua.ParsePlan(text)
	if !ok {
		b.T.Fatalf("what is remembered: %q", text)
	}
	return p
}

// remember writes the plan of the recurrence.
func (b *bench) remember(planned time.Time, recent ...string) {
	b.T.Helper()
	p := b.remembered()
	p.Spans, p.Used, p.Recent = []lua.Span{{From: planned.Add(-time.Hour), To: planned}}, 1, recent
	b.Do("HSET", b.Keys.Planned, "r", p.String())
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
}

// Four planners whose calls interleave, and a drain that takes at once the planned messages: each second occurs once.
func TestManyPlannersPlanEachOccurrenceOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	b.put(recurrence.Spec{Every: time.Second, Missed: recurrence.MissedAll, Payload: bytes.Repeat([]byte("x"), 16<<10),
		Paused: true})
	if changed, err := b.Pause(t.Context(), b.Rig.Queue, "r", false); err != nil || !changed {
		t.Fatal(changed, err)
	}
	b.Do("DEL", b.Keys.Due, b.Keys.Payload)
	began := b.clock().Add(-60 * time.Second).Truncate(time.Second)
	b.remember(began)
	var planners sync.WaitGroup
	for range 4 {
		planners.Go(func() {
			q := b.fresh()
			for range 10 {
				if _, err := q.Pass(t.Context()); err != nil {
					t.Error(err)
				}
				if _, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil {
					t.Error(err)
				}
			}
		})
	}
	planners.Wait()
	for _, id := range b.scheduled() {
		b.Do("ZADD", b.Keys.Due, "XX", "5", id)
	}
	for d := (lua.Drained{Moved: 1}); d.Moved > 0; {
		d, _ = lua.Drain(t.Context(), b.Client, b.Keys, 100, 1<<20)
	}
	m := b.Do("XRANGE", b.Keys.Stream, "-", "+")
	entries, err := m.AsXRange()
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, e := range entries {
		seen = append(seen, e.FieldValues["id"])
	}
	slices.Sort(seen)
	for i, id := range seen {
		if want := fmt.Sprintf("r@%d", began.Add(time.Duration(i+1)*time.Second).UnixMilli()); id != want {
			t.Fatalf("%d: %s, want %s, of %v", i, id, want, seen)
		}
	}
	if len(seen) < 80 {
		t.Errorf("only %d", len(seen))
	}
}

func TestMissedOccurrences(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	for _, c := range []struct {
		spec    recurrence.Spec
		planned time.Duration // before now
		want    string        // seconds from now
	}{
		{recurrence.Spec{Every: time.Hour}, time.Minute, "0 3600"},
		{recurrence.Spec{Every: time.Minute, Missed: recurrence.MissedSkip}, 5 * time.Minute, "0 60"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second, Missed: recurrence.MissedSkip}, 5 * time.Minute, "30"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second}, 5 * time.Minute, "-30 30"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second, Missed: recurrence.MissedAll}, 3 * time.Minute,
			"-150 -90 -30 30"},
		// late, but not missed
		{recurrence.Spec{Every: time.Minute, Phase: 55 * time.Second, Missed: recurrence.MissedSkip}, time.Minute, "-5 55"},
		{recurrence.Spec{Every: 8 * time.Second}, 0, "8 16"},
		{recurrence.Spec{Every: 8 * time.Second}, -16 * time.Second, ""},
		{recurrence.Spec{Every: 8 * time.Second, Count: 2}, 0, "8"}, // one is used already
		{recurrence.Spec{Every: time.Hour, End: now.Add(time.Minute)}, 0, ""},
	} {
		c.spec.Name, c.spec.Queue = "r", "q"
		s, err := c.spec.Compile()
		if err != nil {
			t.Fatal(err)
		}
		d := decide(s, lua.Plan{Spans: spansTo(now.Add(-c.planned)), Used: 1, Recent: recent(now, c.planned)}, now)
		var got []string
		for _, at := range d.occurrences {
			got = append(got, fmt.Sprint(int(at.Sub(now).Seconds())))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v, planned up to %s ago: %v, want %s", c.spec, c.planned, got, c.want)
		}
		if len(got) == 0 && !d.idleUntil.After(now) {
			t.Errorf("%+v: nothing, and idle until %s", c.spec, d.idleUntil)
		}
	}
	s, _ := recurrence.Spec{Name: "r", Queue: "q", Cron: "* * * * * *", Missed: recurrence.MissedAll}.Compile()
	d := decide(s, lua.Plan{Spans: spansTo(now.AddDate(-9, 0, 0))}, now)
	redistest.Want(t, "made up for after nine years", len(d.occurrences), recurrence.MissedLimit)
	d = decide(s, lua.Plan{Spans: d.through()}, now)
	if len(d.occurrences) == 0 || d.occurrences[0].Before(now.Add(-recurrence.MissedAfter)) {
		t.Errorf("and then: %v", d.occurrences)
	}
}

func spansTo(at time.Time) []lua.Span { return []lua.Span{{From: at.AddDate(-1, 0, 0), To: at}} }

// recent returns the plan's entry for an occurrence planned later.
func recent(now time.Time, planned time.Duration) []string {
	if planned >= 0 {
		return nil
	}
	return []string{fmt.Sprint(now.Add(-planned).UnixMilli())}
}

func TestOverlapSkipWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	before := b.clock().Add(-3 * time.Second)
	b.put(recurrence.Spec{Every: time.Hour, Phase: time.Duration(before.UnixMilli()%3_600_000) * time.Millisecond,
		Overlap: recurrence.OverlapSkip})
	redistest.Want(t, "planned at first", len(b.scheduled()), 1)
	b.pass(b.fresh())
	redistest.Want(t, "planned while it waits", len(b.scheduled()), 1)
	b.Do("DEL", b.Keys.Due)
	part := fmt.Sprint(before.Add(-time.Hour).UnixMilli()) // the one an hour before is not done
	b.Do("ZADD", b.Keys.Due, "5", "r@"+part)
	if d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil || d.Moved != 1 {
		t.Fatal(d, err)
	}
	b.remember(before.Add(-time.Hour), part)
	b.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", b.Keys.Stream, ">")
	b.pass(b.fresh())
	redistest.Want(t, "planned while it is pending", len(b.scheduled()), 0)
	if p := b.remembered(); !p.Planned().Equal(before) || p.Used != 1 {
		t.Errorf("left out: %s", p)
	}
	m := b.Do("XRANGE", b.Keys.Stream, "-", "+")
	entries, _ := m.AsXRange()
	b.Do("XACK", b.Keys.Stream, "g", entries[0].ID)
	b.pass(b.fresh())
	next := b.scheduled()
	if len(next) != 1 || next[0] != fmt.Sprint("r@", before.Add(time.Hour).UnixMilli()) {
		t.Errorf("planned when it was done: %v", next)
	}
	// A run by hand counts as the last occurrence.
	if _, _, err := b.Run(t.Context(), b.Rig.Queue, "r"); err != nil {
		t.Fatal(err)
	}
	b.pass(b.fresh())
	if left := b.scheduled(); len(left) != 1 || !strings.HasSuffix(left[0], lua.RunSuffix) {
		t.Errorf("beside what was run: %v", left)
	}
}

func TestSpecsOfPlainClients(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Do("HSET", b.Keys.Recurring, "good", `{"every_ms":3600000,"payload":"p"}`, "bad", `{"cron":"61 * * * *"}`, "worse", "{",
		"newer", `{"every_ms":3600000,"rate":5}`)
	q := b.fresh()
	for range 2 {
		b.pass(q)
	}
	ids := b.scheduled()
	if len(ids) != 1 || !strings.HasPrefix(ids[0], "good@") {
		t.Fatal(ids)
	}
	redistest.Want(t, "lines about wrong ones", strings.Count(b.log.String(), "a recurrence is not planned"), 3)
	states, err := b.List(t.Context(), b.Rig.Queue)
	if err != nil || len(states) != 4 || states[0].Problem == "" || states[1].Problem != "" || len(states[1].Next) != 3 {
		t.Errorf("%+v %v", states, err)
	}
	b.Do("HSET", b.Keys.Recurring, "good", `{"every_ms":7200000,"phase_ms":1000}`) // with an unchanged revision
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	b.pass(q)
	if again := b.scheduled(); len(again) != 1 || again[0] == ids[0] {
		t.Errorf("%v, then %v", ids, again)
	}
	b.Do("HDEL", b.Keys.Recurring, "good")
	b.pass(q)
	redistest.Want(t, "planned of what was removed", len(b.scheduled()), 0)
	b.Do("DEL", b.Keys.Recurring)
	b.pass(q)
	if !q.Empty() {
		t.Error("recurrences that nobody has")
	}
}

func TestARecurrenceIsChangedPausedRunAndRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, queue := t.Context(), b.Rig.Queue
	spec := recurrence.Spec{Cron: "0 9 * * *", Zone: "Europe/Paris", Headers: map[string]string{"a": "b"}, Payload: []byte("p"),
		Owner: "us"}
	redistest.Want(t, "added", b.put(spec), Change{Added: true})
	redistest.Want(t, "the same", b.put(spec), Change{})
	spec.Cron = "0 10 * * *"
	redistest.Want(t, "another", b.put(spec), Change{Changed: true, TakenBack: 1})
	state, err := b.Get(ctx, queue, "r")
	if err != nil || len(state.Next) != 3 || state.Next[0].Hour() != 10 || state.Next[0].Location().String() != "Europe/Paris" ||
		state.Used != 1 || !state.Last.IsZero() || state.Spec.Owner != "us" {
		t.Errorf("%+v %v", state, err)
	}
	for _, paused := range []bool{true, true, false} {
		if _, err := b.Pause(ctx, queue, "r", paused); err != nil {
			t.Fatal(err)
		}
		want := 1
		if paused {
			want = 0
		}
		b.pass(b.fresh())
		redistest.Want(t, fmt.Sprint("planned with paused ", paused), len(b.scheduled()), want)
	}
	id, due, err := b.Run(ctx, queue, "r")
	if err != nil || due.IsZero() {
		t.Error(id, due, err)
	}
	state, _ = b.Get(ctx, queue, "r")
	redistest.Want(t, "last", state.LastID, id)
	m := b.Do("HGET", b.Keys.Meta, id)
	if meta, _ := m.ToString(); meta != `{"h:a":"b"}` {
		t.Error(meta)
	}
	if back, err := b.Remove(ctx, queue, "r"); err != nil || back != 1 {
		t.Error(back, err)
	}
	redistest.Want(t, "what was run by hand stays", len(b.scheduled()), 1)
	_, missing := b.Remove(ctx, queue, "r")
	_, none := b.Pause(ctx, queue, "r", true)
	_, _, nothing := b.Run(ctx, queue, "r")
	_, unread := b.Get(ctx, queue, "r")
	for _, err := range []error{missing, none, nothing, unread} {
		if !errors.Is(err, ErrNoRecurrence) {
			t.Error(err)
		}
	}
	if _, err := b.Put(ctx, recurrence.Spec{Name: "r", Queue: queue, Cron: "nonsense"}); !errors.Is(err, lua.ErrInvalid) {
		t.Error(err)
	}
}

// A pass over many recurrences with nothing to plan is one round trip.
func TestAPassWithNothingToPlanIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 40 {
		b.Do("HSET", b.Keys.Recurring, fmt.Sprint("r", i), `{"every_ms":86400000}`)
	}
	q := b.fresh()
	b.pass(q)
	redistest.Want(t, "planned", len(b.scheduled()), 40)
	b.pass(q)
	revision := q.revision
	if wait := b.pass(q); wait < time.Second || q.revision != revision {
		t.Errorf("the next pass is in %s", wait)
	}
}

// Specs are read about 1 MiB at a time, whatever their size: once 100 of a megabyte each came in one reply.
func TestSpecsAreReadInPagesOfBytes(t *testing.T) {
	t.Parallel()
	large, small := []string{"a", strings.Repeat("p", 1<<20)}, []string{"a", "p", "b", "p"}
	count := int64(4)
	for range 10 {
		count = nextCount(count, small)
	}
	redistest.Want(t, "small ones", count, 100)
	redistest.Want(t, "behind a large one", nextCount(count, large), 1)
	redistest.Want(t, "behind none", nextCount(1, nil), 2)
	b := newBench(t)
	for i := range 20 {
		b.Do("HSET", b.Keys.Recurring, fmt.Sprint("r", i), fmt.Sprintf(`{"every_ms":3600000,"payload":%q}`,
			strings.Repeat("p", 100_000*(i%3))))
	}
	states, err := b.List(t.Context(), b.Rig.Queue)
	redistest.Want(t, "read", len(states), 20)
	if err != nil {
		t.Error(err)
	}
}
