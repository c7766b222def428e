package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// BenchmarkLateness schedules 1,000 messages a second for 15 seconds, each due at a millisecond of its own, and reports how late
// their handlers were called, by the clock of this process, which is the server's. Run it with -benchtime 1x.
func BenchmarkLateness(b *testing.B) {
	const rate, seconds = 1000, 15
	server := redistest.Own(b, "--appendonly", "yes")
	s := newStack(b, server)
	s.groups("g")
	s.bridge(bridge.DefaultPolicy())
	for b.Loop() {
		var mu sync.Mutex
		late := make([]time.Duration, 0, rate*seconds)
		_, stop := s.worker("g", 256, func(_ context.Context, m *bridge.Message) error {
			now := time.Now()
			mu.Lock()
			late = append(late, now.Sub(m.Due))
			mu.Unlock()
			return nil
		})
		start := time.Now().Add(time.Second)
		batch := make([]bridge.NewMessage, rate*seconds)
		for i := range batch {
			batch[i] = bridge.NewMessage{ID: fmt.Sprint("m", b.N, "-", i), Payload: make([]byte, 256), At: start.Add(time.Duration(i) * time.Second / rate)}
		}
		s.send(batch)
		s.settled((seconds+30)*time.Second, "g")
		stop()
		slices.Sort(late)
		at := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))].Microseconds()) / 1000 }
		b.ReportMetric(at(0.50), "ms_p50")
		b.ReportMetric(at(0.99), "ms_p99")
		b.ReportMetric(at(1), "ms_max")
		b.ReportMetric(float64(len(late)), "messages")
	}
}
