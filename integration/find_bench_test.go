package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	findScheduled = 1_000_000 // messages
	findReady     = 100_000   // messages
	findLooks     = 15        // searches for each place
)

// BenchmarkFind measures how long Find takes for one message in a queue with 1,000,000 scheduled and 100,000 ready
// messages of 256 bytes, whose entries have five fields. For each place of the message, it reports the median and the
// minimum of 15 searches in milliseconds, and the time until Find reported the place ("seen"); the search goes on after
// that. The floor is one XRANGE of all entries by a client that discards them, measured in turns with the searches. A
// second run has a header on each scheduled message. Run it with -benchtime 1x on a quiet machine.
func BenchmarkFind(b *testing.B) {
	for _, headers := range []bool{false, true} {
		name := "plain"
		if headers {
			name = "headers"
		}
		b.Run(name, func(b *testing.B) {
			s := newStack(b, redistest.Own(b, withoutSlowLog...))
			s.fillForFind(headers)
			for b.Loop() {
				s.measureFind(b, headers)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fillForFind schedules findScheduled messages and makes findReady ready. Of the first three ready ones, a consumer
// holds "early-0000000", "early-0000001" waits for a retry, and "early-0000002" is a dead letter.
func (s *stack) fillForFind(headers bool) {
	s.t.Helper()
	payload := []byte(strings.Repeat("payload-", 32))
	meta := ""
	if headers {
		meta = lua.EncodeMeta(map[string]string{"kind": "mail"}, 0, time.Time{})
	}
	enqueue := func(prefix string, n int, when func(i int) lua.When, meta string) {
		for first := 0; first < n; first += 500 {
			items := make([]lua.Item, 500)
			for i := range items {
				items[i] = lua.Item{ID: fmt.Sprintf("%s-%07d", prefix, first+i), When: when(first + i), Payload: payload,
					Meta: meta}
			}
			if _, err := lua.Enqueue(context.Background(), s.redis.Client, s.keys(), lua.Token{}, items,
				lua.Durability{}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	far := time.Now().Add(24 * time.Hour)
	enqueue("scheduled", findScheduled, func(i int) lua.When { return lua.At(far.Add(time.Duration(i) * time.Millisecond)) },
		meta)
	header := lua.EncodeMeta(map[string]string{"kind": "mail"}, 0, time.Time{})
	s.groups("g")
	now := func(int) lua.When { return lua.After(0) }
	enqueue("early", 500, now, header)
	reply, err := s.redis.Client.Do(context.Background(), s.redis.Client.B().Xreadgroup().Group("g",
		"c").Count(3).Streams().Key(s.keys().Stream).Id(">").Build()).AsXReadSlices()
	if err != nil {
		s.t.Fatal(err)
	}
	held := reply[s.keys().Stream]
	if _, err := lua.Retry(context.Background(), s.redis.Client, s.keys(), "g", bridge.DefaultPolicy().Attempts(), []lua.Failure{
		{Held: lua.Held{Entry: held[1].ID}, Action: lua.ActionRetry, Delay: time.Hour, Error: "retried"},
		{Held: lua.Held{Entry: held[2].ID}, Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "dead"},
	}); err != nil {
		s.t.Fatal(err)
	}
	enqueue("ready", findReady-500, now, header)
}

// measureFind searches a message in each place, and reports the figures of [BenchmarkFind].
func (s *stack) measureFind(b *testing.B, headers bool) {
	b.Helper()
	places := []struct{ name, id, state string }{
		{"scheduled", "scheduled-0500000", "scheduled"}, {"ready_at_the_end", fmt.Sprintf("ready-%07d", findReady-501), "ready"},
		{"pending", "early-0000000", "pending"}, {"retrying", "early-0000001", "retrying"}, {"dead", "early-0000002", "dead"},
		{"nowhere", "nowhere", ""},
	}
	looks := map[string][]float64{} // durations in ms, by the name of the figure
	timed := func(name string, do func()) {
		begin := time.Now()
		do()
		looks[name] = append(looks[name], float64(time.Since(begin).Microseconds())/1000)
	}
	ratios := []float64{} // of the search for a message that is nowhere, to the floor
	for range findLooks {
		timed("floor_all_entries", func() { s.readAllEntries(b) })
		for _, p := range places {
			first := time.Time{}
			begin := time.Now()
			timed(p.name, func() {
				f, err := s.operator().Find(b.Context(), p.id, admin.FindOptions{Queues: []string{s.queue},
					Seen: func(admin.Sighting) {
						if first.IsZero() {
							first = time.Now()
						}
					}})
				if p.state == "" && errors.Is(err, admin.ErrNotFound) {
					return
				}
				if err != nil || len(f.Places) != 1 || string(f.Places[0].State) != p.state {
					b.Fatalf("%s: %+v, %v", p.id, f.Places, err)
				}
			})
			if p.state != "" {
				looks[p.name+"_seen"] = append(looks[p.name+"_seen"], float64(first.Sub(begin).Microseconds())/1000)
			}
		}
		floor, nowhere := looks["floor_all_entries"], looks["nowhere"]
		ratios = append(ratios, nowhere[len(nowhere)-1]/floor[len(floor)-1])
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "nowhere_x_floor")
	load, _ := os.ReadFile("/proc/loadavg")
	b.Logf("%s, headers %v, load %.14s, %d cores", s.server.Name(), headers, load, runtime.NumCPU())
	for name, all := range looks {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"_ms")
		b.ReportMetric(all[0], name+"_least_ms")
	}
}

// readAllEntries reads the whole stream with one command, and discards it. The reply to PING marks the end.
func (s *stack) readAllEntries(b *testing.B) {
	b.Helper()
	conn, err := net.Dial("tcp", s.server.Addr())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "XRANGE %s - +\r\nPING\r\n", s.keys().Stream); err != nil {
		b.Fatal(err)
	}
	buffer, tail, read := make([]byte, 256<<10), "", 0
	for tail != "+PONG\r\n" {
		n, err := conn.Read(buffer)
		if err != nil {
			b.Fatal(err)
		}
		read += n
		tail = tail + string(buffer[max(0, n-7):n])
		tail = tail[max(0, len(tail)-7):]
	}
	if read < findReady*256 { // the payloads alone
		b.Fatalf("only %d bytes were read", read)
	}
}
