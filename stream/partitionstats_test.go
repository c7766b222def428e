package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestStatsAddPartitionsUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("a", "b")
		r.grow(3)
		now, err := serverTime(t.Context(), r.c)
		if err != nil {
			t.Fatal(err)
		}
		at := func(d time.Duration) string { return fmt.Sprint(now.Add(d).UnixMilli()) }
		var entries []string
		for i := range 3 {
			p := r.part(i)
			p.kill("a", lua.ReasonDeadLetter, "broken", "dead")
			p.fill(2 + i) // of these b gets all, and the dead one
			entries = append(entries, p.take("a", "shared", 1)...)
			p.take("a", fmt.Sprint("own-", i), 1)
			p.do("ZADD", p.k.Due, at(time.Duration(3-i)*time.Hour), "later", at(-time.Duration(1+i)*time.Minute), "late")
			p.do("ZADD", p.k.Seen, at(time.Hour), "x")
		}
		st := r.stats()
		want(t, "partitions", st.Partitions, 3)
		want(t, "scheduled", st.Scheduled, int64(6))
		want(t, "overdue", st.Overdue, int64(3))
		if d := time.Duration(st.OldestOverdue); d < 3*time.Minute || d > 4*time.Minute {
			t.Errorf("oldest overdue: %s", d)
		}
		want(t, "next due", st.NextDue.UnixMilli(), now.Add(time.Hour).UnixMilli())
		want(t, "ready", st.Ready, int64(3+4+5))
		want(t, "entries", st.Entries, int64(3+4+5))
		want(t, "dead", st.Dead, int64(3))
		want(t, "windows", st.DedupWindows, int64(3))
		a, b := st.Groups[0], st.Groups[1]
		want(t, "groups", fmt.Sprint(len(st.Groups), a.Name, b.Name), "2ab")
		want(t, "lag of a", a.Lag, int64(0+1+2))
		want(t, "lag of b", b.Lag, int64(3+4+5))
		want(t, "pending of a", a.Pending, int64(6))
		want(t, "consumers of a", a.Consumers, int64(1+1+3)) // shared, the one of kill, and one each
		want(t, "dead of a", a.Dead, int64(3))
		want(t, "oldest pending", a.OldestPending.Entry+" "+a.OldestPending.ID, entries[0]+" m-0")
		for i, one := range st.ByPartition {
			want(t, "by partition", fmt.Sprint(one.Partition, one.Scheduled, one.Overdue, one.Ready, one.Entries, one.Pending, one.Dead),
				fmt.Sprint(i, 2, 1, 3+i, 3+i, 2, 1))
		}
		var consumers []string
		list, err := Consumers(t.Context(), r.c, r.prefix, r.queue, "a")
		for _, c := range list {
			consumers = append(consumers, fmt.Sprint(c.Name, " ", c.Pending))
		}
		slices.Sort(consumers)
		want(t, "consumers", fmt.Sprint(consumers, err), "[c 0 own-0 1 own-1 1 own-2 1 shared 3] <nil>")
	})
}

func TestStatsNameThePartitionsThatAreNotServed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("a", "b")
	r.grow(4)
	if w := r.stats().Warnings; len(w) > 0 {
		t.Errorf("warnings %q", w)
	}
	r.part(1).policy(map[string]string{"max_attempts": "3"})
	r.part(3).policy(map[string]string{"group:a:max_attempts": "3"})
	for i := range 4 {
		p := r.part(i)
		p.ready("m")
		p.take("b", "c", 1)
		if i != 2 {
			p.take("a", "c", 1)
		}
	}
	r.do("XGROUP", "DESTROY", r.part(1).k.Stream, "b")
	text := strings.Join(r.stats().Warnings, "\n")
	for _, w := range []string{
		"partitions 1, 3: another policy than partition 0: mend it with `duestream queue partitions " + r.queue + " 4`",
		`partition 1: group "b" does not exist there`, `partition 2: group "a" has consumers, but none there`,
	} {
		if !strings.Contains(text, w) {
			t.Errorf("no warning %q in\n%s", w, text)
		}
	}
	r.grow(4)
	want(t, "warnings after mending", len(r.stats().Warnings), 2) // b is behind in partition 1, and a in 2
}

func TestPendingOfAllPartitionsComesByAge(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("g")
		r.grow(3)
		var ids []string
		for n := range 30 {
			p := r.part(n % 3)
			id := fmt.Sprint("m-", n)
			p.do("XADD", p.k.Stream, fmt.Sprintf("%d-1", 1000+n), "id", id, "payload", "", "attempt", "1", "due_ms", "1")
			p.take("g", "c", 1)
			ids = append(ids, id)
		}
		for _, limit := range []int{7, 30, 100} {
			list, err := Pending(t.Context(), r.c, r.prefix, r.queue, "g", PendingFilter{}, limit)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "listed", len(list), min(limit, 30))
			for n, p := range list {
				want(t, "id", p.ID, ids[n])
				want(t, "partition", p.Partition, n%3)
			}
		}
		_, err := Pending(t.Context(), r.c, r.prefix, r.queue, "nobody", PendingFilter{}, 5)
		want(t, "no group anywhere", errors.Is(err, lua.ErrNoGroup), true)
		r.do("XGROUP", "DESTROY", r.part(1).k.Stream, "g")
		list, err := Pending(t.Context(), r.c, r.prefix, r.queue, "g", PendingFilter{}, 100)
		want(t, "group not everywhere", fmt.Sprint(len(list), err), "20 <nil>")
	})
}

// deadIn adds a letter to a partition at a time.
func (r *rig) deadIn(partition, ms int, id string) {
	r.t.Helper()
	p := r.part(partition)
	p.do("XADD", p.k.Dead, fmt.Sprintf("%d-7", ms), "id", id, "payload", "p", "attempt", "1", "group", "g", "reason", "dead_letter", "dead_ms", fmt.Sprint(ms))
}

func TestDeadLettersOfAllPartitionsAreOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("g")
		r.grow(3)
		for n := range 60 {
			r.deadIn([]int{0, 2, 2, 1, 0, 0}[n%6], 1000+n, fmt.Sprint("m-", n))
		}
		all := r.letters()
		want(t, "letters", len(all), 60)
		for n, l := range all {
			want(t, "oldest first", l.ID, fmt.Sprint("m-", n))
		}
		want(t, "name in partition 0", all[0].Letter, "1000-7")
		want(t, "name in partition 2", all[1].Letter, "2/1001-7")
		want(t, "name in partition 1", all[3].Letter, "1/1003-7")
		var newest []string
		for l, err := range r.deadLetters().List(t.Context(), r.queue, Filter{Newest: true, Limit: 3}) {
			newest = append(newest, fmt.Sprint(l.ID, err))
		}
		want(t, "newest", fmt.Sprint(newest), "[m-59<nil> m-58<nil> m-57<nil>]")
		n, err := r.deadLetters().Count(t.Context(), r.queue, Filter{})
		want(t, "count", fmt.Sprint(n, err), "60 <nil>")
		n, err = r.deadLetters().Count(t.Context(), r.queue, Filter{ID: "m-1?"})
		want(t, "count of some", fmt.Sprint(n, err), "10 <nil>")

		l, err := r.deadLetters().Show(t.Context(), r.queue, "2/1001-7")
		want(t, "shown", fmt.Sprint(l.ID, " ", l.Letter, " ", err), "m-1 2/1001-7 <nil>")
		for _, name := range []string{"1/1001-7", "1001-7", "9/1-1"} {
			if _, err := r.deadLetters().Show(t.Context(), r.queue, name); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, name := range []string{"0/1-1", "01/1-1", "256/1-1", "/1-1", "-1/1-1", "1/2/1-1", "1/x"} {
			if _, err := r.deadLetters().Show(t.Context(), r.queue, name); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := r.deadLetters().Purge(t.Context(), r.queue, []string{name}); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("purge of %s: %v", name, err)
			}
		}

		got, err := r.deadLetters().Redrive(t.Context(), r.queue, []string{"1000-7", "2/1001-7", "2/1000-7"}, RedriveOptions{})
		want(t, "redriven by name", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 2, Gone: 1}, nil))
		got, err = r.deadLetters().RedriveMatching(t.Context(), r.queue, Filter{ID: "m-1?"}, RedriveOptions{})
		want(t, "redriven by filter", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 10}, nil))
		for i, n := range []int64{1 + 6, 1, 1 + 3} { // m-10 … m-19, each where it died
			want(t, fmt.Sprint("scheduled in ", i), r.number("ZCARD", r.part(i).k.Due), n)
		}
		n, err = r.deadLetters().Purge(t.Context(), r.queue, []string{"1/1003-7", "1004-7", "1/1003-7", "2/1004-7"})
		want(t, "purged by name", fmt.Sprint(n, err), "2 <nil>")
		n, err = r.deadLetters().PurgeMatching(t.Context(), r.queue, Filter{ID: "m-2?"})
		want(t, "purged by filter", fmt.Sprint(n, err), "10 <nil>")
		n, err = r.deadLetters().PurgeMatching(t.Context(), r.queue, Filter{OlderThan: time.Hour})
		want(t, "purged by age", fmt.Sprint(n, err), "36 <nil>")
		want(t, "left", len(r.letters()), 0)
	})
}

func TestLocateLooksWhereverTheIDMayBe(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.grow(3)
	counts := r.grow(8)
	id, candidates := "", []int(nil)
	for n := 0; len(candidates) < 3; n++ {
		id = fmt.Sprint("m-", n)
		candidates = counts.Candidates(id)
	}
	for _, i := range candidates {
		p := r.part(i)
		p.do("ZADD", p.k.Due, "9999999999999", id)
		places := r.locate(id)
		want(t, "places", len(places), 1)
		want(t, "partition", places[0].Partition, i)
		p.do("ZREM", p.k.Due, id)
	}
	last := candidates[0]
	r.deadIn(last, 1000, id)
	want(t, "letter", r.locate(id)[0].Letter, letterName(last, "1000-7"))
	if _, err := Locate(context.WithoutCancel(t.Context()), r.c, r.prefix, r.queue, "nowhere"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
