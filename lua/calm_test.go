package lua

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The idle time of an entry counts in full only while somebody watched the queue; the length of an absence is added to
// the wait. Before, reclaiming waited for a visibility timeout without any disturbance (a bridge that starts, a gap
// between heartbeats). Where disturbances were more frequent than that, abandoned entries never came back.
func TestOnlyWatchedTimeCountsAsIdle(t *testing.T) {
	const visibility = 10_000
	// many returns n absences of long ms each, one in every ms, as begin and end in ms ago.
	many := func(n int, every, long int64) (away [][2]int64) {
		for i := range int64(n) {
			away = append(away, [2]int64{i*every + long + 100, i*every + 100})
		}
		return away
	}
	everywhere(t, func(b *testQueue) {
		for i, c := range []struct {
			name string
			idle int64      // of the entry, ms
			seen int64      // the last look, ms ago; negative: never
			away [][2]int64 // absences: begin and end, ms ago
			want int        // entries that are reclaimed
		}{
			{"watched all the time", 10_100, 1000, nil, 1},
			{"not idle for long enough", 9_500, 1000, nil, 0},
			{"nobody has looked yet", 3_600_000, -1, nil, 0},
			{"the first look was a timeout ago", 3_600_000, 1000, [][2]int64{{1e12, 10_100}}, 1},
			{"the first look was half a timeout ago", 3_600_000, 1000, [][2]int64{{1e12, 5_000}}, 0},
			{"the look comes late, by less than half a timeout", 10_100, 4_500, nil, 1},
			{"the look comes after an outage", 12_000, 10_500, nil, 0},
			{"the look comes after an hour", 3_600_000 + 9_900, 3_600_000, nil, 1},
			{"extended before an hour of outage", 3_600_000 + 3_300, 3_600_000, nil, 0},
			{"an outage of an hour, then a timeout", 3_610_000, 1000, [][2]int64{{3_610_100, 10_100}}, 1},
			{"an outage of an hour, then half of a timeout", 3_606_000, 1000, [][2]int64{{3_605_000, 5_000}}, 0},
			{"half a timeout before the outage, and half after it", 3_611_000, 1000, [][2]int64{{3_605_000, 5_000}}, 1},
			{"an outage for each second, all day", 700_000, 1000, many(32, 6500, 5500), 1},
			{"ten outages, most of a timeout in between", 70_000, 1000, many(10, 6500, 5500), 1},
			{"three outages, a second in between", 20_000, 500, many(3, 6500, 5500), 0},
			{"bridges that start every second", 10_100, 1000, many(10, 1000, 300), 1},
			{"an absence of the future, before the clock was set back", 10_100, 1000, [][2]int64{{-500_000, -600_000}}, 1},
		} {
			entry := b.deliver([]string{"g"}, fmt.Sprint("m", i))[0].EntryID
			b.do("DEL", b.k.Calm)
			now := b.now()
			if c.seen >= 0 {
				var away []string
				for _, a := range c.away {
					away = append(away, fmt.Sprintf("%d-%d", max(0, now-a[0]), now-a[1]))
				}
				b.do("HSET", b.k.Calm, "seen_ms", ms(now-c.seen), "away", strings.Join(away, " "))
			}
			b.do("XCLAIM", b.k.Stream, "g", "c", "0", entry, "IDLE", ms(c.idle), "JUSTID")
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{
				Group: "g", Attempts: policy, MinIdle: visibility * time.Millisecond, Shortest: visibility * time.Millisecond,
				Limit: 10, MaxBytes: 1 << 20,
			})
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, c.name, r.Retried, c.want)
			b.do("XACK", b.k.Stream, "g", entry)
		}
	})
}

// However often and for however long nobody looks at the queue, each look brings an abandoned entry closer to being
// taken back, and its notes stay small.
func TestWaitForAbandonedEntriesIsBounded(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		entry := b.deliver([]string{"g"}, "m")[0].EntryID
		b.do("XCLAIM", b.k.Stream, "g", "c", "0", entry, "IDLE", "86400000", "JUSTID")
		args := ReclaimArgs{Group: "g", Attempts: policy, MinIdle: 10 * time.Second, Shortest: 10 * time.Second, Limit: 10,
			MaxBytes: 1 << 20}
		looks, retried := 0, 0
		for ; retried == 0 && looks < 100; looks++ {
			r, err := Reclaim(b.ctx, b.c, b.k, args)
			if err != nil {
				b.Fatal(err)
			}
			retried = r.Retried
			b.ageLooks(6 * time.Second) // until the next look
		}
		if retried != 1 || looks > 10 {
			b.Fatalf("retried %d after %d looks, 6 s apart: want 1, after 10 at most", retried, looks)
		}
		b.deliver([]string{"g"}, "n")
		for range 100 {
			if _, err := Reclaim(b.ctx, b.c, b.k, args); err != nil {
				b.Fatal(err)
			}
			b.ageLooks(6 * time.Second)
		}
		const most = 32 * len("1795216995123-1795216995123 ") // bytes of 32 absences
		if n := len(b.hash(b.k.Calm)["away"]); n > most {
			b.Fatalf("%d bytes are noted", n)
		}
		if err := Forget(b.ctx, b.c, b.k); err != nil || b.count("EXISTS", b.k.Calm) != 0 {
			b.Fatal("not forgotten", err)
		}
	})
}

// ageLooks makes the record of looks older by d.
func (b *testQueue) ageLooks(d time.Duration) {
	b.Helper()
	known := b.hash(b.k.Calm)
	var seen int64
	fmt.Sscan(known["seen_ms"], &seen)
	var away []string
	for _, a := range strings.Fields(known["away"]) {
		var from, to int64
		fmt.Sscanf(a, "%d-%d", &from, &to)
		away = append(away, fmt.Sprintf("%d-%d", max(0, from-d.Milliseconds()), to-d.Milliseconds()))
	}
	b.do("HSET", b.k.Calm, "seen_ms", ms(seen-d.Milliseconds()), "away", strings.Join(away, " "))
}

// Before, a reclaim for a missing group recorded that the queue was watched, and then returned that there is no such
// group. So a deleted queue got a key again, which stayed.
func TestReclaimForAGroupThatIsGoneWritesNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		reclaim := func(what string) {
			b.Helper()
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "gone", Attempts: policy, MinIdle: time.Second,
				Shortest: time.Second, Limit: 10, MaxBytes: 1 << 20})
			if !errors.Is(err, ErrNoGroup) {
				b.Errorf("%s: %v, want ErrNoGroup", what, err)
			}
			redistest.Want(b, what+": notes", b.count("EXISTS", b.k.Calm), 0)
		}
		reclaim("no stream")
		redistest.Want(b, "no stream: keys", b.count("EXISTS", b.k.Stream), 0)
		b.do("XGROUP", "CREATE", b.k.Stream, "another", "0", "MKSTREAM")
		reclaim("no group")
	})
}

// When a server stands still during a look, as a migrated machine does, all entries look idle for that long, but none
// was abandoned. Redis 7.0 reads its clock for each command of a script, so it may take the one entry that it looks at
// in that instant, but no other.
func TestOutageDuringAReclaimIsNotIdleTime(t *testing.T) {
	t.Parallel()
	s, clock := redistest.OwnClock(t)
	b := newTestQueue(t, s)
	b.groups("g")
	b.enqueueMany(100_000, 1)
	b.read("g", "c", 100_000)
	b.do("HSET", b.k.Calm, "seen_ms", ms(b.now()))
	for round := range 3 {
		ended := make(chan Reclaimed)
		go func() {
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: Attempts{Max: 9, Delays: []time.Duration{0}},
				MinIdle: time.Minute, Limit: 20_000, MaxBytes: 1 << 30, Shortest: time.Minute})
			if err != nil {
				t.Error(err)
			}
			ended <- r
		}()
		<-time.After(20 * time.Millisecond) // during the look, which takes longer
		clock.Step(time.Hour)
		if r := <-ended; r.Retried > 1 {
			t.Fatalf("round %d: %+v", round, r)
		}
	}
}
