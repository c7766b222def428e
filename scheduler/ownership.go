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

// Status is the state of a Scheduler as it sees it itself.
type Status struct {
	Bridge        string
	LastHeartbeat time.Time // local; zero = none yet
	// local time of the heartbeat loop's last round, whether Redis answered or not; zero = none yet. More than 30s ago:
	// the scheduler hangs
	Turned     time.Time
	Live       []string // sorted; the live schedulers at that time, including this one
	Queues     int      // known ones
	Partitions int      // of all known queues; a queue has one at least
	Owned      int      // owned partitions
	Late       []Late   // owned partitions that are not drained on time, the most overdue first
}

// Status returns the current state. It does not touch Redis.
func (s *Scheduler) Status() Status {
	at, turned := s.members.lastBeat(), s.members.lastTurn()
	s.mu.Lock()
	owned := maps.Clone(s.owned)
	status := Status{
		Bridge: s.members.id, LastHeartbeat: at, Turned: turned, Live: slices.Clone(s.live),
		Queues: len(s.counts), Partitions: len(s.known), Owned: len(owned),
	}
	s.mu.Unlock()
	status.Late = lateOnes(owned) // outside the lock: it waits for whoever writes a log line
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

// learn adds queues and partition counts to the known ones. It returns the known queues that the given ones lack, or
// know fewer counts of.
func (s *Scheduler) learn(ctx context.Context, queues map[string]lua.Counts) (others map[string]lua.Counts) {
	s.mu.Lock()
	grown := false
	for queue, counts := range queues {
		known := s.counts[queue]
		s.counts[queue] = known.With(counts...)
		grown = grown || known == nil || counts.Latest() > known.Latest()
	}
	others = map[string]lua.Counts{}
	for queue, counts := range s.counts {
		if !slices.Equal(queues[queue], counts) {
			others[queue] = counts
		}
	}
	if grown {
		s.listPartitions()
	}
	s.mu.Unlock()
	if grown {
		s.assign(ctx)
		loop.Poke(s.survey) // other schedulers may own them: survey them, too
	}
	return others
}

// forget removes the partition counts of deleted queues from the known counts. Discover watches their partitions for a
// while.
func (s *Scheduler) forget(ctx context.Context, deleted map[string]lua.Counts) {
	if len(deleted) == 0 {
		return
	}
	s.mu.Lock()
	for queue, counts := range deleted {
		known := s.counts[queue]
		left := lua.WithoutCounts(known, counts).With()
		s.counts[queue] = left
		s.dropped = append(s.dropped, known.Names(queue)[left.Latest():]...)
	}
	s.listPartitions()
	s.mu.Unlock()
	s.assign(ctx)
}

// listPartitions renews the list of known partitions. The caller holds mu.
func (s *Scheduler) listPartitions() {
	var partitions []string
	for queue, counts := range s.counts {
		partitions = append(partitions, counts.Names(queue)...)
	}
	slices.Sort(partitions)
	s.known = partitions
}

// unheardOf returns the found partitions that are beyond the known count or belong to an unknown queue, by queue.
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

// assign starts the loops of partitions that this scheduler now owns, and stops the loops of those that it lost. It
// does not wait for a loop to end: two loops of one partition, here or elsewhere, do no harm.
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
	if lost { // the survey may stand by for a lost one
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

// watchOwned tells the waker the queues to wait for, and returns all owned ones, sorted.
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

// othersPerSurvey is the least number of other schedulers' queues in a survey that cannot take all queues. Their owners
// survey them, too: this only helps when an owner lives but does nothing.
const othersPerSurvey = 25

// nextToSurvey returns the partitions of the next survey: all of them if they fit, else the owned ones in turn and a
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

// surveyInterval returns the configured interval, or less, down to half, when the owned queues do not fit into one
// survey.
func (s *Scheduler) surveyInterval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, most := len(s.owned), lua.MaxSurvey-othersPerSurvey
	if len(s.known) <= lua.MaxSurvey || own <= most {
		return s.cfg.SurveyInterval
	}
	return max(s.cfg.SurveyInterval/2, s.cfg.SurveyInterval*time.Duration(most)/time.Duration(own))
}

// remember notes the error of a queue's survey, or of the action that followed. It reports whether the blocked read
// must now leave the queue out, or take it in again.
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
