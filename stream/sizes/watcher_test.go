package sizes

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

func (r *rig) newWatcher(queues ...string) *Watcher { return NewWatcher(r.Client, r.Prefix, queues) }

// sample looks once, and returns the sample of the only queue.
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

// A Watcher must tell how long entries have waited for a group, also if they are older than the ten newest entries. It
// must agree with Stats. Regression: the age of such entries was the time since the first look, so a page said that
// entries had waited for 23 seconds when they had waited for 13 minutes.
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
			at := now.Add(time.Duration(i-100) * time.Second).UnixMilli() // from 100 s ago to 81 s ago
			r.Do("XADD", r.Keys.Stream, fmt.Sprintf("%d-1", at), "id", "a", "payload", "")
		}
		r.Take("dead", "c", 1)
		r.Take("slow", "c", 12)
		r.Take("done", "c", 20)
		r.Do("HSET", r.Keys.Policy, policy.SettingVisibility, "60000", "group:slow:visibility_ms", "7000")
		// ages rounds the waiting time to ten seconds, so that the time of the test itself does not matter.
		ages := func(waiting, unread *view.Millis) string {
			if waiting == nil || unread == nil {
				return fmt.Sprint(waiting, unread)
			}
			return fmt.Sprintf("%.0f0 s, unread for less: %t", time.Duration(*waiting).Seconds()/10,
				*unread < view.Millis(time.Minute))
		}
		w := r.newWatcher(r.Queue)
		r.sample(w)
		sample := r.sample(w)
		want := []string{"100 s, unread for less: true", "<nil> <nil>", "90 s, unread for less: true"}
		for i, g := range r.stats().Groups {
			redistest.Want(t, g.Name+" in stats", ages(g.Waiting, g.Unread), want[i])
			redistest.Want(t, g.Name+" in a sample", ages(sample.Groups[i].Waiting, sample.Groups[i].Unread), want[i])
			redistest.Want(t, g.Name+" is a lower bound", g.WaitingApprox || sample.Groups[i].WaitingApprox, false)
		}
		redistest.Want(t, "visibility", fmt.Sprint(sample.Groups[0].Visibility, sample.Groups[2].Visibility), "1m0s 7s")
		for _, group := range []string{"dead", "slow"} {
			r.Do("XGROUP", "DELCONSUMER", r.Keys.Stream, group, "c")
		}
		for _, g := range []GroupStats{r.stats().Groups[0], r.stats().Groups[2]} {
			redistest.Want(t, g.Name+": unread without consumers", *g.Unread, *g.Waiting)
		}
		backlogs := w.caches[r.Queue].backlogs
		backlogs["dead"] = backlogSeen{backlogs["dead"].last, now.Add(-time.Hour), true}
		redistest.Want(t, "after an hour", time.Duration(*r.sample(w).Groups[0].Waiting).Round(time.Hour), time.Hour)
		r.Take("dead", "c", 1)
		redistest.Want(t, "after the group has read on", ages(r.sample(w).Groups[0].Waiting, new(view.Millis)), want[0])
	})
}

// A look reads the oldest entries of a few groups only. The other groups have a lower bound until their turn. After its
// turn a group is not read again while its position stays the same.
func TestTheOldestEntriesOfManyBacklogsAreReadInTurns(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var names []string
	for i := range oldestAsks + 5 {
		names = append(names, fmt.Sprintf("g-%02d", i))
	}
	r.Groups(names...)
	now, err := view.ServerTime(t.Context(), r.Client)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		r.Do("XADD", r.Keys.Stream, fmt.Sprintf("%d-1", now.UnixMilli()-int64(3600_000-i)), "id", "a", "payload", "")
	}
	w := r.newWatcher(r.Queue)
	for look, wanted := range []int{5, 0, 0} {
		before, bounds := s.Calls(t)["xrange"], 0
		for _, g := range r.sample(w).Groups {
			if g.WaitingApprox {
				bounds++
			}
			if *g.Waiting < view.Millis(59*time.Minute) {
				t.Errorf("%s waits for %v", g.Name, *g.Waiting)
			}
		}
		redistest.Want(t, fmt.Sprint("lower bounds at look ", look), bounds, wanted)
		read := s.Calls(t)["xrange"] - before
		redistest.Want(t, fmt.Sprint("entries read at look ", look), read, []int{oldestAsks, 5, 0}[look])
	}
}

// A sample reads less than Stats, and must give the same figures.
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
			if _, err := lua.Retry(t.Context(), r.Client, p.Keys, "a", policy.Default().Attempts(), []lua.Failure{
				{Held: lua.Held{Entry: ids[3]}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"},
			}); err != nil {
				t.Fatal(err)
			}
			p.Take("b", fmt.Sprint("own-", i), 3+i)
			p.Do("ZADD", p.Keys.Due, fmt.Sprint(now.Add(-time.Minute).UnixMilli()), "late")
		}
		r.Do("HSET", r.Keys.Policy, policy.SettingHeld, "1")
		st, g := r.stats(), r.sample(r.newWatcher(r.Queue))
		redistest.Want(t, "queue", fmt.Sprint(g.Queue, g.Partitions, g.Held, g.Scheduled, g.Overdue, g.Ready, g.Entries,
			g.Dead),
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

// Two looks must give the rates between them, and each look the lateness of the newest entries.
func TestWatcherTellsRatesAndLateness(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.Fill(3) // before the first look, so none of it may count
		r.Xack("a", r.Take("a", "c", 3)...)
		w := r.newWatcher(r.Queue)
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
		for _, entry := range r.Take("b", "c", 6)[3:] { // b goes on holding the first three
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
		// Between the looks 15 messages came in, 5 became ready, and 3 were freed. Group a ended 4 deliveries, and b
		// 3. All rates are divided by that of one ready message, because the time between the looks is not known.
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
			t.Errorf("%+v", g) // the lateness must stay, and no rate compares two different streams
		}
	})
}

// newestEntriesMost is the greatest number of newest entries that a look reads: see glance.lua.
const newestEntriesMost = 10

// A look at many queues must send only a few commands: one for the registry, one for the defaults if a group holds
// entries, and one for every 64 partitions. Inside, the script must need only a few commands for each queue.
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
	w, m := r.newWatcher(), s.Monitor(t)
	for look := range 2 {
		m.Reset()
		before := s.Calls(t)
		start := time.Now()
		all, err := w.Look(t.Context())
		if err != nil || len(all) != queues {
			t.Fatal(len(all), err)
		}
		took, inside := time.Since(start), 0
		for command, n := range s.Calls(t) {
			inside += n - before[command]
		}
		commands := m.Asked()
		t.Logf("%v in %s, with %d commands inside", commands, took.Round(time.Millisecond), inside)
		delete(commands, "INFO") // of Calls
		want := "map[EVALSHA:2 HGETALL:2]"
		if look == 0 { // the server does not know the script, and the watcher does not know the backlogs
			want = "map[EVAL:1 EVALSHA:2 HGETALL:2 XRANGE:16]" // the oldest entries of backlogs
		}
		redistest.Want(t, "commands", fmt.Sprint(commands), want)
		// Each queue needs 8 for its sizes, settings and groups, and one for its newest entry. Its one group with pending
		// entries needs one for the oldest entry, one for the notes of deliveries, and one for the consumers.
		if inside > 20+queues*(8+1+3) {
			t.Errorf("%d commands inside", inside)
		}
	}
}

// A queue with a key of another type must have its error in its sample, and must not hide the other queues.
func TestAQueueThatCannotBeLookedAtIsNamedAndTheOthersAreSeen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		odd := lua.NewKeys(r.Prefix, "odd")
		r.Do("SET", odd.Due, "x")
		r.Fill(2)
		w := r.newWatcher("odd", r.Queue)
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

// Once a Watcher knows the size of the entries, a look must read no more bytes than its budget: a few large entries, or
// several small ones of each queue.
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
	w := r.newWatcher(append(large, "small")...)
	asked, late := 0, map[string]bool{}
	for look := range 8 {
		before := s.Calls(t)["xrevrange"]
		all, err := w.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Calls(t)["xrevrange"] - before; look > 0 {
			asked += n
			if n > 2+newestEntriesMost { // two queues with an entry of 1 MiB, and ten entries of the queue with small ones
				t.Errorf("look %d reads %d of the newest entries", look, n)
			}
		}
		for _, g := range all {
			late[g.Queue] = late[g.Queue] || g.Late != nil
		}
	}
	for _, queue := range w.queues {
		if !late[queue] {
			t.Errorf("no lateness of %s", queue)
		}
	}
	redistest.Want(t, "entries are read after the first look", asked > 0, true)
}

// A look reads a limited number of partitions. In a few looks each of a thousand queues must have its turn.
func TestManyQueuesTakeTurns(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, "p", nil)
	w.registry = map[string]lua.Counts{"wide": {1, 256}}
	names := []string{"wide"}
	for i := range 1000 {
		names = append(names, fmt.Sprint("q-", i))
	}
	seen := map[string]int{}
	for range 3 {
		turn := w.nextQueues(names)
		partitions := 0
		for _, name := range turn {
			seen[name]++
			partitions += w.registry[name].Latest()
		}
		if partitions > watchPartitions {
			t.Errorf("%d partitions in one look", partitions)
		}
	}
	redistest.Want(t, "queues seen in three looks", len(seen), len(names))
	few := NewWatcher(nil, "p", nil)
	redistest.Want(t, "queues of two looks",
		fmt.Sprint(few.nextQueues([]string{"a", "b"}), few.nextQueues([]string{"a", "b"})),
		"[a b] [b a]")
	redistest.Want(t, "queues of none", len(w.nextQueues(nil)), 0)
	w.registry["wider"] = lua.Counts{1, 256}
	redistest.Want(t, "queues of one", len(NewWatcher(nil, "p", nil).nextQueues([]string{"a"})), 1)
}

// A look must fail with ErrUnavailable while the server is away, and work again afterwards.
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

// A due time before 2001 means "now", so it tells nothing about lateness. Regression: a bare ZADD with the score 0 or
// with seconds made a queue 56 years late.
func TestADueTimeThatMeansNowIsNotLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Policy, policy.SettingHeld, "1")
	r.Do("ZADD", r.Keys.Due, "0", "zero", "1700000000", "seconds")
	r.Do("XADD", r.Keys.Stream, "*", "id", "zero", "due_ms", "0", "attempt", "1")
	r.Do("XADD", r.Keys.Stream, "*", "id", "seconds", "due_ms", "1700000000", "attempt", "1")
	g, st := r.sample(r.newWatcher(r.Queue)), r.stats()
	redistest.Want(t, "overdue", g.Overdue, 2)
	redistest.Want(t, "times", fmt.Sprint(g.Late, g.Behind, g.Stalled, st.Behind, st.Stalled), "<nil> 0s 0s 0s 0s")
}
