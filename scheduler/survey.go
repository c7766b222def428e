package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
)

// pendingCheckEvery is the number of surveys of which one, on average, also checks whether groups hold deleted entries.
// Not every survey does, because the check doubles the cost. The check rarely finds anything, because the keeper
// watches entries that a drain added or a survey saw until no group holds them.
const pendingCheckEvery = 6

// Survey examines the next queues in turn, at most lua.MaxSurvey. They include queues of other schedulers, because any
// scheduler drains a queue that has been overdue for long. Survey wakes loops that would sleep past the due time of
// their first message, and calls Notice, Turns or Untidy for owned queues.
func (s *Scheduler) Survey(ctx context.Context) error {
	queues := s.nextToSurvey()
	if len(queues) == 0 {
		return nil
	}
	// The tokens are read before the queues. So a queue with an earlier token proves that the server has lost data.
	tokens := s.waker.Seen()
	looks, err := s.lookAt(ctx, queues)
	if err != nil {
		return fmt.Errorf("survey: %w", err)
	}
	changed := false
	for i, queue := range queues {
		look := looks[i]
		last := tokens[lua.NewKeys(s.cfg.Prefix, queue).Wake]
		if look.Err == nil && look.SideErr == nil && tail.Earlier(look.Token, last) {
			s.waker.Reset()
		}
		changed = s.react(ctx, queue, look) || changed
	}
	if changed {
		s.watchOwned()
	}
	return nil
}

// lookAt reads the state of queues in one request, on a cluster in one request per queue.
func (s *Scheduler) lookAt(ctx context.Context, queues []string) ([]lua.Look, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	checkPending := rand.N(pendingCheckEvery) == 0
	keys := make([]lua.Keys, len(queues))
	for i, queue := range queues {
		keys[i] = lua.NewKeys(s.cfg.Prefix, queue)
	}
	if s.cfg.Client.Mode() != rueidis.ClientModeCluster {
		return lua.Survey(ctx, s.cfg.Client, keys, checkPending)
	}
	looks := make([]lua.Look, len(keys))
	var calls sync.WaitGroup
	for i := range keys { // concurrent requests, because a server that hangs must not delay the other queues
		calls.Go(func() {
			if look, err := lua.Survey(ctx, s.cfg.Client, keys[i:i+1], checkPending); err != nil {
				looks[i].Err = err
			} else {
				looks[i] = look[0]
			}
		})
	}
	calls.Wait()
	return looks, nil
}

// react drains, wakes or reports a queue, as its state demands. It reports whether the blocked reads must leave the
// queue out from now on, or include it again.
func (s *Scheduler) react(ctx context.Context, queue string, look lua.Look) (changed bool) {
	own := s.owners.drainer(queue)
	err := look.Err
	if err == nil {
		s.noteRecurrences(ctx, queue, look.Recurs)
	}
	switch {
	case err != nil:
		if own != nil && look.Busy && s.surveyed.needsAttention(queue, look.Standing) {
			s.cfg.Notice(queue) // entries must be acknowledged and retried even if the schedule cannot be read
		}
	case own == nil && look.Overdue > s.cfg.Overdue:
		var drained lua.Drained
		if drained, err = s.Drain(ctx, queue); err == nil && drained.Held == lua.HeldByRate {
			s.standBy(ctx, queue)
		}
	case own != nil:
		own.noteOldestDue(look.Overdue)
		if look.Wait >= 0 && own.sleepsBeyond(look.Wait) {
			own.poke()
		}
		if look.Busy && s.surveyed.needsAttention(queue, look.Standing) {
			s.cfg.Notice(queue)
		} else if look.Turns {
			s.cfg.Turns(queue)
		} else if look.Untidy {
			s.cfg.Untidy(queue)
		}
	}
	return ctx.Err() == nil && s.noteSurveyError(queue, cmp.Or(err, look.SideErr))
}

// turns are the indexes at which the next survey begins, among the owned partitions and among the others.
type turns struct{ own, others int }

// othersPerSurvey is the least number of other schedulers' queues in a survey that cannot cover all queues. Their
// owners survey these queues as well. So a look at them only helps if an owner sends heartbeats and does not drain.
const othersPerSurvey = 25

// nextToSurvey returns the partitions of the next survey: all of them if they fit, else the owned ones in turn and a
// few others.
func (s *Scheduler) nextToSurvey() []string {
	o := &s.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) <= lua.MaxSurvey {
		return o.known
	}
	own := make([]string, 0, len(o.owned))
	others := make([]string, 0, len(o.known)-len(o.owned))
	for _, name := range o.known {
		if o.owned[name] != nil {
			own = append(own, name)
		} else {
			others = append(others, name)
		}
	}
	someOthers := nextInTurn(others, &s.turns.others, max(othersPerSurvey, lua.MaxSurvey-len(own)))
	return append(nextInTurn(own, &s.turns.own, lua.MaxSurvey-len(someOthers)), someOthers...)
}

// nextInTurn returns at most n names, beginning with the index turn. It sets turn to the index after the last name that
// it returns.
func nextInTurn(names []string, turn *int, n int) []string {
	if len(names) <= n {
		return names
	}
	from := *turn % len(names)
	*turn = (from + n) % len(names)
	return slices.Concat(names[from:min(from+n, len(names))], names[:max(0, from+n-len(names))])
}

// surveyInterval returns the configured interval. If the owned queues do not fit into one survey, it returns less, but
// at least half.
func (s *Scheduler) surveyInterval() time.Duration {
	o := &s.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	owned, ownedPerSurvey := len(o.owned), lua.MaxSurvey-othersPerSurvey
	if len(o.known) <= lua.MaxSurvey || owned <= ownedPerSurvey {
		return s.cfg.SurveyInterval
	}
	return max(s.cfg.SurveyInterval/2, s.cfg.SurveyInterval*time.Duration(ownedPerSurvey)/time.Duration(owned))
}

// noteSurveyError notes the error of a queue's survey, or of the action that followed. It reports whether the blocked
// reads must leave the queue out from now on, or include it again.
func (s *Scheduler) noteSurveyError(queue string, err error) (changed bool) {
	trouble, changed := s.surveyed.note(queue, err, func() *queueTrouble {
		return &queueTrouble{state: loop.Reporter{
			Log:      s.cfg.Logger.With(slog.String("queue", queue)),
			Activity: "survey",
			Quiet:    s.quiet,
		}}
	})
	if trouble != nil {
		trouble.state.Report(err)
	}
	return changed
}

// surveyed holds the results of surveys, by partition. The survey's goroutine writes it, and assign reads it.
type surveyed struct {
	mu       sync.Mutex
	standing map[string]string        // owned partition → lua.Look.Standing of the last survey
	trouble  map[string]*queueTrouble // only partitions whose survey has failed at least once
}

// queueTrouble is the state of a partition whose survey has failed at least once.
type queueTrouble struct {
	state loop.Reporter
	// unreadable: a key has the wrong type, and would make the blocked read of all partitions fail. Guarded by
	// surveyed.mu.
	unreadable bool
}

// needsAttention reports whether the entries of a queue need attention: a group holds some of them, or they have
// changed since the last survey. Entries that no group reads do not change, and need none.
func (s *surveyed) needsAttention(queue, standing string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.standing[queue]
	s.standing[queue] = standing
	return standing == "" || standing != before
}

// forget removes the standing of a partition that this scheduler does not own any more.
func (s *surveyed) forget(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.standing, partition)
}

func (s *surveyed) isUnreadable(partition string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trouble[partition]
	return t != nil && t.unreadable
}

// note records the result of a partition's survey. It returns the state of the partition, or nil if its survey never
// failed. changed is set if the partition became unreadable, or readable again.
func (s *surveyed) note(partition string, err error,
	newTrouble func() *queueTrouble) (t *queueTrouble, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t = s.trouble[partition]
	if t == nil && err == nil {
		return nil, false
	}
	if t == nil {
		t = newTrouble()
		s.trouble[partition] = t
	}
	unreadable := errors.Is(err, lua.ErrWrongType)
	changed, t.unreadable = t.unreadable != unreadable, unreadable
	return t, changed
}
