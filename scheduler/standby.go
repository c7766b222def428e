package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// standByPause is the least time between two drains of a scheduler that stands by. A token bucket that holds at least
// 50 ms of the rate does not overflow between two drains.
const standByPause = 25 * time.Millisecond

// maxStandBy is the greatest number of schedulers that stand by for a partition.
const maxStandBy = 3

// standBy drains at intervals a partition that another scheduler owns and whose rate holds messages back. A dead owner
// is replaced only after some seconds, and without standBy the messages that the rate allows in that time would not be
// released. Only the next maxStandBy owners stand by. One would not be enough, because it may have died at the same
// time. standBy ends when the rate holds nothing back, or when this scheduler becomes the owner. The next survey starts
// it again if necessary.
func (s *Scheduler) standBy(ctx context.Context, queue string) {
	if !s.owners.mayStandBy(queue) || !s.standby.begin(queue) {
		return
	}
	s.loops.Go(func() {
		defer s.standby.end(queue)
		for s.owners.mayStandBy(queue) {
			drained, err := s.Drain(ctx, queue)
			if err != nil || drained.Held != lua.HeldByRate {
				return
			}
			if !loop.Sleep(ctx, min(max(drained.Wait, standByPause), s.cfg.SurveyInterval)) {
				return
			}
		}
	})
}

// standby is the set of partitions for which this scheduler stands by. The survey's goroutine adds to it, and the loop
// of each partition removes it.
type standby struct {
	mu         sync.Mutex
	partitions map[string]bool
}

// begin adds a partition. It returns false if the set has the partition already.
func (s *standby) begin(partition string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partitions[partition] {
		return false
	}
	s.partitions[partition] = true
	return true
}

func (s *standby) end(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.partitions, partition)
}
