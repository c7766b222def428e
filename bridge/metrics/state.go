package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/stream/sizes"
)

// state reads, at each scrape, the status of this process's bridges and the state of the queues that they own.
type state struct {
	names    *names
	timeout  time.Duration
	reporter loop.Reporter

	mu      sync.Mutex
	bridges []*servedBridge
	reading *reading // the running read; nil = no read runs
}

// servedBridge is a running bridge.
type servedBridge struct {
	observe.BridgeView
	reader *sizes.StateReader // not for concurrent use: one read at a time
}

// reading is one read of the state. Concurrent scrapes share it.
type reading struct {
	done    chan struct{}
	metrics []prometheus.Metric // set before done is closed
}

func newState(n *names, timeout time.Duration, log *slog.Logger) *state {
	return &state{names: n, timeout: timeout, reporter: loop.Reporter{Log: log, Activity: "reading the state of queues"}}
}

// start includes a bridge in each scrape until ended is called.
func (s *state) start(b observe.BridgeView) (ended func()) {
	one := &servedBridge{b, sizes.NewStateReader(b.Client, b.Prefix)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bridges = append(s.bridges, one)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, b := range s.bridges {
			if b == one {
				s.bridges = append(s.bridges[:i:i], s.bridges[i+1:]...)
				return
			}
		}
	}
}

// Collect implements prometheus.Collector.
func (s *state) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	if len(s.bridges) == 0 {
		s.mu.Unlock()
		return
	}
	r, bridges := s.reading, s.bridges
	if r == nil {
		r = &reading{done: make(chan struct{})}
		s.reading = r
		go s.run(r, bridges)
	}
	s.mu.Unlock()
	late := time.NewTimer(s.timeout + time.Second) // ends the scrape even if a Redis call ignores its deadline
	defer late.Stop()
	select {
	case <-r.done:
		for _, m := range r.metrics {
			out <- m
		}
	case <-late.C:
		g := newGauges(s.names)
		g.addStatus(bridges)
		g.set(gaugeUp, 0)
		g.set(gaugeInfoUp, 0)
		for _, m := range g.metrics() {
			out <- m
		}
	}
}

// run makes one read, within the timeout.
func (s *state) run(r *reading, bridges []*servedBridge) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	began := time.Now()
	g := newGauges(s.names)
	g.addStatus(bridges)
	states, err := readAll(ctx, bridges)
	s.reporter.Report(err)
	if err == nil {
		g.set(gaugeUp, 1)
		g.addPartitions(states)
	} else {
		g.set(gaugeUp, 0)
	}
	g.readRedis(ctx, bridges)
	g.set(gaugeScrape, time.Since(began).Seconds())
	r.metrics = g.metrics()
	s.mu.Lock()
	s.reading = nil
	s.mu.Unlock()
	close(r.done)
}

// readAll reads the partitions that each bridge owns.
func readAll(ctx context.Context, bridges []*servedBridge) (all []sizes.PartitionState, err error) {
	for _, b := range bridges {
		some, err := b.reader.Read(ctx, b.Owned())
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// Describe implements prometheus.Collector.
func (s *state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range gaugeDescs {
		out <- d.Desc
	}
}
