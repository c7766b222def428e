package planner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

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

// put adds the recurrence "r" of the queue, or changes it.
func (b *bench) put(spec recurrence.Spec) Change {
	b.T.Helper()
	spec.Name, spec.Queue = "r", b.Rig.Queue
	change, err := b.Put(b.T.Context(), spec)
	if err != nil {
		b.T.Fatal(err)
	}
	return change
}

// pass makes a pass, and returns the time until the next one.
func (b *bench) pass(q *Queue) time.Duration {
	b.T.Helper()
	wait, err := q.Pass(b.T.Context())
	if err != nil {
		b.T.Fatal(err)
	}
	return wait
}

// freshQueue returns a queue without knowledge of earlier passes, as after a start of the bridge.
func (b *bench) freshQueue() *Queue { return b.Planner.Queue(b.Rig.Queue) }

// scheduled returns the scheduled IDs of partition 0.
func (b *bench) scheduled() []string {
	b.T.Helper()
	m := b.Do("ZRANGE", b.Keys.Due, "0", "-1")
	list, err := m.AsStrSlice()
	if err != nil {
		b.T.Fatal(err)
	}
	return list
}

// serverTime returns the time of the server's clock.
func (b *bench) serverTime() time.Time {
	b.T.Helper()
	now, err := b.now(b.T.Context(), b.Rig.Queue)
	if err != nil {
		b.T.Fatal(err)
	}
	return now
}

// storedPlan returns the plan of the recurrence "r" in Redis.
func (b *bench) storedPlan() lua.Plan {
	b.T.Helper()
	m := b.Do("HGET", b.Keys.Planned, "r")
	text, _ := m.ToString()
	p, ok := lua.ParsePlan(text)
	if !ok {
		b.T.Fatalf("stored plan: %q", text)
	}
	return p
}

// storePlan writes a plan of the recurrence "r": planned up to a time, with one occurrence used, and with recent ones.
func (b *bench) storePlan(planned time.Time, recent ...string) {
	b.T.Helper()
	p := b.storedPlan()
	p.Spans, p.Used, p.Recent = []lua.Span{{From: planned.Add(-time.Hour), To: planned}}, 1, recent
	b.Do("HSET", b.Keys.Planned, "r", p.String())
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
}

// Four planners work at once, and drains take away the messages that they plan. Each second must have one occurrence.
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
	began := b.serverTime().Add(-60 * time.Second).Truncate(time.Second)
	b.storePlan(began)
	var planners sync.WaitGroup
	for range 4 {
		planners.Go(func() {
			q := b.freshQueue()
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

// decide must plan the missed occurrences that the spec promises, and the next ones, and nothing twice.
func TestMissedOccurrences(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	for _, c := range []struct {
		spec    recurrence.Spec
		planned time.Duration // the plan reaches to this time before now
		want    string        // the occurrences, in seconds from now
	}{
		{recurrence.Spec{Every: time.Hour}, time.Minute, "0 3600"},
		{recurrence.Spec{Every: time.Minute, Missed: recurrence.MissedSkip}, 5 * time.Minute, "0 60"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second, Missed: recurrence.MissedSkip}, 5 * time.Minute, "30"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second}, 5 * time.Minute, "-30 30"},
		{recurrence.Spec{Every: time.Minute, Phase: 30 * time.Second, Missed: recurrence.MissedAll}, 3 * time.Minute,
			"-150 -90 -30 30"},
		// 5 s late, which does not count as missed
		{recurrence.Spec{Every: time.Minute, Phase: 55 * time.Second, Missed: recurrence.MissedSkip}, time.Minute, "-5 55"},
		{recurrence.Spec{Every: 8 * time.Second}, 0, "8 16"},
		{recurrence.Spec{Every: 8 * time.Second}, -16 * time.Second, ""},
		{recurrence.Spec{Every: 8 * time.Second, Count: 2}, 0, "8"}, // one of the two is used already
		{recurrence.Spec{Every: time.Hour, End: now.Add(time.Minute)}, 0, ""},
	} {
		c.spec.Name, c.spec.Queue = "r", "q"
		s, err := c.spec.Compile()
		if err != nil {
			t.Fatal(err)
		}
		d := decide(s, lua.Plan{Spans: spansTo(now.Add(-c.planned)), Used: 1, Recent: recent(now, c.planned)}, now)
		var got []string
		for _, o := range d.occurrences {
			got = append(got, fmt.Sprint(int(o.At.Sub(now).Seconds())))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v, planned up to %s ago: %v, want %s", c.spec, c.planned, got, c.want)
		}
		if len(got) == 0 && !d.idleUntil.After(now) {
			t.Errorf("%+v: nothing is planned, and the recurrence is idle until %s", c.spec, d.idleUntil)
		}
	}
	s, _ := recurrence.Spec{Name: "r", Queue: "q", Cron: "* * * * * *", Missed: recurrence.MissedAll}.Compile()
	d := decide(s, lua.Plan{Spans: spansTo(now.AddDate(-9, 0, 0))}, now)
	redistest.Want(t, "made up for after nine years", len(d.occurrences), recurrence.MissedLimit)
	d = decide(s, lua.Plan{Spans: d.plannedSpans()}, now)
	if len(d.occurrences) == 0 || d.occurrences[0].At.Before(now.Add(-recurrence.MissedAfter)) {
		t.Errorf("the second decision plans %v", d.occurrences)
	}
}

// spansTo returns the spans of a plan that reaches to a time.
func spansTo(at time.Time) []lua.Span { return []lua.Span{{From: at.AddDate(-1, 0, 0), To: at}} }

// recent returns the recent occurrences of a plan that reaches beyond now: the one at its end. Otherwise there is none.
func recent(now time.Time, planned time.Duration) []string {
	if planned >= 0 {
		return nil
	}
	return []string{fmt.Sprint(now.Add(-planned).UnixMilli())}
}

// With overlap skip, an occurrence must be left out while the one before is scheduled, pending or was run by hand.
func TestOverlapSkipWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Groups("g")
	before := b.serverTime().Add(-3 * time.Second)
	b.put(recurrence.Spec{Every: time.Hour, Phase: time.Duration(before.UnixMilli()%3_600_000) * time.Millisecond,
		Overlap: recurrence.OverlapSkip})
	redistest.Want(t, "planned at first", len(b.scheduled()), 1)
	b.pass(b.freshQueue())
	redistest.Want(t, "planned while it waits", len(b.scheduled()), 1)
	b.Do("DEL", b.Keys.Due)
	part := fmt.Sprint(before.Add(-time.Hour).UnixMilli()) // the occurrence an hour earlier, which is not done
	b.Do("ZADD", b.Keys.Due, "5", "r@"+part)
	if d, err := lua.Drain(t.Context(), b.Client, b.Keys, 10, 1<<20); err != nil || d.Moved != 1 {
		t.Fatal(d, err)
	}
	b.storePlan(before.Add(-time.Hour), part)
	b.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", b.Keys.Stream, ">")
	b.pass(b.freshQueue())
	redistest.Want(t, "planned while it is pending", len(b.scheduled()), 0)
	if p := b.storedPlan(); !p.Planned().Equal(before) || p.Used != 1 {
		t.Errorf("left out: %s", p)
	}
	m := b.Do("XRANGE", b.Keys.Stream, "-", "+")
	entries, _ := m.AsXRange()
	b.Do("XACK", b.Keys.Stream, "g", entries[0].ID)
	b.pass(b.freshQueue())
	next := b.scheduled()
	if len(next) != 1 || next[0] != fmt.Sprint("r@", before.Add(time.Hour).UnixMilli()) {
		t.Errorf("planned when it was done: %v", next)
	}
	// A run by hand counts as the last occurrence.
	if _, _, err := b.Run(t.Context(), b.Rig.Queue, "r"); err != nil {
		t.Fatal(err)
	}
	b.pass(b.freshQueue())
	if left := b.scheduled(); len(left) != 1 || !strings.HasSuffix(left[0], lua.RunSuffix) {
		t.Errorf("scheduled beside the run by hand: %v", left)
	}
}

// A plain client writes specs with HSET. A valid spec must be planned. An invalid one must be logged once and listed
// with its problem, and must not stop the others.
func TestSpecsOfPlainClients(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Do("HSET", b.Keys.Recurring, "good", `{"every_ms":3600000,"payload":"p"}`, "bad", `{"cron":"61 * * * *"}`, "worse", "{",
		"newer", `{"every_ms":3600000,"rate":5}`)
	q := b.freshQueue()
	for range 2 {
		b.pass(q)
	}
	ids := b.scheduled()
	if len(ids) != 1 || !strings.HasPrefix(ids[0], "good@") {
		t.Fatal(ids)
	}
	redistest.Want(t, "log lines about invalid specs", strings.Count(b.log.String(), "a recurrence is not planned"), 3)
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
		t.Error("the queue is not empty, although it has no recurrences")
	}
}

// Each operation must change what it says: the spec, the scheduled messages and the plan. Without such a recurrence,
// the error must be ErrNoRecurrence.
func TestARecurrenceIsChangedPausedRunAndRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, queue := t.Context(), b.Rig.Queue
	spec := recurrence.Spec{Cron: "0 9 * * *", Zone: "Europe/Paris", Headers: map[string]string{"a": "b"}, Payload: []byte("p"),
		Owner: "us"}
	redistest.Want(t, "added", b.put(spec), Change{Added: true})
	redistest.Want(t, "put with the same spec", b.put(spec), Change{})
	spec.Cron = "0 10 * * *"
	redistest.Want(t, "put with another spec", b.put(spec), Change{Changed: true, TakenBack: 1})
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
		b.pass(b.freshQueue())
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

// A pass over many recurrences with nothing to plan must read no spec again, so that it costs one round trip.
func TestAPassWithNothingToPlanIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 40 {
		b.Do("HSET", b.Keys.Recurring, fmt.Sprint("r", i), `{"every_ms":86400000}`)
	}
	q := b.freshQueue()
	b.pass(q)
	redistest.Want(t, "planned", len(b.scheduled()), 40)
	b.pass(q)
	revision := q.revision
	if wait := b.pass(q); wait < time.Second || q.revision != revision {
		t.Errorf("the next pass is in %s", wait)
	}
}

// Specs must be read in replies of about 1 MiB, whatever their size. Regression: 100 specs of a megabyte each came in
// one reply.
func TestSpecsAreReadInPagesOfBytes(t *testing.T) {
	t.Parallel()
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

// specReads counts how often the spec of one recurrence is read.
type specReads struct {
	rueidis.Client
	n atomic.Int64
}

func (c *specReads) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if words := command.Commands(); words[0] == "HGET" && strings.HasSuffix(words[1], ":recurring") {
		c.n.Add(1)
	}
	return c.Client.Do(ctx, command)
}

// A bridge may have many recurrences. It keeps small messages in memory, so that it need not read their specs for each
// plan, and reads large ones each time. Both must be planned as the spec says.
func TestOnlyTheSpecOfALargeMessageIsReadForEachPlan(t *testing.T) {
	t.Parallel()
	for size, reads := range map[int]int64{1: 0, keptMessage: 0, keptMessage + 1: 3} {
		b := newBench(t)
		counted := &specReads{Client: b.Client}
		b.Planner = New(counted, b.Prefix, "", slog.New(slog.DiscardHandler))
		payload := strings.Repeat("p", size)
		b.Do("HSET", b.Keys.Recurring, "r", fmt.Sprintf(`{"every_ms":864000000,"payload":%q}`, payload))
		q := b.freshQueue()
		for range 3 {
			b.pass(q)
			ids := b.scheduled()
			redistest.Want(t, "planned", len(ids), 1)
			redistest.Want(t, "payload", queuetest.Text(t, b.Client, "HGET", b.Keys.Payload, ids[0]) == payload, true)
			plan := b.storedPlan()
			plan.Recent, plan.Spans[0].To = nil, b.serverTime()
			b.Do("DEL", b.Keys.Due, b.Keys.Payload)
			b.Do("HSET", b.Keys.Planned, "r", plan.String())
			b.Do("HINCRBY", b.Keys.Planned, "", "1")
		}
		redistest.Want(t, fmt.Sprint("reads of a spec with ", size, " bytes"), counted.n.Load(), reads)
	}
}

// A plain client may change a large spec without counting the change. The next plan must use the new spec.
func TestAChangeOfALargeSpecIsSeenByTheNextPlan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spec := func(phase int, fill string) string {
		payload := strings.Repeat(fill, keptMessage+1)
		return fmt.Sprintf(`{"every_ms":864000000,"phase_ms":%d,"payload":%q}`, phase, payload)
	}
	b.Do("HSET", b.Keys.Recurring, "r", spec(0, "a"))
	q := b.freshQueue()
	for range 2 { // the first one adopts the spec, which counts as a change
		b.pass(q)
	}
	b.Do("DEL", b.Keys.Due, b.Keys.Payload)
	b.Do("HSET", b.Keys.Recurring, "r", spec(7, "b"))
	q.items["r"].idleUntil, q.items["r"].plan.Recent = time.Time{}, nil
	q.items["r"].plan.Spans[0].To = b.serverTime()
	for range 2 { // the first one sees the change, the second one reads all specs
		b.pass(q)
	}
	ids := b.scheduled()
	if len(ids) != 1 || !strings.HasSuffix(ids[0], "007") {
		t.Fatalf("planned: %v", ids)
	}
	redistest.Want(t, "payload", queuetest.Text(t, b.Client, "HGET", b.Keys.Payload, ids[0])[:1], "b")
}

// A plain client may replace one recurrence by another without counting the change. The script must refuse to plan the
// one that is gone, and the next pass must read all specs.
func TestARecurrenceThatIsGoneIsSeenByTheNextPlan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Do("HSET", b.Keys.Recurring, "r", `{"every_ms":864000000}`)
	q := b.freshQueue()
	for range 2 { // the first one adopts the spec, which counts as a change
		b.pass(q)
	}
	b.Do("HDEL", b.Keys.Recurring, "r")
	b.Do("HSET", b.Keys.Recurring, "other", `{"every_ms":864000000}`)
	q.items["r"].idleUntil, q.items["r"].plan.Recent = time.Time{}, nil
	q.items["r"].plan.Spans[0].To = b.serverTime()
	for range 2 {
		b.pass(q)
	}
	ids := b.scheduled()
	if len(ids) != 1 || !strings.HasPrefix(ids[0], "other@") {
		t.Errorf("planned: %v", ids)
	}
}

// Regression: a plan that only the planner or only the scripts could read was never replaced. Its recurrence was not
// planned. Either all specs were read again ten times a second, or the pass failed and held up the other recurrences.
func TestADamagedPlanIsReplaced(t *testing.T) {
	b := newBench(t)
	const spec = `{"every_ms":1000,"payload":"x"}`
	version := lua.SpecVersion(spec)
	k := lua.NewKeys(b.Prefix, b.Rig.Queue)
	for _, rest := range []string{
		"", " t", " t 1-2 5", " t 1-2,3- 5 ", " t 1-9223372036854775807 0 ", " t 1-9007199254740993 0 ",
		" t 1-9007199254740992 0 ", " t 1-2 1000000000000000 ", " t -5-3 0 ",
		" t 1-2 99999999999999999999 ", " t 1-2 -5 ", " t 01-2 5 ", " t 1-2 5 1,,2", " t 1-2 5 1,", " t! 1-2 5 ",
		" t 1-2" + strings.Repeat(",1-2", 8) + " 5 ", " t 1-2 5 1" + strings.Repeat(",1", 200), " t 1-2 5  1",
	} {
		queuetest.Do(t, b.Client, "DEL", k.Recurring, k.Planned, k.Due, k.Payload, k.Meta)
		queuetest.Do(t, b.Client, "HSET", k.Planned, "r", version+rest)
		queuetest.Do(t, b.Client, "HSET", k.Recurring, "r", spec)
		q := b.freshQueue()
		b.pass(q)
		redistest.Want(t, "messages with"+rest, queuetest.Integer(t, b.Client, "ZCARD", k.Due) > 0, true)
		_, ok := lua.ParsePlan(queuetest.Text(t, b.Client, "HGET", k.Planned, "r"))
		redistest.Want(t, "a plan instead of"+rest, ok, true)
		redistest.Want(t, "all specs must be read again", q.mustReread.Load(), false)
	}
}
