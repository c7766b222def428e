package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
)

// heldEvery is how often a survey also checks whether groups hold deleted entries: one in this many on average, because
// the check doubles its cost. It is a last resort: the keeper already watches entries that a drain added or a survey
// saw, until no group holds them.
const heldEvery = 6

// Survey looks at the next queues in turn, at most lua.MaxSurvey. They include queues of other schedulers, because any
// scheduler drains a queue that has been overdue for long. It pokes loops that would sleep past their head, and calls
// Notice, Turns or Untidy for owned queues.
func (s *Scheduler) Survey(ctx context.Context) error {
	queues := s.nextToSurvey()
	if len(queues) == 0 {
		return nil
	}
	seen := s.waker.Seen() // read before the looks: a lower token in a look then proves that the server lost its data
	looks, err := s.lookAt(ctx, queues)
	if err != nil {
		return fmt.Errorf("survey: %w", err)
	}
	changed := false
	for i, queue := range queues {
		look := looks[i]
		last := seen[lua.NewKeys(s.cfg.Prefix, queue).Wake]
		if look.Err == nil && look.SideErr == nil && tail.Earlier(look.Token, last) {
			s.waker.Reset()
		}
		changed = s.act(ctx, queue, look) || changed
	}
	if changed {
		s.watchOwned()
	}
	return nil
}

// lookAt makes one request, on a cluster one per queue.
func (s *Scheduler) lookAt(ctx context.Context, queues []string) ([]lua.Look, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	held := rand.N(heldEvery) == 0
	keys := make([]lua.Keys, len(queues))
	for i, queue := range queues {
		keys[i] = lua.NewKeys(s.cfg.Prefix, queue)
	}
	if s.cfg.Client.Mode() != rueidis.ClientModeCluster {
		return lua.Survey(ctx, s.cfg.Client, keys, held)
	}
	looks := make([]lua.Look, len(keys))
	var calls sync.WaitGroup
	for i := range keys { // all at once: a server that hangs must not use up the turns of the others
		calls.Go(func() {
			if look, err := lua.Survey(ctx, s.cfg.Client, keys[i:i+1], held); err != nil {
				looks[i].Err = err
			} else {
				looks[i] = look[0]
			}
		})
	}
	calls.Wait()
	return looks, nil
}

// moved reports whether the entries of a queue need attention: a group holds some, or they changed since the last
// survey. Entries that no group reads stay where they are, and cost nothing.
func (s *Scheduler) moved(queue, standing string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.standing[queue]
	s.standing[queue] = standing
	return standing == "" || standing != before
}

// act reacts to the look at one queue, and reports whether the blocked reads must change.
func (s *Scheduler) act(ctx context.Context, queue string, look lua.Look) (changed bool) {
	loop := s.loop(queue)
	err := look.Err
	if err == nil {
		s.sawRecurrences(ctx, queue, look.Recurs)
	}
	switch {
	case err != nil:
		if loop != nil && look.Busy && s.moved(queue, look.Standing) {
			s.cfg.Notice(queue) // entries are acknowledged and retried even if the schedule cannot be read
		}
	case loop == nil && look.Overdue > s.cfg.Overdue:
		var drained lua.Drained
		if drained, err = s.Drain(ctx, queue); err == nil && drained.Held == lua.HeldByRate {
			s.standBy(ctx, queue)
		}
	case loop != nil:
		loop.sawHead(look.Overdue)
		if look.Wait >= 0 && loop.sleepsBeyond(look.Wait) {
			loop.poke()
		}
		if look.Busy && s.moved(queue, look.Standing) {
			s.cfg.Notice(queue)
		} else if look.Turns {
			s.cfg.Turns(queue)
		} else if look.Untidy {
			s.cfg.Untidy(queue)
		}
	}
	return ctx.Err() == nil && s.remember(queue, cmp.Or(err, look.SideErr))
}
