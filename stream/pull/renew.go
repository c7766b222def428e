package pull

import (
	"context"
	"sync"
)

// renew reads the settings and the partition count of each queue that somebody waits for. A waiting caller may wait
// for minutes, and is given deliveries by these settings.
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

// awaited returns the sources with waiting callers. It leaves out those whose partition 0 cannot be reached: that has
// the settings.
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

// takeUpPartitions adds the partitions that queues of a waiter have got since it began. Puller.mu is held, and the
// waiter is not enlisted.
func (w *waiter) takeUpPartitions() {
	known := map[*source]int{}
	for _, l := range w.lines {
		known[l.source]++
	}
	for s, n := range known {
		w.lines = append(w.lines, s.lines[n:]...)
	}
}
