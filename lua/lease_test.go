package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// receiveWithLease schedules messages, and receives them with a lease of the given time. The visibility timeout is a
// minute.
func (b *testQueue) receiveWithLease(within time.Duration, ids ...string) []Entry {
	b.Helper()
	for _, id := range ids {
		b.enqueue(Item{ID: id, When: After(0), Payload: []byte("p")})
	}
	b.drain(100)
	r, err := Receive(b.ctx, b.c, b.k, "g", "c1", within, time.Minute, len(ids))
	if err != nil || len(r.Entries) != len(ids) {
		b.Fatal(r, err)
	}
	return r.Entries
}

// reclaimAll reclaims as a bridge does, and returns how many entries it took.
func (b *testQueue) reclaimAll(limit int) int {
	b.Helper()
	taken := 0
	for cursor, calls := "", 0; ; calls++ {
		r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Minute, Shortest: time.Minute,
			Limit: limit, MaxBytes: 1 << 20, Cursor: cursor})
		if err != nil {
			b.Fatal(err)
		}
		taken += r.Retried + r.Dead
		if r.Cursor == "" {
			return taken
		}
		cursor = r.Cursor
		if calls > 100 {
			b.Fatal("the cursor never comes back to the beginning")
		}
	}
}

// passTime simulates that a time has passed: entries, leases and looks are older by it.
func (b *testQueue) passTime(d time.Duration) {
	b.Helper()
	for _, e := range b.entries(b.k.Stream) {
		if _, owner, idle := b.pendingEntry("g", e.EntryID); owner != "" {
			b.do("XCLAIM", b.k.Stream, "g", owner, "0", e.EntryID, "IDLE", ms(idle+d.Milliseconds()), "JUSTID")
		}
	}
	for _, member := range b.texts("ZRANGE", b.k.Leases, "0", "-1") {
		b.do("ZINCRBY", b.k.Leases, ms(-d.Milliseconds()), member)
	}
	if b.count("EXISTS", b.k.Calm) == 1 {
		b.ageLooks(d)
	}
}

// A lease ends when its own time is over. Before, it ended only after the queue had been watched for a visibility
// timeout without a pause.
func TestALeaseEndsInItsOwnTime(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		token := b.token()
		held := b.receiveWithLease(20*time.Second, "short", "acknowledged", "extended")
		redistest.Want(b, "woke the bridge", b.token() != token, true)
		b.receiveWithLease(time.Minute, "long")
		redistest.Want(b, "leases", b.count("ZCARD", b.k.Leases), 3)
		redistest.Want(b, "taken at once", b.reclaimAll(10), 0)
		b.ack("g", Held{Entry: held[1].EntryID})
		b.passTime(15 * time.Second)
		redistest.Want(b, "taken before its end", b.reclaimAll(10), 0)
		ok, err := Extend(b.ctx, b.c, b.k, "g", "c1", []Held{{Entry: held[2].EntryID, ID: "extended"}})
		if err != nil || ok[0] != StillHeld {
			b.Fatal(ok, err)
		}
		b.passTime(10 * time.Second)
		redistest.Want(b, "taken after its end", b.reclaimAll(10), 1)
		redistest.Want(b, "pending", b.pending("g"), 2)
		if !b.inProcess() { // that server counts the claims of passTime as deliveries
			due := b.texts("ZRANGE", b.k.Due, "0", "-1")
			if len(due) != 1 || !strings.HasPrefix(due[0], "short"+Separator) {
				b.Fatalf("scheduled again: %q", due)
			}
			if text := b.hash(b.k.Meta)[due[0]]; !strings.Contains(text, "within 20000 ms") {
				b.Error("the error does not tell the time: ", text)
			}
		}
		redistest.Want(b, "leases of what is held", b.count("ZCARD", b.k.Leases), 1)
		b.passTime(25 * time.Second)
		redistest.Want(b, "taken before the end of the visibility timeout", b.reclaimAll(10), 0)
		for _, e := range b.entries(b.k.Stream) {
			b.ack("g", Held{Entry: e.EntryID})
		}
		if _, err := Trim(b.ctx, b.c, b.k, "", 100, 1000); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "leases when nobody holds anything", b.count("EXISTS", b.k.Leases), 0)
	})
}

// An absence extends a lease only as far as it lies within the lease; an earlier absence does not count.
func TestAnAbsenceCountsForALeaseInItsTimeOnly(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		old := b.receiveWithLease(time.Minute, "old")[0].EntryID
		b.reclaimAll(10)
		b.passTime(50 * time.Second) // an absence
		b.reclaimAll(10)
		b.receiveWithLease(20*time.Second, "after it")
		b.passTime(25 * time.Second)
		redistest.Want(b, "taken after its end", b.reclaimAll(10), 1)

		b.ack("g", Held{Entry: old})
		b.receiveWithLease(40*time.Second, "before another one")
		b.reclaimAll(10)
		b.passTime(45 * time.Second)
		redistest.Want(b, "taken right after an absence", b.reclaimAll(10), 0)
		b.passTime(15 * time.Second)
		redistest.Want(b, "taken before what is left of its time", b.reclaimAll(10), 0)
		b.passTime(25 * time.Second)
		redistest.Want(b, "taken then", b.reclaimAll(10), 1)
	})
}

// receiveAndAck receives messages with a lease, and acknowledges them.
func (b *testQueue) receiveAndAck(within time.Duration, ids ...string) {
	b.Helper()
	for _, e := range b.receiveWithLease(within, ids...) {
		b.ack("g", Held{Entry: e.EntryID})
	}
}

// numbered returns the IDs m0, m1 and so on.
func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("m", i))
	}
	return ids
}

// Receives remove leases of settled entries, whenever the leases end: about as many stay as entries are held.
// Regression: while anything was pending, the leases of settled entries stayed until they ended; beside a bridge that
// does not know leases they stayed for ever.
func TestReceiveRemovesLeasesOfSettledEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.receiveWithLease(50*time.Second, "held")
		for i := range 120 {
			b.receiveAndAck(50*time.Second, fmt.Sprint("m", i))
		}
		if n := b.count("ZCARD", b.k.Leases); n > 40 {
			b.Errorf("%d leases are left, one of which is held", n)
		}
	})
}

// A lease that ended long ago, while no bridge looked, stays for the next bridge. Regression: a receive removed it
// a minute after its end, and the entry came back only after the visibility timeout.
func TestLeaseOfAHeldEntryIsKept(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.reclaimAll(10)
		b.receiveWithLease(time.Second, "abandoned")
		b.passTime(100 * time.Second)
		for i := range 20 {
			b.receiveWithLease(50*time.Second, fmt.Sprint("later", i))
		}
		redistest.Want(b, "leases", b.count("ZCARD", b.k.Leases), 21)
	})
}

// A trim removes leases of settled entries, also while other entries are held. Regression: they stayed until their end.
func TestTrimRemovesLeasesOfSettledEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		held := b.receiveWithLease(50*time.Second, "held")[0]
		for range 5 {
			b.receiveAndAck(50*time.Second, numbered(100)...)
		}
		trim := func() int {
			done, err := Trim(b.ctx, b.c, b.k, "", 1000, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			return done.Leases
		}
		for range 100 {
			trim()
		}
		redistest.Want(b, "leases", b.count("ZCARD", b.k.Leases), 1)
		b.do("ZADD", b.k.Leases, "5", "no lease")
		redistest.Want(b, "removed beside what is held", trim(), 1)
		b.ack("g", Held{Entry: held.EntryID})
		redistest.Want(b, "removed when nobody holds anything", trim(), 1)
		redistest.Want(b, "leases", b.count("EXISTS", b.k.Leases), 0)
	})
}

// A reclaim that leaves ended leases says so, unless a reclaim for another group must deal with them first.
func TestReclaimReportsMoreEndedLeases(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g", "other")
		b.reclaimAll(10)
		for range 25 {
			b.do("ZADD", b.k.Leases, "5", "1000"+Separator+fmt.Sprintf("1-%d", b.count("ZCARD", b.k.Leases))+Separator+"g")
		}
		reclaim := func() bool {
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Minute,
				Shortest: time.Minute, Limit: 10, MaxBytes: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			return r.MoreLeases
		}
		redistest.Want(b, "of 25", reclaim(), true)
		redistest.Want(b, "of 15", reclaim(), true)
		redistest.Want(b, "of 5", reclaim(), false)
		b.receiveWithLease(time.Second, numbered(10)...)
		if _, err := Receive(b.ctx, b.c, b.k, "other", "c1", time.Second, time.Minute, 10); err != nil {
			b.Fatal(err)
		}
		for _, member := range b.texts("ZRANGE", b.k.Leases, "0", "-1") {
			score := "6"
			if strings.HasSuffix(member, Separator+"other") {
				score = "5"
			}
			b.do("ZADD", b.k.Leases, score, member)
		}
		redistest.Want(b, "behind ten of another group", reclaim(), false)
	})
}

// A survey reports a queue that holds nothing but leases of settled entries as untidy, so that a bridge removes them.
// Before, they stayed until somebody used the queue.
func TestSurveySeesLeasesOfSettledEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.ack("g", Held{Entry: b.receiveWithLease(time.Second, "order-42")[0].EntryID})
		untidy := func() bool {
			looks, err := Survey(b.ctx, b.c, []Keys{b.k}, true)
			if err != nil || looks[0].Err != nil || looks[0].SideErr != nil {
				b.Fatal(looks, err)
			}
			return looks[0].Untidy
		}
		redistest.Want(b, "untidy with a lease", untidy(), true)
		if _, err := Trim(b.ctx, b.c, b.k, "", 100, 1000); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "untidy without", untidy(), false)
	})
}

// Leases that ended together are all taken back, whatever the limit of a call, and so is one whose entry was deleted.
// Leases of a group that is gone are removed.
func TestManyLeasesEndTogether(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g", "gone")
		var ids []string
		for i := range 25 {
			ids = append(ids, fmt.Sprint("m", i))
		}
		for _, e := range b.receiveWithLease(time.Second, ids...) {
			b.do("ZADD", b.k.Leases, "5", "1000"+Separator+e.EntryID+Separator+"gone")
		}
		b.do("ZADD", b.k.Leases, "1", "no lease", "2", "x"+Separator+"1-1"+Separator+"g")
		b.do("XGROUP", "DESTROY", b.k.Stream, "gone")
		b.reclaimAll(10)
		b.passTime(2 * time.Second)
		redistest.Want(b, "taken", b.reclaimAll(10), 25)
		redistest.Want(b, "leases", b.count("ZCARD", b.k.Leases), 0)
		redistest.Want(b, "pending", b.pending("g"), 0)
	})
}
