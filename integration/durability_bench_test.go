package integration

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// BenchmarkDurability reports the cost of each durability: messages a second with one caller and with 256, and how many
// times slower that is than Accepted on the same server in the same run. Run it with -benchtime 1x.
func BenchmarkDurability(b *testing.B) {
	levels := []struct {
		name   string
		server func() *redistest.Server
		level  bridge.Durability
		calls  int // calls of a single caller
	}{
		{"replicated=1, one replica on the same machine", withReplica(b), bridge.Replicated(1), 1000},
		{"fsynced, appendfsync everysec", withDisk(b, "everysec"), bridge.Fsynced, 5},
		{"fsynced, appendfsync always", withDisk(b, "always"), bridge.Fsynced, 500},
	}
	for _, l := range levels {
		b.Run(l.name, func(b *testing.B) {
			s := newStack(b, l.server())
			accepted, durable := s.mustClientWith(bridge.Accepted), s.mustClientWith(l.level)
			for b.Loop() {
				for _, callers := range []int{1, 256} {
					each := l.calls
					base := rate(b, s, accepted, callers, 1000)
					got := rate(b, s, durable, callers, each)
					b.ReportMetric(got, fmt.Sprintf("msg/s_%d_callers", callers))
					b.ReportMetric(base/got, fmt.Sprintf("x_accepted_%d_callers", callers))
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// withReplica returns a function that starts a master with one replica, and returns the master.
func withReplica(b *testing.B) func() *redistest.Server {
	return func() *redistest.Server {
		master, replica := redistest.Own(b), redistest.Own(b)
		host, port, err := net.SplitHostPort(master.Addr())
		if err != nil {
			b.Fatal(err)
		}
		c, m := replica.Client(b), master.Client(b)
		if err := c.Do(b.Context(), c.B().Arbitrary("REPLICAOF", host, port).Build()).Error(); err != nil {
			b.Fatal(err)
		}
		redistest.Eventually(b, 20*time.Second, func() (bool, string) {
			n, err := m.Do(b.Context(), m.B().Wait().Numreplicas(1).Timeout(100).Build()).AsInt64()
			return n == 1, fmt.Sprint("no replica: ", err)
		})
		return master
	}
}

// withDisk returns a function that starts a server with an append-only file.
func withDisk(b *testing.B, appendfsync string) func() *redistest.Server {
	return func() *redistest.Server {
		const image = "redis:8.0"
		server, ok := redistest.OwnOn(b, image, "--appendfsync", appendfsync)
		if !ok {
			b.Fatalf("needs the image %s in a local Docker engine", image)
		}
		return server
	}
}

// rate returns how many messages a second these callers schedule. Each caller makes its calls one after another; each
// is their number.
func rate(b *testing.B, s *stack, c *bridge.Client, callers, each int) float64 {
	payload := make([]byte, 256)
	begin := time.Now()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if _, err := c.Schedule(context.Background(), s.queue, payload, bridge.In(24*time.Hour)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return float64(callers*each) / time.Since(begin).Seconds()
}
