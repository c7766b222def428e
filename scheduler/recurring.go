package scheduler

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
)

// recurring is what a scheduler knows of recurrences: which queues have some, by the survey, and the loops that plan those of
// owned queues. A queue without recurrences has neither, and costs nothing. All of it is under the scheduler's mu.
type recurring struct {
	planner *planner.Planner
	have    map[string]bool
	loops   map[string]context.CancelFunc
}

// sawRecurrences takes from a look whether a queue has recurrences, and plans those of an owned one from then on.
func (s *Scheduler) sawRecurrences(ctx context.Context, queue string, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !has {
		delete(s.recurring.have, queue) // its loop ends by itself, when it has taken back what was planned
		return
	}
	if _, partition, ok := lua.SplitPartition(queue); !ok || partition != 0 {
		return
	}
	s.recurring.have[queue] = true
	s.planOwned(ctx, queue)
}

// plans reports whether the recurrences of a queue are this scheduler's to plan: it owns the queue among the schedulers that know
// recurrences. An older owner does not plan them; one of the others that does not know of levels plans them as well, and two that
// plan do no harm. Under mu.
func (s *Scheduler) plans(queue string) bool {
	return owner(capable(s.live, lua.LevelRecurrences), queue) == s.members.id
}

// plansOwned starts loops for queues with recurrences that are this scheduler's to plan, and stops those of others. Under mu.
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

// planOwned starts the loop of a queue with recurrences, if it is ours to plan and has none. Under mu.
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

// planLoop plans the recurrences of a queue until there are none, or it is somebody else's.
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

// plannedAll has the loop of a queue without recurrences end; false: the survey has seen one since.
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
