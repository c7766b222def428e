package integration

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

const (
	searchScheduled = 1_000_000             // messages
	searchTicks     = 5 * time.Millisecond  // between the due times of the messages that become ready
	searchTurn      = time.Second           // the search runs for this long, then waits for this long
	searchBorder    = 20 * time.Millisecond // at the beginning and the end of a turn; messages in it do not count
	searchTail      = 6 * time.Minute       // how far ahead messages are scheduled
	searchPayload   = "a payload of bytes " // repeated to 200 bytes
)

// BenchmarkSearch measures how long a search by payload text takes in a queue with 1,000,000 scheduled messages of 200
// bytes, of which one in 10,000 has the text, at the default load. At the same time 200 messages a second become ready
// in that queue. The search runs and waits in turns of a second, so that other work of the machine disturbs both alike.
// The benchmark reports the seconds that the search ran, and how late the messages became ready while the search waited
// ("quiet") and while it ran ("beside"): the median and percentiles, in whole milliseconds. Run it with -benchtime 1x
// on a quiet machine.
func BenchmarkSearch(b *testing.B) {
	s := newStack(b, redistest.Own(b, withoutSlowLog...))
	s.fillForSearch()
	s.bridge(bridge.DefaultPolicy())
	for b.Loop() {
		s.measureSearch(b)
	}
	b.ReportMetric(0, "ns/op")
}

func (s *stack) fillForSearch() {
	s.t.Helper()
	payload := strings.Repeat(searchPayload, 11)[:200]
	far := time.Now().Add(24 * time.Hour)
	for first := 0; first < searchScheduled; first += 500 {
		items := make([]lua.Item, 500)
		for i := range items {
			n := first + i
			items[i] = lua.Item{ID: fmt.Sprintf("scheduled-%07d", n), Payload: []byte(payload),
				When: lua.At(far.Add(time.Duration(n) * time.Millisecond))}
			if n%10_000 == 77 {
				items[i].Payload = []byte(payload[:150] + `"customer":"acme"` + payload[150:183])
			}
		}
		s.enqueueAll(items)
	}
}

func (s *stack) enqueueAll(items []lua.Item) {
	s.t.Helper()
	_, err := lua.Enqueue(context.Background(), s.redis.Client, s.keys(), lua.Token{}, items, lua.Durability{})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) measureSearch(b *testing.B) {
	b.Helper()
	begin := time.Now().Add(5 * time.Second)
	for at := begin; at.Before(begin.Add(searchTail)); {
		var items []lua.Item
		for range 500 {
			id := fmt.Sprint("tick-", at.UnixMicro())
			items = append(items, lua.Item{ID: id, When: lua.At(at), Payload: []byte("tick")})
			at = at.Add(searchTicks)
		}
		s.enqueueAll(items)
	}
	redistest.Eventually(b, time.Minute, func() (bool, string) { // the messages begin to become ready
		return time.Now().After(begin), "it is before " + begin.String()
	})
	type turn struct{ from, to time.Time }
	var quiet, beside []turn
	found, ran, from := 0, time.Duration(0), time.Now()
	wait := func(admin.SearchProgress) {
		if time.Since(from) < searchTurn {
			return
		}
		stopped := time.Now()
		select { // the search waits
		case <-time.After(searchTurn):
		case <-b.Context().Done():
		}
		beside, quiet = append(beside, turn{from, stopped}), append(quiet, turn{stopped, time.Now()})
		ran += stopped.Sub(from)
		from = time.Now()
	}
	f := admin.SearchFilter{Queues: []string{s.queue}, Text: `"customer":"acme"`}
	p, err := s.operator().Search(b.Context(), f, admin.SearchOptions{Progress: wait}, func(admin.Hit) error {
		found++
		return nil
	})
	if err != nil || found != searchScheduled/10_000 {
		b.Fatalf("%d found, %+v, %v", found, p, err)
	}
	b.ReportMetric(ran.Seconds(), "search_s")
	report := func(name string, turns []turn) {
		var all []int64
		for _, t := range turns {
			all = append(all, s.latenesses(t.from.Add(searchBorder), t.to.Add(-searchBorder))...)
		}
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2]), name+"_median_ms")
		b.ReportMetric(float64(all[len(all)*99/100]), name+"_p99_ms")
		b.ReportMetric(float64(all[len(all)*999/1000]), name+"_p99.9_ms")
		b.ReportMetric(float64(all[len(all)-1]), name+"_most_ms")
		b.Logf("%s: %d messages in %d turns", name, len(all), len(turns))
	}
	report("quiet", quiet)
	report("beside", beside)
	load, _ := os.ReadFile("/proc/loadavg")
	b.Logf("%s, load %.14s, %d cores", s.server.Name(), load, runtime.NumCPU())
}

// latenesses returns how late the entries became ready that were added between two times, in ms.
func (s *stack) latenesses(from, to time.Time) (all []int64) {
	s.t.Helper()
	entries, err := s.raw("XRANGE", s.keys().Stream, fmt.Sprint(from.UnixMilli()), fmt.Sprint(to.UnixMilli())).AsXRange()
	if err != nil || len(entries) == 0 {
		s.t.Fatal(len(entries), err)
	}
	for _, one := range entries {
		e := lua.ParseEntry(one.ID, nil)
		var due int64
		fmt.Sscan(one.FieldValues[lua.FieldDue], &due)
		all = append(all, lua.EntryTime(e.EntryID).UnixMilli()-due)
	}
	return all
}
