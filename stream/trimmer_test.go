package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestTrimFreesWhatPlainXACKLeft(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("one", "two")
		r.fill(2500)
		r.xack("one", r.take("one", "c", 2500)...)
		want(t, "freed before the second group", r.trim().Freed, 0)
		ids := r.take("two", "c", 2500)
		r.xack("two", ids[:2400]...)
		want(t, "freed up to the oldest pending", r.trim().Freed, 2400)
		r.xack("two", ids[2400:]...)
		want(t, "freed", r.trim().Freed, 100)
		want(t, "length", r.length(r.k.Stream), int64(0))
	})
}

func TestTrimFreesBehindAnEntryThatStaysPending(t *testing.T) {
	t.Parallel()
	for _, groups := range [][]string{{"one"}, {"one", "two"}} {
		t.Run(fmt.Sprint(len(groups), " groups"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.groups(groups...)
			const n = 20_001
			r.fill(n)
			for i, g := range groups {
				ids := r.take(g, "c", n)
				want(t, "taken", len(ids), n)
				if i == 0 {
					ids = ids[1:] // the first one stays pending
				}
				r.xack(g, ids...)
			}
			result := r.trim()
			want(t, "freed", result.Freed, n-1)
			want(t, "length", r.length(r.k.Stream), int64(1))
		})
	}
}

func TestTrimSparesWhatAnyGroupStillNeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("one", "two", "late")
	r.fill(300)
	one, two := r.take("one", "c", 300), r.take("two", "c", 300)
	r.xack("one", one...)
	for i, id := range two {
		if i%3 != 0 {
			r.xack("two", id)
		}
	}
	r.xack("late", r.take("late", "c", 150)...)
	want(t, "freed", r.trim().Freed, 100) // of the 150 that all were given, the two thirds that nobody holds
	want(t, "length", r.length(r.k.Stream), int64(200))
	want(t, "pending", r.pending("two"), int64(100))
}

// With more than 40 groups, a step of 100 entries was more than one call frees, and the sweep freed nothing at all.
func TestSweepServesManyGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 60 {
		r.groups(fmt.Sprint("g", i))
	}
	r.fill(400)
	for i := range 60 {
		g := fmt.Sprint("g", i)
		ids := r.take(g, "c", 400)
		r.xack(g, ids[1:]...)
	}
	want(t, "freed", r.trim().Freed, 399)
}

func TestWithoutGroupsNothingIsTrimmed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.fill(10)
	result := r.trim()
	want(t, "freed", result.Freed, 0)
	want(t, "groups", result.Groups, 0)
	want(t, "length", r.length(r.k.Stream), int64(10))
	// A group created at 0 gets all of it.
	r.groups("g")
	want(t, "delivered", len(r.take("g", "c", 100)), 10)
}

func TestGroupCreatedAtDollarForgetsWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.fill(10)
	r.do("XGROUP", "CREATE", r.k.Stream, "g", "$")
	want(t, "freed", r.trim().Freed, 10)
	r.ready("new")
	want(t, "freed", r.trim().Freed, 0)
	want(t, "delivered", len(r.take("g", "c", 100)), 1)
}

func TestTrimRemovesEndedDedupWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	args := []string{"ZADD", r.k.Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "open"}
	for i := range 2500 {
		args = append(args, "1000", fmt.Sprint("ended-", i))
	}
	r.do(args...)
	want(t, "windows", r.trim().Windows, 2500)
	want(t, "left", r.number("ZCARD", r.k.Seen), int64(1))
}

func TestFruitlessSweepRestsAndWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.fill(20)
	ids := r.take("g", "c", 20)
	trimmer := NewTrimmer(r.c, r.prefix, r.queue)
	pass := func() int {
		t.Helper()
		result, err := trimmer.Trim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return result.Freed
	}
	want(t, "freed", pass(), 0)
	r.xack("g", ids[5:]...)
	want(t, "freed while the sweep rests", pass(), 0)
	trimmer.wake()
	want(t, "freed after waking", pass(), 15)
	for expected := minSweepWait; expected <= maxSweepWait; expected *= 2 {
		trimmer.sweepFrom = time.Time{}
		want(t, "freed", pass(), 0)
		want(t, "rest", trimmer.sweepWait, expected)
	}
	r.xack("g", ids[0])
	want(t, "freed from the head while the sweep rests", pass(), 1)
}

func TestOrphansGoOnlyAfterTheyWereConfirmed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("HSET", r.k.Payload, "orphan", "p", "early", "p", "kept", "p")
	r.do("HSET", r.k.Meta, "orphan", "{}")
	r.do("ZADD", r.k.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "kept")
	trimmer := NewTrimmer(r.c, r.prefix, r.queue)
	sweep := func(at time.Time) (deleted, waiting int) {
		t.Helper()
		deleted, waiting, err := trimmer.sweepOrphans(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return deleted, waiting
	}
	now := time.Now()
	deleted, waiting := sweep(now)
	want(t, "deleted at first sight", deleted, 0)
	want(t, "waiting", waiting, 3)
	deleted, _ = sweep(now.Add(orphanConfirm - time.Second))
	want(t, "deleted too early", deleted, 0)
	// The producer of "early" was only slow.
	r.do("ZADD", r.k.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "early")
	deleted, waiting = sweep(now.Add(orphanConfirm))
	want(t, "deleted", deleted, 2)
	want(t, "waiting", waiting, 0)
	want(t, "payloads", r.number("HLEN", r.k.Payload), int64(2))
	want(t, "metas", r.number("HLEN", r.k.Meta), int64(0))
}

// A body was noted as an orphan, got its member, was delivered, and came again under the same name; 12 s later it was deleted, because the note
// was a minute old. A candidate that is none at one look leaves the list.
func TestABodyThatGotItsMemberIsNoOldOrphan(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	trimmer, now := NewTrimmer(r.c, r.prefix, r.queue), time.Now()
	sweep := func(after time.Duration, want int) {
		t.Helper()
		deleted, _, err := trimmer.sweepOrphans(t.Context(), now.Add(after))
		if err != nil || deleted != want {
			t.Fatalf("deleted %d at %s, want %d (%v)", deleted, after, want, err)
		}
	}
	write := func() { r.do("HSET", r.k.Payload, "taken", "p", "drained", "p", "other", "p", "left", "p") }
	write()
	sweep(0, 0)
	r.do("ZADD", r.k.Due, "5", "taken") // seen with its member
	r.do("HDEL", r.k.Payload, "drained")
	sweep(20*time.Second, 0)
	r.do("ZREM", r.k.Due, "taken")
	r.do("HDEL", r.k.Payload, "other") // its member came and went between two looks
	r.do("HSET", r.k.Payload, "drained", "p", "other", "another")
	sweep(60*time.Second, 1)
	want(t, "bodies", r.number("HLEN", r.k.Payload), int64(3))
	sweep(79*time.Second, 0)
	sweep(119*time.Second, 0)
	sweep(120*time.Second, 3)
}

// A repair looks while it waits, too.
func TestARepairKeepsABodyThatGotItsMember(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("HSET", r.k.Payload, "taken", "p", "other", "p", "left", "p", "late", "p")
	waits := 0
	deleted, err := DeleteOrphans(t.Context(), r.c, r.k, []string{"taken", "other", "left", "late", "never there"}, nil, orphanConfirm, func(d time.Duration) error {
		switch waits++; waits {
		case 1:
			r.do("ZADD", r.k.Due, "5", "taken")
			r.do("HSET", r.k.Payload, "other", "another")
		case 2:
			r.do("ZREM", r.k.Due, "taken")
		case orphanLooks:
			r.do("ZADD", r.k.Due, "5", "late")
		}
		want(t, "wait", d, orphanConfirm/orphanLooks)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "waits", waits, orphanLooks)
	want(t, "deleted", deleted, 1)
	want(t, "bodies", r.number("HLEN", r.k.Payload), int64(3))
}

func TestOrphanSweepIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 30 {
		r.do("HSET", r.k.Payload, fmt.Sprint("o", i), string(make([]byte, 200_000)))
	}
	trimmer, now, deleted := NewTrimmer(r.c, r.prefix, r.queue), time.Now(), 0
	for range 10 {
		n, _, err := trimmer.sweepOrphans(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		deleted += n
		now = now.Add(orphanConfirm)
	}
	want(t, "deleted", deleted, 30)
}
