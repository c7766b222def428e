package pull

import (
	"context"
	"sync"
)

// renew reads the settings and the partition count of each queue with waiting callers, so that a caller that waits for
// minutes gets its deliveries by the latest settings.
func (p *Puller) renew(ctx context.Context) {
	room := make(chan struct{}, maxProbes)
	var looks sync.WaitGroup
	for _, s := range p.awaited() {
		room <- struct{}{}
		looks.Go(func() {
			defer func() { <-room }()
			_, err := p.lookUp(ctx, s.queue, s.group, shortTimeout) // puts the settings into the source
			if ctx.Err() == nil {
				p.logFailure(s.queue, s.group, err)
			}
		})
	}
	looks.Wait()
}

// awaited returns the sources with waiting callers. A caller waits in the lines of all partitions, so the first line
// tells whether there is one. awaited leaves out a source whose partition 0, which has the settings, cannot be
// reached.
func (p *Puller) awaited() (all []*source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if first := s.lines[0]; len(first.waiters) > 0 && first.unreachable == nil {
			all = append(all, s)
		}
	}
	return all
}

// addNewPartitions adds the lines of partitions that the waiter's queues have got since the wait began. The caller
// holds Puller.mu, and the waiter is not enlisted.
func (w *waiter) addNewPartitions() {
	lineCounts := map[*source]int{}
	for _, l := range w.lines {
		lineCounts[l.source]++
	}
	for s, n := range lineCounts {
		w.lines = append(w.lines, s.lines[n:]...)
	}
}
