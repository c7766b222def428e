package bridgetest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/stream/keeper"
)

const (
	drainMembers = 1000
	drainBytes   = 512 << 10
	aliveFor     = time.Hour // a bridge whose last heartbeat is older counts as dead
)

// steppedBridge does the work of a bridge in single passes, with the functions that the loops of a bridge call. So a
// kit knows when the work of one moment is done. Only one goroutine at a time may use it.
type steppedBridge struct {
	client  rueidis.Client
	prefix  string
	actor   string
	id      string
	log     *slog.Logger
	clock   *kitClock
	readers *readers
	written func() []string // schedules that plain commands have written since the last call
	setIdle bool            // the server counts idle times by a clock of its own: set them before they are used

	queues   map[string]string // the registry at the last look
	planner  *planner.Planner
	plans    map[string]*plans           // by queue
	keepers  map[string]*partitionKeeper // by partition
	heldTill map[string]time.Time        // partition whose rate holds messages back → when the next one may pass
	ages     ages
}

// plans are the recurrences of a queue.
type plans struct {
	queue    *planner.Queue
	revision string // at the last pass, as recurs
	recurs   int64
}

type partitionKeeper struct {
	reclaimer *keeper.Reclaimer
	trimmer   *keeper.Trimmer
}

func newSteppedBridge(
	c rueidis.Client, prefix string, log *slog.Logger, clock *kitClock, readers *readers,
) *steppedBridge {
	host, _ := os.Hostname() // without a name the identity is still unique
	identity := lua.NewIdentity(host, os.Getpid(), "")
	actor := identity.Actor()
	return &steppedBridge{
		client: c, prefix: prefix, actor: actor, id: identity.String(), log: log, clock: clock, readers: readers,
		planner: planner.New(c, prefix, actor, log), plans: map[string]*plans{},
		keepers: map[string]*partitionKeeper{}, heldTill: map[string]time.Time{}, ages: ages{clock: clock},
	}
}

// beat tells clients that a bridge is alive, and that it has all features of this release.
func (b *steppedBridge) beat(ctx context.Context) error {
	_, _, err := lua.Heartbeat(ctx, b.client, lua.NewGlobals(b.prefix), b.id, aliveFor)
	return err
}

// pass does what a bridge does at the present time of the clock. It returns whether it changed anything that may ask
// for another pass.
func (b *steppedBridge) pass(ctx context.Context, s *state) (changed bool, err error) {
	for _, p := range s.partitions {
		drained, err := b.drain(ctx, p)
		if err != nil {
			return changed, err
		}
		changed = changed || drained
	}
	for _, p := range s.partitions {
		for _, one := range []func(context.Context, *partition) (bool, error){b.plan, b.reclaim, b.passTurns} {
			did, err := one(ctx, p)
			if err != nil {
				return changed, err
			}
			changed = changed || did
		}
	}
	return changed, nil
}

// drain moves the due messages of a partition into its stream.
func (b *steppedBridge) drain(ctx context.Context, p *partition) (changed bool, err error) {
	now := b.clock.Now()
	if p.due.IsZero() || p.due.After(now) {
		delete(b.heldTill, p.name)
		return false, nil
	}
	drained, err := lua.Drain(ctx, b.client, p.keys, drainMembers, drainBytes)
	switch {
	case err != nil:
		return false, fmt.Errorf("drain %s: %w", p.name, err)
	case drained.Refusal+drained.DeadRefusal != "":
		return false, fmt.Errorf("drain %s: the server refuses an entry: %s", p.name, drained.Refusal+drained.DeadRefusal)
	}
	delete(b.heldTill, p.name)
	if drained.Held == lua.HeldByRate && drained.Wait > 0 {
		b.heldTill[p.name] = now.Add(max(time.Millisecond, ceilMillis(drained.Wait)))
	}
	return drained.Moved+drained.Dead > 0, nil
}

func ceilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// plan plans the recurrences of a queue, if the time has come for one of them, or if one has changed.
func (b *steppedBridge) plan(ctx context.Context, p *partition) (changed bool, err error) {
	if !p.isOne {
		return false, nil
	}
	all := b.plans[p.queue]
	if all == nil {
		if p.recurs == 0 {
			return false, nil
		}
		all = &plans{queue: b.planner.Queue(p.queue)}
		b.plans[p.queue] = all
	}
	next := all.queue.NextPass()
	isTime := !next.IsZero() && !next.After(b.clock.Now())
	if !isTime && all.revision == p.revision && all.recurs == p.recurs {
		return false, nil
	}
	if _, err := all.queue.Pass(ctx); err != nil {
		return false, err
	}
	all.revision, all.recurs = p.revision, p.recurs
	if all.queue.Empty() {
		delete(b.plans, p.queue)
	}
	return true, nil
}

// reclaim takes entries from consumers that hold them for longer than the visibility timeout, or than their lease. It
// leaves out the entries of workers: a worker extends them, or the kit reports that it hangs.
func (b *steppedBridge) reclaim(ctx context.Context, p *partition) (changed bool, err error) {
	now := b.clock.Now()
	isOver := !p.lease.IsZero() && !p.lease.After(now)
	abandoned := b.abandoned(p)
	if len(abandoned) == 0 {
		return false, nil
	}
	timeouts, err := b.timeouts(ctx, p)
	if err != nil {
		return false, err
	}
	for _, held := range abandoned {
		isOver = isOver || b.ages.of(p, held) >= timeouts[held.group]
	}
	if !isOver {
		return false, nil
	}
	for _, held := range abandoned {
		if err := b.setIdleTime(ctx, p, held); err != nil {
			return false, err
		}
	}
	reclaimed, err := b.keeperOf(p).reclaimer.Reclaim(ctx)
	return reclaimed.Moved() > 0 || reclaimed.More, err
}

// setIdleTime gives the server the time for which an entry is pending by the clock of the kit. JUSTID leaves the number
// of deliveries as it is.
func (b *steppedBridge) setIdleTime(ctx context.Context, p *partition, held heldEntry) error {
	if !b.setIdle {
		return nil
	}
	idle, c := b.ages.of(p, held), b.client
	claim := c.B().Xclaim().Key(p.keys.Stream).Group(held.group).Consumer(held.consumer).MinIdleTime("0").Id(held.id).
		Idle(idle.Milliseconds()).Justid().Build()
	if err := c.Do(ctx, claim).Error(); err != nil {
		return lua.Classify("XCLAIM", err)
	}
	b.ages.noteIdle(p, held, idle)
	return nil
}

// abandoned returns the pending entries that no worker holds.
func (b *steppedBridge) abandoned(p *partition) []heldEntry {
	return slices.DeleteFunc(slices.Clone(p.held), func(held heldEntry) bool {
		return b.readers.isLive(consumer{p.keys.Stream, held.group, held.consumer})
	})
}

// timeouts returns the visibility timeouts of a partition's groups.
func (b *steppedBridge) timeouts(ctx context.Context, p *partition) (map[string]time.Duration, error) {
	var names []string
	for _, g := range p.groups {
		names = append(names, g.Name)
	}
	policies, _, err := policy.ReadGroups(ctx, b.client, b.prefix, p.name, names)
	if err != nil {
		return nil, err
	}
	timeouts := map[string]time.Duration{}
	for name, one := range policies {
		timeouts[name] = one.VisibilityTimeout
	}
	return timeouts, nil
}

// passTurns releases the next messages of ordering keys whose holders are gone.
func (b *steppedBridge) passTurns(ctx context.Context, p *partition) (changed bool, err error) {
	if p.turns == 0 {
		return false, nil
	}
	changes, err := b.keeperOf(p).trimmer.PassTurns(ctx)
	return changes > 0, err
}

// trim frees what consumers that only send XACK have acknowledged.
func (b *steppedBridge) trim(ctx context.Context, s *state) error {
	for _, p := range s.partitions {
		if p.hasEntry && len(p.groups) > 0 {
			if _, err := b.keeperOf(p).trimmer.Trim(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *steppedBridge) keeperOf(p *partition) *partitionKeeper {
	one := b.keepers[p.name]
	if one == nil {
		one = &partitionKeeper{
			reclaimer: keeper.NewReclaimer(keeper.ReclaimerConfig{Client: b.client, Prefix: b.prefix, Queue: p.name,
				Logger: b.log, Actor: b.actor}),
			trimmer: keeper.NewTrimmer(b.client, b.prefix, p.name),
		}
		b.keepers[p.name] = one
	}
	return one
}

// next returns the time at which something will be due next; the zero time if nothing will.
func (b *steppedBridge) next(ctx context.Context, s *state) (next time.Time, err error) {
	now := b.clock.Now()
	add := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	add(b.clock.nextTimer())
	for _, p := range s.partitions {
		add(p.due)
		add(b.heldTill[p.name])
		if all := b.plans[p.queue]; all != nil && p.isOne {
			add(all.queue.NextPass())
		}
		abandoned := b.abandoned(p)
		if len(abandoned) == 0 {
			continue
		}
		add(p.lease)
		timeouts, err := b.timeouts(ctx, p)
		if err != nil {
			return next, err
		}
		for _, held := range abandoned {
			add(now.Add(timeouts[held.group] - b.ages.of(p, held)))
		}
	}
	return next, nil
}
