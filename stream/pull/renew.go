package pull

import (
	"context"
	"sync"
)

// renew reads the settings and the partition count of each queue with waiting callers. A caller may wait for minutes,
// and gets its deliveries by the latest settings.
func (p *Puller) renew(ctx context.Context) {
	room := make(chan struct{}, mostProbes)
	var looks sync.WaitGroup
	for _, s := range p.awaited() {
		room <- struct{}{}
		looks.Go(func() {
			defer func() { <-room }()
			_, err := p.look(ctx, s.queue, s.group, lookWait)
			if ctx.Err() == nil {
				p.tell(s.queue, s.group, err)
			}
		})
	}
	looks.Wait()
}

// awaited returns the sources with waiting callers. It leaves out a source whose partition 0, which has the settings,
// cannot be reached.
func (p *Puller) awaited() (all []*source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if first := s.lines[0]; len(first.waiters) > 0 && first.away == nil {
			all = append(all, s)
		}
	}
	return all
}

// takeUpPartitions adds partitions that the waiter's queues have got since the wait began. The caller holds Puller.mu,
// and the waiter is not enlisted.
func (w *waiter) takeUpPartitions() {
	known := map[*source]int{}
	for _, l := range w.lines {
		known[l.source]++
	}
	for s, n := range known {
		w.lines = append(w.lines, s.lines[n:]...)
	}
}
