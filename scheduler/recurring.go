package scheduler

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
)

// recurring is the state of a scheduler's recurrences: the queues that have some, by the survey, and the planning loops
// of owned queues. A queue without recurrences is in neither map, and costs nothing. The scheduler's mu guards all of
// it.
type recurring struct {
	planner *planner.Planner
	have    map[string]bool
	loops   map[string]context.CancelFunc
}

// sawRecurrences notes from a survey whether a queue has recurrences, and starts to plan those of an owned queue.
func (s *Scheduler) sawRecurrences(ctx context.Context, queue string, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !has {
		delete(s.recurring.have, queue) // its loop ends by itself, after it has taken back the planned messages
		return
	}
	if _, partition, ok := lua.SplitPartition(queue); !ok || partition != 0 {
		return
	}
	s.recurring.have[queue] = true
	s.planOwned(ctx, queue)
}

// plans reports whether this scheduler plans the recurrences of a queue: it owns the queue among the schedulers whose
// level knows recurrences. A lower level does not plan at all. A release that does not know levels may plan the same
// queue; two planners do no harm. Under mu.
func (s *Scheduler) plans(queue string) bool {
	return owner(capable(s.live, lua.LevelRecurrences), queue) == s.members.id
}

// plansOwned starts the loops of queues with recurrences that this scheduler plans, and stops the loops of queues that
// it no longer plans. Under mu.
func (s *Scheduler) plansOwned(ctx context.Context) {
	for queue, stop := range s.recurring.loops {
		if !s.plans(queue) {
			stop()
			delete(s.recurring.loops, queue)
		}
	}
	for queue := range s.recurring.have {
		s.planOwned(ctx, queue)
	}
}

// planOwned starts the loop of a queue with recurrences, if this scheduler plans it and has no loop yet. Under mu.
func (s *Scheduler) planOwned(ctx context.Context, queue string) {
	if s.recurring.loops[queue] != nil || ctx.Err() != nil || !s.plans(queue) {
		return
	}
	own, stop := context.WithCancel(ctx)
	s.recurring.loops[queue] = stop
	s.loops.Go(func() {
		defer stop()
		s.planLoop(own, queue)
	})
}

// planLoop plans the recurrences of a queue until there are none left, or another scheduler plans them.
func (s *Scheduler) planLoop(ctx context.Context, queue string) {
	q, b := s.recurring.planner.Queue(queue), loop.NewBackoff(maxBackoff)
	st := &loop.Reporter{Log: s.cfg.Logger.With(slog.String("queue", queue)), Activity: "plan", Quiet: s.quiet}
	for ctx.Err() == nil {
		wait, err := q.Pass(ctx)
		if ctx.Err() != nil {
			return
		}
		st.Report(err)
		if err != nil {
			wait = b.NextBackOff()
		} else {
			b.Reset()
		}
		if err == nil && q.Empty() && s.plannedAll(queue) {
			return
		}
		loop.SleepUntil(ctx, wait, nil)
	}
}

// plannedAll ends the loop of a queue without recurrences. It returns false if the survey has seen one since.
func (s *Scheduler) plannedAll(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recurring.have[queue] {
		return false
	}
	if stop := s.recurring.loops[queue]; stop != nil {
		stop()
		delete(s.recurring.loops, queue)
	}
	return true
}
