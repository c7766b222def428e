package scheduler

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// standByEvery is how often a scheduler that stands by drains, at most: often enough that a burst of 50 ms lasts until then.
const standByEvery = 25 * time.Millisecond

// mostStandBy is how many schedulers stand by for a partition at most, however many there are.
const mostStandBy = 3

// standBy drains a partition that another scheduler owns, and whose rate holds messages back, every now and then: an owner that
// dies is missed after seconds, and until then the rate would be lost. Few do so, those that would own it next: more than one,
// because some of the live ones may have died just now. It ends as soon as the rate holds nothing back, or the partition is this
// scheduler's own; then the survey sees when it is to begin again.
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
