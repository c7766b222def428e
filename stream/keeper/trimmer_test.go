package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// XACK alone frees no entry. A pass must free the entries that all groups have acknowledged.
func TestTrimFreesWhatPlainXACKLeft(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("one", "two")
		r.Fill(2500)
		r.Xack("one", r.Take("one", "c", 2500)...)
		redistest.Want(t, "freed before the second group", r.trim().Freed, 0)
		ids := r.Take("two", "c", 2500)
		r.Xack("two", ids[:2400]...)
		redistest.Want(t, "freed up to the oldest pending entry", r.trim().Freed, 2400)
		r.Xack("two", ids[2400:]...)
		redistest.Want(t, "freed", r.trim().Freed, 100)
		redistest.Want(t, "length", r.Length(r.Keys.Stream), int64(0))
	})
}

// One entry that stays pending for long must not keep all later entries in the stream.
func TestTrimFreesBehindAnEntryThatStaysPending(t *testing.T) {
	t.Parallel()
	for _, groups := range [][]string{{"one"}, {"one", "two"}} {
		t.Run(fmt.Sprint(len(groups), " groups"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.Groups(groups...)
			const n = 20_001
			r.Fill(n)
			for i, g := range groups {
				ids := r.Take(g, "c", n)
				redistest.Want(t, "taken", len(ids), n)
				if i == 0 {
					ids = ids[1:] // the first one stays pending
				}
				r.Xack(g, ids...)
			}
			result := r.trim()
			redistest.Want(t, "freed", result.Freed, n-1)
			redistest.Want(t, "length", r.Length(r.Keys.Stream), int64(1))
		})
	}
}

// An entry that any group has not read, or still holds, must stay.
func TestTrimSparesWhatAnyGroupStillNeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("one", "two", "late")
	r.Fill(300)
	one, two := r.Take("one", "c", 300), r.Take("two", "c", 300)
	r.Xack("one", one...)
	for i, id := range two {
		if i%3 != 0 {
			r.Xack("two", id)
		}
	}
	r.Xack("late", r.Take("late", "c", 150)...)
	redistest.Want(t, "freed", r.trim().Freed, 100) // 150 were delivered to all groups, and "two" holds a third of them
	redistest.Want(t, "length", r.Length(r.Keys.Stream), int64(200))
	redistest.Want(t, "pending", r.Pending("two"), int64(100))
}

// Regression: with more than 40 groups, a step of 100 entries exceeded the limit of one call, and the sweep freed
// nothing.
func TestSweepServesManyGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 60 {
		r.Groups(fmt.Sprint("g", i))
	}
	r.Fill(400)
	for i := range 60 {
		g := fmt.Sprint("g", i)
		ids := r.Take(g, "c", 400)
		r.Xack(g, ids[1:]...)
	}
	redistest.Want(t, "freed", r.trim().Freed, 399)
}

// A stream without groups must stay, because a group that is created later is to get all entries.
func TestWithoutGroupsNothingIsTrimmed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Fill(10)
	result := r.trim()
	redistest.Want(t, "freed", result.Freed, 0)
	redistest.Want(t, "groups", result.Groups, 0)
	redistest.Want(t, "length", r.Length(r.Keys.Stream), int64(10))
	// A group created at 0 gets all entries.
	r.Groups("g")
	redistest.Want(t, "delivered", len(r.Take("g", "c", 100)), 10)
}

// A group that is created at "$" does not get the entries that are there, so they must be freed.
func TestGroupCreatedAtDollarForgetsWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Fill(10)
	r.Do("XGROUP", "CREATE", r.Keys.Stream, "g", "$")
	redistest.Want(t, "freed", r.trim().Freed, 10)
	r.Ready("new")
	redistest.Want(t, "freed", r.trim().Freed, 0)
	redistest.Want(t, "delivered", len(r.Take("g", "c", 100)), 1)
}

// One pass must remove all dedup windows that have ended, and no open one.
func TestTrimRemovesEndedDedupWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	args := []string{"ZADD", r.Keys.Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "open"}
	for i := range 2500 {
		args = append(args, "1000", fmt.Sprint("ended-", i))
	}
	r.Do(args...)
	redistest.Want(t, "windows", r.trim().Windows, 2500)
	redistest.Want(t, "left", r.Number("ZCARD", r.Keys.Seen), int64(1))
}

// The sweep looks for entries to free behind a pending one. If it finds none, it must rest, for a time that doubles up
// to maxSweepWait, until wake is called. Entries at the head of the stream are freed without the sweep.
func TestFruitlessSweepRestsAndWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(20)
	ids := r.Take("g", "c", 20)
	trimmer := NewTrimmer(r.Client, r.Prefix, r.Queue)
	pass := func() int {
		t.Helper()
		result, err := trimmer.Trim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return result.Freed
	}
	redistest.Want(t, "freed", pass(), 0)
	r.Xack("g", ids[5:]...)
	redistest.Want(t, "freed while the sweep rests", pass(), 0)
	trimmer.wake()
	redistest.Want(t, "freed after waking", pass(), 15)
	for expected := minSweepWait; expected <= maxSweepWait; expected *= 2 {
		trimmer.sweepFrom = time.Time{}
		redistest.Want(t, "freed", pass(), 0)
		redistest.Want(t, "rest", trimmer.sweepWait, expected)
	}
	r.Xack("g", ids[0])
	redistest.Want(t, "freed from the head while the sweep rests", pass(), 1)
}

// A body without a member of the schedule must be deleted only after orphanConfirm, because its producer may be slow.
func TestOrphansGoOnlyAfterTheyWereConfirmed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Payload, "orphan", "p", "early", "p", "kept", "p")
	r.Do("HSET", r.Keys.Meta, "orphan", "{}")
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "kept")
	trimmer := NewTrimmer(r.Client, r.Prefix, r.Queue)
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
	redistest.Want(t, "deleted at first sight", deleted, 0)
	redistest.Want(t, "waiting", waiting, 3)
	deleted, _ = sweep(now.Add(orphanConfirm - time.Second))
	redistest.Want(t, "deleted too early", deleted, 0)
	// The producer of "early" was only slow.
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "early")
	deleted, waiting = sweep(now.Add(orphanConfirm))
	redistest.Want(t, "deleted", deleted, 2)
	redistest.Want(t, "waiting", waiting, 0)
	redistest.Want(t, "payloads", r.Number("HLEN", r.Keys.Payload), int64(2))
	redistest.Want(t, "metas", r.Number("HLEN", r.Keys.Meta), int64(0))
}

// A possible orphan must leave the list at the first look at which it is no orphan. Regression: a body was noted as an
// orphan, got its member, was delivered, and came again under the same name. It was deleted 12 s later, because the
// note was a minute old.
func TestABodyThatGotItsMemberIsNoOldOrphan(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	trimmer, now := NewTrimmer(r.Client, r.Prefix, r.Queue), time.Now()
	sweep := func(after time.Duration, want int) {
		t.Helper()
		deleted, _, err := trimmer.sweepOrphans(t.Context(), now.Add(after))
		if err != nil || deleted != want {
			t.Fatalf("deleted %d at %s, want %d (%v)", deleted, after, want, err)
		}
	}
	write := func() { r.Do("HSET", r.Keys.Payload, "taken", "p", "drained", "p", "other", "p", "left", "p") }
	write()
	sweep(0, 0)
	r.Do("ZADD", r.Keys.Due, "5", "taken") // the next look sees the member
	r.Do("HDEL", r.Keys.Payload, "drained")
	sweep(20*time.Second, 0)
	r.Do("ZREM", r.Keys.Due, "taken")
	r.Do("HDEL", r.Keys.Payload, "other") // as if its member had come and gone between two looks
	r.Do("HSET", r.Keys.Payload, "drained", "p", "other", "another")
	sweep(60*time.Second, 1) // "left" was an orphan at each look for a minute
	redistest.Want(t, "bodies", r.Number("HLEN", r.Keys.Payload), int64(3))
	sweep(79*time.Second, 0)
	sweep(119*time.Second, 0)
	sweep(120*time.Second, 3) // the others a minute after they came again
}

// DeleteOrphans, which an operator calls to repair a queue, must check several times while it waits. A body that has
// got its member meanwhile, or was written again, stays.
func TestARepairKeepsABodyThatGotItsMember(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Payload, "taken", "p", "other", "p", "left", "p", "late", "p")
	waits := 0
	deleted, err := DeleteOrphans(t.Context(), r.Client, r.Keys, []string{"taken", "other", "left", "late", "never there"}, nil,
		orphanConfirm, func(d time.Duration) error {
			switch waits++; waits {
			case 1:
				r.Do("ZADD", r.Keys.Due, "5", "taken")
				r.Do("HSET", r.Keys.Payload, "other", "another")
			case 2:
				r.Do("ZREM", r.Keys.Due, "taken")
			case orphanChecks:
				r.Do("ZADD", r.Keys.Due, "5", "late")
			}
			redistest.Want(t, "wait", d, orphanConfirm/orphanChecks)
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "waits", waits, orphanChecks)
	redistest.Want(t, "deleted", deleted, 1)
	redistest.Want(t, "bodies", r.Number("HLEN", r.Keys.Payload), int64(3))
}

// Ten calls must delete 6 MB of orphans, although one call deletes only a limited number of bytes.
func TestOrphanSweepIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 30 {
		r.Do("HSET", r.Keys.Payload, fmt.Sprint("o", i), string(make([]byte, 200_000)))
	}
	trimmer, now, deleted := NewTrimmer(r.Client, r.Prefix, r.Queue), time.Now(), 0
	for range 10 {
		n, _, err := trimmer.sweepOrphans(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		deleted += n
		now = now.Add(orphanConfirm)
	}
	redistest.Want(t, "deleted", deleted, 30)
}

// addLeases adds n leases of entries that the group does not hold. They ended long ago.
func (r *rig) addLeases(group string, n int) {
	args := []string{"ZADD", r.Keys.Leases}
	for i := range n {
		args = append(args, "5", fmt.Sprintf("1000%s1-%d%s%s", lua.Separator, i, lua.Separator, group))
	}
	r.Do(args...)
}

// One pass must remove the leases of settled entries, whether other entries are held or not. Regression: while entries
// were held, these leases stayed until they ended. After that each pass removed 1,000 of them, and the passes of an
// idle queue are minutes apart.
func TestTrimRemovesLeasesOfWhatIsSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(1)
	held := r.Take("g", "c", 1)
	r.addLeases("g", 5000)
	redistest.Want(t, "freed", r.trim().Freed, 0)
	if left := r.Number("ZCARD", r.Keys.Leases); left > 1000 {
		t.Errorf("%d leases are left of 5,000, none of which is held", left)
	}
	r.addLeases("g", 5000)
	r.Xack("g", held...)
	r.trim()
	redistest.Want(t, "left when nobody holds anything", r.Number("ZCARD", r.Keys.Leases), int64(0))
}
