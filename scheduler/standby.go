package scheduler

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// standByEvery is the least time between two drains of a scheduler that stands by. A token bucket that holds 50 ms of
// the rate does not overflow in between.
const standByEvery = 25 * time.Millisecond

// mostStandBy is the greatest number of schedulers that stand by for a partition.
const mostStandBy = 3

// standBy drains at intervals a partition that another scheduler owns and whose rate holds messages back. A dead owner
// is replaced only after seconds; without standBy the rate of that time would be lost. Only the next few owners in the
// succession stand by. They are more than one, because some of the live ones may have just died. It ends when the rate
// holds nothing back, or when this scheduler becomes the owner. The next survey starts it again if necessary.
func (s *Scheduler) standBy(ctx context.Context, queue string) {
	if !s.mayStandBy(queue) {
		return
	}
	s.mu.Lock()
	stands := s.standsBy[queue]
	s.standsBy[queue] = true
	s.mu.Unlock()
	if stands {
		return
	}
	s.loops.Go(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.standsBy, queue)
		}()
		for s.mayStandBy(queue) {
			drained, err := s.Drain(ctx, queue)
			if err != nil || drained.Held != lua.HeldByRate {
				return
			}
			if !loop.Sleep(ctx, min(max(drained.Wait, standByEvery), s.cfg.SurveyInterval)) {
				return
			}
		}
	})
}

func (s *Scheduler) mayStandBy(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owned[queue] == nil && rank(s.live, queue, s.members.id) <= mostStandBy
}
