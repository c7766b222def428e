package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Status is what a Scheduler knows of itself.
type Status struct {
	Bridge        string
	LastHeartbeat time.Time // local; zero = none yet
	// local: when the loop of heartbeats last came round, whether Redis answered or not; zero = not yet. More than 30s ago: it
	// hangs
	Turned     time.Time
	Live       []string // the schedulers that lived then, this one among them, in order
	Queues     int      // known
	Partitions int      // of all of them; a queue has one at least
	Owned      int      // partitions
	Late       []Late   // of the owned ones, those that are not drained on time, the latest first
}

// Status does not touch Redis.
func (s *Scheduler) Status() Status {
	at, turned := s.members.lastBeat(), s.members.lastTurn()
	s.mu.Lock()
	owned := maps.Clone(s.owned)
	status := Status{
		Bridge: s.members.id, LastHeartbeat: at, Turned: turned, Live: slices.Clone(s.live),
		Queues: len(s.counts), Partitions: len(s.known), Owned: len(owned),
	}
	s.mu.Unlock()
	status.Late = lateOnes(owned) // it waits for whoever writes a log line
	return status
}

// Owned returns the names of the partitions that the scheduler owns, in order. It does not touch Redis.
func (s *Scheduler) Owned() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.owned))
}

func (s *Scheduler) loop(queue string) *drainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owned[queue]
}

// learn adds queues and partition counts to those that are known, and returns the known queues that are not among the given ones
// with all of their counts.
func (s *Scheduler) learn(ctx context.Context, queues map[string]lua.Counts) (others map[string]lua.Counts) {
	s.mu.Lock()
	grown := false
	for queue, counts := range queues {
		known := s.counts[queue]
		s.counts[queue] = known.With(counts...)
		grown = grown || known == nil || counts.Latest() > known.Latest()
	}
	others = map[string]lua.Counts{}
	var partitions []string
	for queue, counts := range s.counts {
		if !slices.Equal(queues[queue], counts) {
			others[queue] = counts
		}
		if grown {
			partitions = append(partitions, counts.Names(queue)...)
		}
	}
	if grown {
		slices.Sort(partitions)
		s.known = partitions
	}
	s.mu.Unlock()
	if grown {
		s.assign(ctx)
		loop.Poke(s.survey) // others may own them: they are to be looked at, too
	}
	return others
}

// unheardOf returns which of the found partitions, by queue, are beyond the known count, or of queues that are not known.
func (s *Scheduler) unheardOf(found []string) map[string][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	unknown := map[string][]int{}
	for _, name := range found {
		queue, partition, ok := lua.SplitPartition(name)
		if known := s.counts[queue]; ok && (known == nil || partition >= known.Latest()) {
			unknown[queue] = append(unknown[queue], partition)
		}
	}
	return unknown
}

// assign starts the loops of partitions that are now this scheduler's, and stops those that are not any more. Nothing waits for a
// loop to end: two that overlap, here or elsewhere, do no harm.
func (s *Scheduler) assign(ctx context.Context) {
	s.assigning.Lock()
	defer s.assigning.Unlock()
	s.mu.Lock()
	owned := make(map[string]*drainer, len(s.owned))
	started, lost := 0, false
	for _, queue := range s.known {
		if owner(s.live, queue) != s.members.id {
			continue
		}
		loop := s.owned[queue]
		if loop == nil {
			loop = s.startLoop(ctx, queue)
			started++
		}
		owned[queue] = loop
	}
	changed := started > 0 || len(owned) != len(s.owned)
	for queue, loop := range s.owned {
		if owned[queue] == nil {
			loop.cancel()
			delete(s.standing, queue)
			lost = true
		}
	}
	s.owned = owned
	s.plansOwned(ctx)
	bridges, queues, partitions := len(s.live), len(s.counts), len(s.known)
	s.mu.Unlock()
	if lost { // there may be some to stand by for
		loop.Poke(s.survey)
	}
	if changed {
		s.cfg.Logger.Info("queues assigned", slog.Int("queues", queues), slog.Int("partitions", partitions),
			slog.Int("owned", len(owned)), slog.Int("bridges", bridges))
		s.cfg.Owned(s.watchOwned())
	}
}

func (s *Scheduler) startLoop(ctx context.Context, queue string) *drainer {
	ctx, cancel := context.WithCancel(ctx)
	loop := newDrainer(s.pacedDrain(queue), &loop.Reporter{Log: s.cfg.Logger.With(slog.String("queue", queue)), Activity: "drain",
		Quiet: s.quiet}, cancel)
	s.loops.Go(func() { loop.run(ctx) })
	return loop
}

// watchOwned tells the waker which queues to wait for, and returns all owned ones in order.
func (s *Scheduler) watchOwned() []string {
	s.mu.Lock()
	owned := make([]string, 0, len(s.owned))
	var readable []string
	for queue := range s.owned {
		owned = append(owned, queue)
		if t := s.trouble[queue]; t == nil || !t.unreadable {
			readable = append(readable, queue)
		}
	}
	s.mu.Unlock()
	s.waker.watch(readable)
	slices.Sort(owned)
	return owned
}

// othersPerSurvey is how many queues of others a pass looks at when not all queues fit into one pass. Their owners look at them
// in time; this helps only when an owner lives and does nothing.
const othersPerSurvey = 25

// nextToSurvey returns the partitions whose turn it is: all of them when they fit into one look, else the own ones in turn and a
// few others.
func (s *Scheduler) nextToSurvey() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) <= lua.MaxSurvey {
		return s.known
	}
	own := make([]string, 0, len(s.owned))
	others := make([]string, 0, len(s.known)-len(s.owned))
	for _, name := range s.known {
		if s.owned[name] != nil {
			own = append(own, name)
		} else {
			others = append(others, name)
		}
	}
	some := inTurn(others, &s.othersTurn, max(othersPerSurvey, lua.MaxSurvey-len(own)))
	return append(inTurn(own, &s.turn, lua.MaxSurvey-len(some)), some...)
}

// inTurn returns at most n names, from where the last call with this turn ended.
func inTurn(names []string, turn *int, n int) []string {
	if len(names) <= n {
		return names
	}
	from := *turn % len(names)
	*turn = (from + n) % len(names)
	return slices.Concat(names[from:min(from+n, len(names))], names[:max(0, from+n-len(names))])
}

// surveyInterval is the configured interval. It is shorter when the own queues do not fit into one look, but not below half.
func (s *Scheduler) surveyInterval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, most := len(s.owned), lua.MaxSurvey-othersPerSurvey
	if len(s.known) <= lua.MaxSurvey || own <= most {
		return s.cfg.SurveyInterval
	}
	return max(s.cfg.SurveyInterval/2, s.cfg.SurveyInterval*time.Duration(most)/time.Duration(own))
}

// remember takes the error of a look at a queue, or of what the look led to. It says whether the blocked read must leave the
// queue out from now on, or may take it in again.
func (s *Scheduler) remember(queue string, err error) (changed bool) {
	s.mu.Lock()
	t := s.trouble[queue]
	if t == nil && err != nil {
		t = &queueTrouble{state: loop.Reporter{Log: s.cfg.Logger.With(slog.String("queue", queue)), Activity: "survey",
			Quiet: s.quiet}}
		s.trouble[queue] = t
	}
	if t != nil {
		unreadable := errors.Is(err, lua.ErrWrongType)
		changed, t.unreadable = t.unreadable != unreadable, unreadable
	}
	s.mu.Unlock()
	if t != nil {
		t.state.Report(err)
	}
	return changed
}
