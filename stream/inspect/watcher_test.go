package inspect

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

func (r *rig) watch(queues ...string) *Watcher { return NewWatcher(r.Client, r.Prefix, queues) }

func (r *rig) sample(w *Watcher) QueueSample {
	r.T.Helper()
	all, err := w.Look(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	if len(all) != 1 || all[0].Err != nil {
		r.T.Fatalf("%+v", all)
	}
	return all[0]
}

// The waiting times come from data that is read anyway: the newest entries, and the group's position at the last look.
// Stats agrees.
func TestWaitingEntriesHaveAnAge(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("dead", "slow", "done")
		now, err := view.ServerTime(t.Context(), r.Client)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			at := now.Add(time.Duration(i-100) * time.Second).UnixMilli()
			r.Do("XADD", r.Keys.Stream, fmt.Sprintf("%d-1", at), "id", "a", "payload", "")
		}
		r.Take("dead", "c", 1)
		r.Take("slow", "c", 12)
		r.Take("done", "c", 20)
		r.Do("HSET", r.Keys.Policy, stream.SettingVisibility, "60000", "group:slow:visibility_ms", "7000")
		ages := func(waiting, unread *view.Millis) string {
			if waiting == nil || unread == nil {
				return fmt.Sprint(waiting, unread)
			}
			return fmt.Sprintf("%.0f0 s, unread for less: %t", time.Duration(*waiting).Seconds()/10,
				*unread < view.Millis(time.Minute))
		}
		w := r.watch(r.Queue)
		r.sample(w)
		sample := r.sample(w)
		want := []string{"90 s, unread for less: true", "<nil> <nil>", "90 s, unread for less: true"}
		for i, g := range r.stats().Groups {
			exact := want[i]
			if g.Name == "dead" { // a Watcher reads only the newest ten
				exact = "100 s, unread for less: true"
			}
			redistest.Want(t, g.Name+" in stats", ages(g.Waiting, g.Unread), exact)
			redistest.Want(t, g.Name+" in a sample", ages(sample.Groups[i].Waiting, sample.Groups[i].Unread), want[i])
		}
		redistest.Want(t, "visibility", fmt.Sprint(sample.Groups[0].Visibility, sample.Groups[2].Visibility), "1m0s 7s")
		for _, group := range []string{"dead", "slow"} {
			r.Do("XGROUP", "DELCONSUMER", r.Keys.Stream, group, "c")
		}
		for _, g := range []GroupStats{r.stats().Groups[0], r.stats().Groups[2]} {
			redistest.Want(t, g.Name+": unread without consumers", *g.Unread, *g.Waiting)
		}
		w.stood[r.Queue]["dead"] = standing{w.stood[r.Queue]["dead"].last, now.Add(-time.Hour)}
		redistest.Want(t, "after an hour", time.Duration(*r.sample(w).Groups[0].Waiting).Round(time.Hour), time.Hour)
		r.Take("dead", "c", 1)
		redistest.Want(t, "when it moves on", ages(r.sample(w).Groups[0].Waiting, new(view.Millis)), want[0])
	})
}

// A sample is cheaper than Stats, and agrees with it.
func TestSamplesAgreeWithStats(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.grow(2)
		now, err := view.ServerTime(t.Context(), r.Client)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			p := r.Part(i)
			p.Kill("a", lua.ReasonDeadLetter, "broken", "dead")
			p.Fill(10 + i)
			ids := p.Take("a", "shared", 5)
			p.Xack("a", ids[1:3]...)
			if _, err := lua.Retry(t.Context(), r.Client, p.Keys, "a", stream.DefaultPolicy().Attempts(), []lua.Failure{
				{Held: lua.Held{Entry: ids[3]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"},
			}); err != nil {
				t.Fatal(err)
			}
			p.Take("b", fmt.Sprint("own-", i), 3+i)
			p.Do("ZADD", p.Keys.Due, fmt.Sprint(now.Add(-time.Minute).UnixMilli()), "late")
		}
		r.Do("HSET", r.Keys.Policy, stream.SettingHeld, "1")
		st, g := r.stats(), r.sample(r.watch(r.Queue))
		redistest.Want(t, "queue", fmt.Sprint(g.Queue, g.Partitions, g.Held, g.Scheduled, g.Overdue, g.Ready, g.Entries, g.Dead),
			fmt.Sprint(st.Queue, st.Partitions, st.Held, st.Scheduled, st.Overdue, st.Ready, st.Entries, st.Dead))
		if d := time.Duration(g.Behind); d < time.Minute || d > 2*time.Minute {
			t.Errorf("behind %s", d)
		}
		if most := view.Millis(30 * time.Second); st.Stalled > most || g.Stalled > most { // entries were added just now
			t.Errorf("stalled %s, %s", st.Stalled, g.Stalled)
		}
		redistest.Want(t, "groups", len(g.Groups), 2)
		for i, one := range g.Groups {
			full := st.Groups[i]
			redistest.Want(t, "group", fmt.Sprint(one.Name, one.Lag, one.Pending, one.Consumers, one.Alive, one.Retrying,
				one.RetryingMore),
				fmt.Sprint(full.Name, full.Lag, full.Pending, full.Consumers, full.Consumers, full.Retrying, false))
			if one.Oldest == nil || *one.Oldest > view.Millis(time.Minute) {
				t.Errorf("oldest pending of %s: %v", one.Name, one.Oldest)
			}
			redistest.Want(t, "rate at the first look", one.Done == nil && g.PerSecond == nil, true)
		}
	})
}

func TestWatcherTellsRatesAndLateness(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.Fill(3) // before the first look, so none of it may count
		r.Xack("a", r.Take("a", "c", 3)...)
		w := r.watch(r.Queue)
		first := r.sample(w)
		if first.Late == nil || *first.Late > view.Millis(time.Minute) {
			t.Errorf("lateness %v", first.Late)
		}
		for i := range 10 {
			r.Enqueue(lua.Item{ID: fmt.Sprint("later-", i), When: lua.After(time.Hour)})
		}
		r.Ready("x-1", "x-2", "x-3", "x-4", "x-5")
		r.Xack("a", r.Take("a", "c", 4)...)
		var held []lua.Held
		for _, entry := range r.Take("b", "c", 6)[3:] { // the first three are still b's
			held = append(held, lua.Held{Entry: entry})
		}
		if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "b", held); err != nil {
			t.Fatal(err)
		}
		g := r.sample(w)
		per := g.PerSecond
		if per == nil || per.In == nil || per.Out == nil || per.Done == nil || g.Groups[0].Done == nil ||
			g.Groups[1].Done == nil {
			t.Fatalf("%+v %+v", g, per)
		}
		// Whatever time it took: 15 came in, 5 became ready, 3 were freed; a ended 4 deliveries, b 3.
		unit := *per.Out / 5
		for what, pair := range map[string][2]float64{
			"in": {*per.In, 15}, "done": {*per.Done, 3}, "a": {*g.Groups[0].Done, 4}, "b": {*g.Groups[1].Done, 3},
		} {
			if got := pair[0] / unit; math.Abs(got-pair[1]) > 1e-6 {
				t.Errorf("%s: %.3f, want %.0f", what, got, pair[1])
			}
		}
		late := time.Now().Add(-time.Hour).UnixMilli()
		r.Do("XADD", r.Keys.Stream, "*", "id", "late", "due_ms", fmt.Sprint(late), "attempt", "1")
		g = r.sample(w)
		if g.Late == nil || *g.Late < view.Millis(59*time.Minute) {
			t.Errorf("lateness %v", g.Late)
		}
		r.Do("DEL", r.Keys.Stream)
		if g = r.sample(w); g.Late == nil || *g.Late < view.Millis(59*time.Minute) || g.PerSecond.In != nil {
			t.Errorf("%+v", g) // the lateness is still shown; figures of another stream are not compared
		}
	})
}

// One refresh of many queues is a few pipelines, and few commands for each of them.
func TestALookIsCheap(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	const queues = 100
	counts := map[string]lua.Counts{}
	for i := range queues {
		q := r.On(fmt.Sprintf("q-%02d", i))
		counts[q.Queue] = lua.Counts{1}
		q.Groups("a", "b")
		q.Ready("x")
		q.Take("a", "c", 1)
		q.Enqueue(lua.Item{ID: "later", When: lua.After(time.Hour)})
	}
	if _, err := lua.RegisterCounts(t.Context(), r.Client, lua.NewGlobals(r.Prefix), counts); err != nil {
		t.Fatal(err)
	}
	w, m := r.watch(), s.Monitor(t)
	for range 2 {
		m.Reset()
		start := time.Now()
		all, err := w.Look(t.Context())
		if err != nil || len(all) != queues {
			t.Fatal(len(all), err)
		}
		t.Logf("%d commands in %s: %v", m.Count(), time.Since(start).Round(time.Millisecond), m.Commands())
		// The clock, the registry and the defaults. Per queue 8, the newest entries, and the notes of deliveries; per
		// group with pending entries its oldest one and its consumers.
		if n := m.Count(); n > 3+queues*(8+2+2) {
			t.Errorf("%d commands: %v", n, m.Commands())
		}
	}
}

func TestAQueueThatCannotBeLookedAtIsNamedAndTheOthersAreSeen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		odd := lua.NewKeys(r.Prefix, "odd")
		r.Do("SET", odd.Due, "x")
		r.Fill(2)
		w := r.watch("odd", r.Queue)
		for range 2 {
			all, err := w.Look(t.Context())
			if err != nil || len(all) != 2 {
				t.Fatal(all, err)
			}
			for _, g := range all {
				if g.Queue == "odd" {
					redistest.Want(t, "error", errors.Is(g.Err, lua.ErrWrongType) && strings.Contains(g.Err.Error(), odd.Due),
						true)
				} else {
					redistest.Want(t, "entries", fmt.Sprint(g.Entries, g.Err), "2 <nil>")
				}
			}
		}
	})
}

// Once the size of entries is known, a look reads no more bytes than its budget, and several small entries at once.
func TestLargePayloadsAreNotReadForTheirLateness(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Queue = "small"
	r.Keys = lua.NewKeys(r.Prefix, r.Queue)
	r.Fill(20)
	var large []string
	for i := range 6 {
		q := r.On(fmt.Sprint("large-", i))
		q.Enqueue(lua.Item{ID: "m", When: lua.After(0), Payload: make([]byte, 1<<20)})
		large = append(large, q.Queue)
	}
	w := r.watch(append(large, "small")...)
	m := s.Monitor(t)
	asked, late := 0, map[string]bool{}
	for look := range 8 {
		m.Reset()
		all, err := w.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := m.Commands()["XREVRANGE"]; look > 0 {
			asked += n
			if n > 3 { // two of a mebibyte, and the small one
				t.Errorf("look %d asks for the newest entries of %d queues", look, n)
			}
		}
		for _, g := range all {
			late[g.Queue] = late[g.Queue] || g.Late != nil
		}
	}
	for _, queue := range w.only {
		if !late[queue] {
			t.Errorf("no lateness of %s", queue)
		}
	}
	redistest.Want(t, "asked after the first look", asked > 0, true)
	redistest.Want(t, "newest entries of a queue with small ones", w.spend("small"), int64(sampleNewest))
}

// Of a thousand queues each has its turn, and all are in the result.
func TestManyQueuesTakeTurns(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, "p", nil)
	w.known = map[string]lua.Counts{"wide": {1, 256}}
	names := []string{"wide"}
	for i := range 1000 {
		names = append(names, fmt.Sprint("q-", i))
	}
	seen := map[string]int{}
	for range 3 {
		turn := w.inTurn(names)
		partitions := 0
		for _, name := range turn {
			seen[name]++
			partitions += w.known[name].Latest()
		}
		if partitions > samplePartitions {
			t.Errorf("%d partitions in one look", partitions)
		}
	}
	redistest.Want(t, "queues seen in three looks", len(seen), len(names))
	few := NewWatcher(nil, "p", nil)
	redistest.Want(t, "who comes first", fmt.Sprint(few.inTurn([]string{"a", "b"}), few.inTurn([]string{"a", "b"})),
		"[a b] [b a]")
	redistest.Want(t, "nothing to look at", len(w.inTurn(nil)), 0)
	w.known["wider"] = lua.Counts{1, 256}
	redistest.Want(t, "at least one", len(NewWatcher(nil, "p", nil).inTurn([]string{"a"})), 1)
}

func TestWatcherSaysWhenTheServerIsAway(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	proxy := s.Proxy(t)
	c := proxy.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true })
	r.Fill(1)
	w := NewWatcher(c, r.Prefix, []string{r.Queue})
	if _, err := w.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	proxy.CutAll()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := w.Look(t.Context())
		return errors.Is(err, lua.ErrUnavailable), fmt.Sprint(err)
	})
	proxy.Refuse(false)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		all, err := w.Look(t.Context())
		return err == nil && len(all) == 1 && all[0].Entries == 1, fmt.Sprint(all, err)
	})
}
