package sizes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// The stats of a queue must add up the figures of its partitions, and take the oldest and the next of all of them.
func TestStatsAddPartitionsUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.grow(3)
		now, err := view.ServerTime(t.Context(), r.Client)
		if err != nil {
			t.Fatal(err)
		}
		at := func(d time.Duration) string { return fmt.Sprint(now.Add(d).UnixMilli()) }
		var entries []string
		for i := range 3 {
			p := r.Part(i)
			p.Kill("a", lua.ReasonDeadLetter, "broken", "dead")
			p.Fill(2 + i) // b has not read these, nor the message that died for a
			entries = append(entries, p.Take("a", "shared", 1)...)
			p.Take("a", fmt.Sprint("own-", i), 1)
			p.Do("ZADD", p.Keys.Due, at(time.Duration(3-i)*time.Hour), "later", at(-time.Duration(1+i)*time.Minute), "late")
			p.Do("ZADD", p.Keys.Seen, at(time.Hour), "x")
		}
		st := r.stats()
		redistest.Want(t, "partitions", st.Partitions, 3)
		redistest.Want(t, "scheduled", st.Scheduled, int64(6))
		redistest.Want(t, "overdue", st.Overdue, int64(3))
		if d := time.Duration(st.OldestOverdue); d < 3*time.Minute || d > 4*time.Minute {
			t.Errorf("oldest overdue: %s", d)
		}
		redistest.Want(t, "next due", st.NextDue.UnixMilli(), now.Add(time.Hour).UnixMilli())
		redistest.Want(t, "ready", st.Ready, int64(3+4+5))
		redistest.Want(t, "entries", st.Entries, int64(3+4+5))
		redistest.Want(t, "dead", st.Dead, int64(3))
		redistest.Want(t, "windows", st.DedupWindows, int64(3))
		a, b := st.Groups[0], st.Groups[1]
		redistest.Want(t, "groups", fmt.Sprint(len(st.Groups), a.Name, b.Name), "2ab")
		redistest.Want(t, "lag of a", a.Lag, int64(0+1+2))
		redistest.Want(t, "lag of b", b.Lag, int64(3+4+5))
		redistest.Want(t, "pending of a", a.Pending, int64(6))
		// "shared", the consumer "c" of Kill, and one in each partition.
		redistest.Want(t, "consumers of a", a.Consumers, int64(1+1+3))
		redistest.Want(t, "dead of a", a.Dead, int64(3))
		redistest.Want(t, "oldest pending", a.OldestPending.Entry+" "+a.OldestPending.ID, entries[0]+" m-0")
		for i, one := range st.ByPartition {
			redistest.Want(t, "by partition", fmt.Sprint(one.Partition, one.Scheduled, one.Overdue, one.Ready, one.Entries,
				one.Pending, one.Dead),
				fmt.Sprint(i, 2, 1, 3+i, 3+i, 2, 1))
		}
		var consumers []string
		list, err := Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "a")
		for _, c := range list {
			consumers = append(consumers, fmt.Sprint(c.Consumer, " ", c.Pending))
		}
		redistest.Want(t, "consumers", fmt.Sprint(consumers, err), "[c 0 own-0 1 own-1 1 own-2 1 shared 3] <nil>")
	})
}

// Stats must warn of each partition that has another policy than partition 0, that lacks a group, or that no consumer
// of a group has read.
func TestStatsNameThePartitionsThatAreNotServed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("a", "b")
	r.grow(4)
	if w := r.stats().Warnings; len(w) > 0 {
		t.Errorf("warnings %q", w)
	}
	r.Part(1).Policy(map[string]string{"max_attempts": "3"})
	r.Part(3).Policy(map[string]string{"group:a:max_attempts": "3"})
	for i := range 4 {
		p := r.Part(i)
		p.Ready("m")
		p.Take("b", "c", 1)
		if i != 2 {
			p.Take("a", "c", 1)
		}
	}
	r.Do("XGROUP", "DESTROY", r.Part(1).Keys.Stream, "b")
	text := strings.Join(r.stats().Warnings, "\n")
	for _, w := range []string{
		"partitions 1, 3: another policy than partition 0: mend it with `duestream queue partitions " + r.Queue + " 4`",
		`partition 1: group "b" does not exist there`, `partition 2: no consumer of group "a" has read there yet`,
	} {
		if !strings.Contains(text, w) {
			t.Errorf("no warning %q in\n%s", w, text)
		}
	}
	r.grow(4)
	// Nobody has read for b in partition 1, nor for a in partition 2.
	redistest.Want(t, "warnings after mending", len(r.stats().Warnings), 2)
}

// A worker whose only slot is in use in one partition has not read another partition yet. Regression: Stats said that
// the group has no consumer there.
func TestPartitionThatWaitsForASlotIsNotCalledUnserved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g")
		r.grow(2)
		for i := range 2 {
			r.Part(i).Ready("m")
		}
		entries := r.Part(0).Take("g", "busy", 1)
		wantWarning := func(want string) {
			t.Helper()
			if w := r.stats().Warnings; len(w) != 1 || !strings.HasPrefix(w[0], want) {
				t.Errorf("warnings %q, want %q", w, want)
			}
		}
		wantWarning(`partition 1: no consumer of group "g" has read there yet, and entries wait for it: all that are alive hold`)
		r.Do("XACK", r.Part(0).Keys.Stream, "g", entries[0])
		wantWarning(`partition 1: group "g" has consumers, but none there`)
	})
}

// The pending entries of all partitions must be listed together, oldest first. It is an error only if no partition has
// the group.
func TestPendingOfAllPartitionsComesByAge(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g")
		r.grow(3)
		var ids []string
		for n := range 30 {
			p := r.Part(n % 3)
			id := fmt.Sprint("m-", n)
			p.Do("XADD", p.Keys.Stream, fmt.Sprintf("%d-1", 1000+n), "id", id, "payload", "", "attempt", "1", "due_ms", "1")
			p.Take("g", "c", 1)
			ids = append(ids, id)
		}
		for _, limit := range []int{7, 30, 100} {
			list, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "g", PendingFilter{}, limit)
			if err != nil {
				t.Fatal(err)
			}
			redistest.Want(t, "listed", len(list), min(limit, 30))
			for n, p := range list {
				redistest.Want(t, "id", p.ID, ids[n])
				redistest.Want(t, "partition", p.Partition, n%3)
			}
		}
		_, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "nobody", PendingFilter{}, 5)
		redistest.Want(t, "no group anywhere", errors.Is(err, lua.ErrNoGroup), true)
		r.Do("XGROUP", "DESTROY", r.Part(1).Keys.Stream, "g")
		list, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "g", PendingFilter{}, 100)
		redistest.Want(t, "group not everywhere", fmt.Sprint(len(list), err), "20 <nil>")
	})
}
