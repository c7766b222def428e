package scheduler

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
)

// recurring is the state of a scheduler's recurrences. A queue without recurrences is in neither map. The mu of
// ownership guards all fields.
type recurring struct {
	planner *planner.Planner
	queues  map[string]bool               // queues in which the last survey found recurrences
	loops   map[string]context.CancelFunc // queue → end of its planning loop
}

// noteRecurrences notes from a survey whether a queue has recurrences. If it has, and this scheduler plans the queue,
// noteRecurrences starts the planning loop.
func (s *Scheduler) noteRecurrences(ctx context.Context, queue string, has bool) {
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	if !has {
		delete(s.owners.recurring.queues, queue) // the loop removes the planned messages, and then ends
		return
	}
	if _, partition, ok := lua.SplitPartition(queue); !ok || partition != 0 {
		return
	}
	s.owners.recurring.queues[queue] = true
	s.startPlanLoop(ctx, queue)
}

// isPlanner reports whether this scheduler plans the recurrences of a queue: it owns the queue among the schedulers
// whose protocol level includes recurrences. Schedulers of a lower level plan nothing. A scheduler of a release before
// levels may plan the same queue, but two planners do no harm. The caller holds mu of ownership.
func (s *Scheduler) isPlanner(queue string) bool {
	return owner(withLevel(s.owners.live, lua.LevelRecurrences), queue) == s.owners.self
}

// updatePlanLoops starts the loops of queues with recurrences that this scheduler plans, and stops the loops of queues
// that it no longer plans. The caller holds mu of ownership.
func (s *Scheduler) updatePlanLoops(ctx context.Context) {
	for queue, stop := range s.owners.recurring.loops {
		if !s.isPlanner(queue) {
			stop()
			delete(s.owners.recurring.loops, queue)
		}
	}
	for queue := range s.owners.recurring.queues {
		s.startPlanLoop(ctx, queue)
	}
}

// startPlanLoop starts the loop of a queue with recurrences, if this scheduler plans the queue and has no loop yet. The
// caller holds mu of ownership.
func (s *Scheduler) startPlanLoop(ctx context.Context, queue string) {
	if s.owners.recurring.loops[queue] != nil || ctx.Err() != nil || !s.isPlanner(queue) {
		return
	}
	loopCtx, stop := context.WithCancel(ctx)
	s.owners.recurring.loops[queue] = stop
	s.loops.Go(func() {
		defer stop()
		s.planLoop(loopCtx, queue)
	})
}

// planLoop plans the recurrences of a queue until the queue has none, or another scheduler plans them.
func (s *Scheduler) planLoop(ctx context.Context, queue string) {
	q, b := s.owners.recurring.planner.Queue(queue), loop.NewBackoff(maxBackoff)
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
		if err == nil && q.Empty() && s.endPlanLoop(queue) {
			return
		}
		loop.SleepUntil(ctx, wait, nil)
	}
}

// endPlanLoop removes the loop of a queue without recurrences. If the last survey found recurrences, endPlanLoop
// returns false, and the loop must continue.
func (s *Scheduler) endPlanLoop(queue string) bool {
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	if s.owners.recurring.queues[queue] {
		return false
	}
	if stop := s.owners.recurring.loops[queue]; stop != nil {
		stop()
		delete(s.owners.recurring.loops, queue)
	}
	return true
}
