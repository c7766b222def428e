package sizes

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A read has a budget for dead letters. The letters that one read leaves out must be read by the next one. Regression:
// the letters of the last queues were never counted by reason.
func TestLettersThatOneReadLeavesOutAreReadByTheNext(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		for range 30 {
			dead := lua.NewKeys(prefix, name).Dead
			queuetest.Do(t, c, "XADD", dead, "*", "id", "m", "payload", "p", "group", "g", "reason", "expired")
		}
	}
	r := NewStateReader(c, prefix)
	r.budget.letterBytes = 2000 // enough for about forty letters
	for i := range names {
		states, err := r.Read(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		for n := range i + 1 {
			redistest.Want(t, fmt.Sprint("read ", i, ": unread in ", names[n]), states[n].Unread, 0)
			redistest.Want(t, "counted", states[n].Letters[LetterKind{"g", "expired"}], 30)
		}
	}
}

// Retries of long schedules are counted in steps, within a budget of steps for all partitions. The number of those that
// were not reached must be estimated from those that were.
func TestRetriesAreCountedWithinABudget(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		k := lua.NewKeys(prefix, name)
		queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM")
		queuetest.Do(t, c, "HSET", k.Meta, "x", "{}")
		queuetest.Do(t, c, "EVAL", `
			for i = 1, 8000 do redis.call('ZADD', KEYS[1], 4e12, 'm' .. i .. '\31g\0311-' .. i) end
			return 1`, "1", k.Due)
	}
	r := NewStateReader(c, prefix)
	r.budget.scans = 4
	before := s.Calls(t)["zscan"]
	states, err := r.Read(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	// The first step of each of the three partitions is outside the budget of 4.
	redistest.Want(t, "steps", s.Calls(t)["zscan"]-before, 3+4)
	for _, one := range states {
		if n := one.Groups[0].Retrying; n < 7000 || n > 9000 {
			t.Errorf("%d retries in %s, where 8,000 are", n, one.Queue)
		}
	}
}

// Stats must count all retries of a schedule that takes several steps of ZSCAN.
func TestStatsCountManyRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Do("HSET", r.Keys.Meta, "x", "{}")
	r.Do("EVAL", `
		for i = 1, 3000 do redis.call('ZADD', KEYS[1], 4e12, 'm' .. i .. '\31g\0311-' .. i) end
		return 1`, "1", r.Keys.Due)
	redistest.Want(t, "retrying", r.stats().Groups[0].Retrying, int64(3000))
}

// Regression: groups beyond the first 64 had no figures at all, so nobody saw that they had no readers.
func TestEveryGroupHasItsLag(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	k := lua.NewKeys(prefix, "q")
	const groups = 70
	for i := range groups {
		queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, fmt.Sprintf("g%02d", i), "0", "MKSTREAM")
	}
	for range 3 {
		queuetest.Do(t, c, "XADD", k.Stream, "*", "id", "m")
	}
	queuetest.Do(t, c, "XREADGROUP", "GROUP", "g69", "c", "COUNT", "1", "STREAMS", k.Stream, ">")
	states, err := NewStateReader(c, prefix).Read(t.Context(), []string{"q"})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "groups", len(states[0].Groups), groups)
	for i, g := range states[0].Groups {
		lag, pending := int64(3), int64(0)
		if i == groups-1 {
			lag, pending = 2, 1
		}
		redistest.Want(t, "name", g.Name, fmt.Sprintf("g%02d", i))
		redistest.Want(t, g.Name+": lag", g.Lag, lag)
		redistest.Want(t, g.Name+": pending", g.Pending, pending)
		redistest.Want(t, g.Name+": brief", g.Brief, i >= limitsOf[scrape].groups)
	}
}
