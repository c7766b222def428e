package scheduler

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// ownership records the live schedulers, the known queues, and the partitions that this scheduler owns. Only the
// goroutines of the heartbeat, the registry and the discovery change it.
type ownership struct {
	self string // identity of this scheduler, as the others see it

	mu     sync.Mutex
	live   []string              // identities of the live schedulers, sorted
	counts map[string]lua.Counts // known queue → all its partition counts
	known  []string              // names of the partitions of all known queues, sorted; the elements never change
	owned  map[string]*drainer   // by name of the partition
	// dropped are partitions of deleted queues that this scheduler has forgotten since the last Discover.
	dropped []string

	recurring recurring
}

// Status is the state of a Scheduler as it sees it itself.
type Status struct {
	Bridge string // identity of this scheduler
	// LastHeartbeat is the local time of the last heartbeat that succeeded; zero = none has succeeded yet.
	LastHeartbeat time.Time
	// Turned tells when the heartbeat loop last came round: it is the local time at which the last round of the loop
	// ended, whether Redis answered or not; zero = no round has ended yet. If Turned is more than 30s ago, the
	// scheduler hangs.
	Turned     time.Time
	Live       []string // identities of the live schedulers at LastHeartbeat, including this one; sorted
	Queues     int      // number of known queues
	Partitions int      // number of partitions of all known queues; a queue has at least one
	Owned      int      // number of owned partitions
	Late       []Late   // owned partitions that are not drained on time, the most overdue first
}

// Status returns the current state. It does not touch Redis.
func (s *Scheduler) Status() Status {
	lastBeat, lastTurn := s.members.lastBeat(), s.members.lastTurn()
	o := &s.owners
	o.mu.Lock()
	owned := maps.Clone(o.owned)
	status := Status{
		Bridge: o.self, LastHeartbeat: lastBeat, Turned: lastTurn, Live: slices.Clone(o.live),
		Queues: len(o.counts), Partitions: len(o.known), Owned: len(owned),
	}
	o.mu.Unlock()
	status.Late = latePartitions(owned) // without mu, because it waits while a drainer writes a log line
	return status
}

// Owned returns the names of the partitions that the scheduler owns, in order. It does not touch Redis.
func (s *Scheduler) Owned() []string { return s.owners.names() }

// names returns the names of the owned partitions, sorted.
func (o *ownership) names() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.owned))
}

// drainer returns the loop of a partition; nil if this scheduler does not own it.
func (o *ownership) drainer(partition string) *drainer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owned[partition]
}

func (o *ownership) countsOf(queue string) lua.Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[queue]
}

// isFirst reports whether this scheduler has the first identity of the live schedulers.
func (o *ownership) isFirst() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.live) > 0 && o.live[0] == o.self
}

// allHaveLevel reports whether all live schedulers have at least a protocol level.
func (o *ownership) allHaveLevel(level int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(withLevel(o.live, level)) == len(o.live)
}

// takeDropped returns the partitions that were dropped since its last call.
func (o *ownership) takeDropped() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	dropped := o.dropped
	o.dropped = nil
	return dropped
}

// setLive replaces the live schedulers, and reports whether they changed.
func (o *ownership) setLive(live []string) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed = !slices.Equal(o.live, live)
	o.live = live
	return changed
}

// wakeAll lets all loops drain now, also those that back off after an error.
func (o *ownership) wakeAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.owned {
		d.wake()
	}
}

// mayStandBy reports whether another scheduler owns the partition, and this one is among the next maxStandBy owners.
func (o *ownership) mayStandBy(partition string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owned[partition] == nil && rank(o.live, partition, o.self) <= maxStandBy
}

// learn adds queues and partition counts to the known ones. It returns the known queues that queues lacks, or for which
// it lacks a count, each with all known counts.
func (s *Scheduler) learn(ctx context.Context, queues map[string]lua.Counts) (missing map[string]lua.Counts) {
	grown, missing := s.owners.learn(queues)
	if grown {
		s.assign(ctx)
		loop.Poke(s.survey) // it also covers new partitions of other schedulers
	}
	return missing
}

func (o *ownership) learn(queues map[string]lua.Counts) (grown bool, missing map[string]lua.Counts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for queue, counts := range queues {
		known := o.counts[queue]
		o.counts[queue] = known.With(counts...)
		grown = grown || known == nil || counts.Latest() > known.Latest()
	}
	missing = map[string]lua.Counts{}
	for queue, counts := range o.counts {
		if !slices.Equal(queues[queue], counts) {
			missing[queue] = counts
		}
	}
	if grown {
		o.listPartitions()
	}
	return grown, missing
}

// forget removes the given partition counts of deleted queues from the known counts. Discover watches the partitions
// that are not known any more for a minute.
func (s *Scheduler) forget(ctx context.Context, deleted map[string]lua.Counts) {
	if len(deleted) > 0 {
		s.owners.forget(deleted)
		s.assign(ctx)
	}
}

func (o *ownership) forget(deleted map[string]lua.Counts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for queue, counts := range deleted {
		known := o.counts[queue]
		left := lua.WithoutCounts(known, counts).With() // With adds the count 1, which every queue has
		o.counts[queue] = left
		o.dropped = append(o.dropped, known.Names(queue)[left.Latest():]...)
	}
	o.listPartitions()
}

// listPartitions renews the list of known partitions. The caller holds mu.
func (o *ownership) listPartitions() {
	var partitions []string
	for queue, counts := range o.counts {
		partitions = append(partitions, counts.Names(queue)...)
	}
	slices.Sort(partitions)
	o.known = partitions
}

// unknownPartitions returns, by queue, the found partitions that belong to an unknown queue or are beyond its known
// count.
func (o *ownership) unknownPartitions(found []string) map[string][]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	unknown := map[string][]int{}
	for _, name := range found {
		queue, partition, ok := lua.SplitPartition(name)
		if known := o.counts[queue]; ok && (known == nil || partition >= known.Latest()) {
			unknown[queue] = append(unknown[queue], partition)
		}
	}
	return unknown
}

// assign starts the loops of partitions that this scheduler now owns, and stops the loops of partitions that it does
// not own any more. It does not wait for a loop to end, because two loops of one partition, in one or two schedulers,
// do no harm.
func (s *Scheduler) assign(ctx context.Context) {
	s.assigning.Lock()
	defer s.assigning.Unlock()
	o := &s.owners
	o.mu.Lock()
	owned := make(map[string]*drainer, len(o.owned))
	started, lost := 0, 0
	for _, partition := range o.known {
		if owner(o.live, partition) != o.self {
			continue
		}
		d := o.owned[partition]
		if d == nil {
			d = s.startDrainer(ctx, partition)
			started++
		}
		owned[partition] = d
	}
	for partition, d := range o.owned {
		if owned[partition] == nil {
			d.cancel()
			s.surveyed.forget(partition)
			lost++
		}
	}
	o.owned = owned
	s.updatePlanLoops(ctx)
	bridges, queues, partitions := len(o.live), len(o.counts), len(o.known)
	o.mu.Unlock()
	if lost > 0 { // the survey decides whether this scheduler stands by for a lost partition
		loop.Poke(s.survey)
	}
	if started+lost > 0 {
		s.cfg.Logger.Info("queues assigned", slog.Int("queues", queues), slog.Int("partitions", partitions),
			slog.Int("owned", len(owned)), slog.Int("bridges", bridges))
		s.watchOwned()
		s.cfg.Owned(s.owners.names())
	}
}

func (s *Scheduler) startDrainer(ctx context.Context, partition string) *drainer {
	ctx, cancel := context.WithCancel(ctx)
	state := &loop.Reporter{Log: s.cfg.Logger.With(slog.String("queue", partition)), Activity: "drain", Quiet: s.quiet}
	d := newDrainer(s.pacedDrain(partition), state, cancel)
	s.loops.Go(func() { d.run(ctx) })
	return d
}

// watchOwned tells the waker for which partitions to wait: the owned ones, without the unreadable ones, which would
// make its reads fail.
func (s *Scheduler) watchOwned() {
	s.waker.watch(slices.DeleteFunc(s.owners.names(), s.surveyed.isUnreadable))
}
