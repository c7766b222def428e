package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
)

// registryPause is the least time between two reads of the registry, for when many queues are added one after the
// other.
const registryPause = 100 * time.Millisecond

// Scheduler drains the queues that it owns on time, and any queue that has been overdue for long. One Redis may have
// any number of schedulers.
type Scheduler struct {
	cfg     Config
	globals lua.Globals
	members *membership
	waker   *waker
	scan    discoverer // only used by Discover's goroutine
	// also only used by Discover's goroutine: found partitions that must be registered before they are served
	unregistered []string
	strays       map[string]*stray // also of Discover's goroutine
	registry     chan struct{}
	survey       chan struct{}
	discover     chan struct{}
	started      atomic.Bool
	loops        sync.WaitGroup // of drainers

	assigning sync.Mutex // serialises assign and the Owned callback

	mu               sync.Mutex
	live             []string              // sorted
	counts           map[string]lua.Counts // every known queue with all its partition counts
	known            []string              // names of all their partitions; sorted, replaced as a whole
	owned            map[string]*drainer   // by partition, as is trouble
	trouble          map[string]*queueTrouble
	standsBy         map[string]bool   // by partition, owned by another scheduler
	standing         map[string]string // by owned partition: lua.Look.Standing of the last survey
	dropped          []string          // partitions of deleted queues that this scheduler forgot since the last Discover
	turn, othersTurn int               // where the next survey begins, among the owned and the others
	recurring        recurring
}

// queueTrouble is the survey's state of a queue that has failed once.
type queueTrouble struct {
	state      loop.Reporter
	unreadable bool // a key holds the wrong type: it would stop the blocked read for all
}

// New returns a Scheduler. It does not touch Redis.
func New(cfg Config) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{
		cfg: cfg, globals: lua.NewGlobals(cfg.Prefix), scan: discoverer{client: cfg.Client, prefix: cfg.Prefix},
		registry: make(chan struct{}, 1), survey: make(chan struct{}, 1), discover: make(chan struct{}, 1),
		counts: map[string]lua.Counts{}, owned: map[string]*drainer{}, strays: map[string]*stray{},
		trouble: map[string]*queueTrouble{}, standing: map[string]string{}, standsBy: map[string]bool{},
		recurring: recurring{planner.New(cfg.Client, cfg.Prefix, cfg.Identity.Actor(), cfg.Logger), map[string]bool{},
			map[string]context.CancelFunc{}},
	}
	s.members = newMembership(cfg, s.joined)
	s.waker = newWaker(cfg, s.woken, s.wakeBroke)
	return s, nil
}

// Run keeps the queues drained until ctx ends. Then it leaves the membership, so that the others take over within a
// heartbeat, and returns nil. It never gives up in an outage; each change of state is logged once. No goroutine
// outlives it. It may be called once.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("Run of a scheduler may be called once")
	}
	always := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	var loops sync.WaitGroup
	loops.Go(func() { s.waker.Run(ctx) })
	loops.Go(func() {
		loop.Every(ctx, always(s.cfg.HeartbeatInterval), loop.NewBackoff(maxBackoff), nil, s.members.Beat)
	})
	loops.Go(func() {
		loop.Every(ctx, always(s.cfg.RegistryInterval), loop.NewBackoff(maxBackoff), s.registry,
			s.reported("read the registry", s.readRegistry))
	})
	loops.Go(func() {
		loop.Every(ctx, always(s.cfg.DiscoverInterval), loop.NewBackoff(maxBackoff), s.discover,
			s.reported("look for queues", s.Discover))
	})
	loops.Go(func() {
		loop.Every(ctx, s.surveyInterval, loop.NewBackoff(maxBackoff), s.survey, s.reported("survey", s.Survey))
	})
	loops.Wait()
	s.loops.Wait()
	s.members.leave()
	return nil
}

// Drain moves the due messages of one queue into its stream, within the limits of one drain, whoever owns the queue.
// ErrRefused: the stream refuses entries. Concurrent drains do no harm. One round trip, O(log n) per message.
func (s *Scheduler) Drain(ctx context.Context, queue string) (lua.Drained, error) {
	drained, err := s.drain(ctx, queue, s.cfg.DrainLimit)
	tellDrained(s.seriesOf(queue), drained)
	return drained, err
}

// pacedDrain returns the drain of a loop. Its limit is the number of members that fit into the server's time budget.
func (s *Scheduler) pacedDrain(queue string) func(context.Context) (lua.Drained, error) {
	p, tell, limited := &pace{most: s.cfg.DrainLimit}, s.seriesOf(queue), limitedSince{}
	return func(ctx context.Context) (lua.Drained, error) {
		began := time.Now()
		drained, err := s.drain(ctx, queue, p.limit())
		limited.leaveOut(&drained, began)
		tellDrained(tell, drained)
		took, idle := time.Since(began), s.members.roundTrip()
		p.took(drained.Moved+drained.Dead, took, idle)
		if drained.Wait > 0 { // Wait counts from the beginning of the script
			drained.Wait = max(time.Microsecond, drained.Wait-max(0, took-idle))
		}
		return drained, err
	}
}

func (s *Scheduler) drain(ctx context.Context, queue string, limit int) (lua.Drained, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	keys := lua.NewKeys(s.cfg.Prefix, queue).As(s.cfg.Identity.Actor())
	drained, err := lua.Drain(ctx, s.cfg.Client, keys, limit, s.cfg.DrainMaxBytes)
	if drained.Moved+drained.Dead > 0 {
		s.cfg.Notice(queue)
	}
	if err == nil && drained.Refusal != "" {
		err = fmt.Errorf("%w: %s", ErrRefused, drained.Refusal)
	}
	if err != nil {
		err = fmt.Errorf("drain %s: %w", queue, err)
	}
	return drained, err
}

// readRegistry learns the registered queues and their partition counts, and registers the known ones that the server
// lost.
func (s *Scheduler) readRegistry(ctx context.Context) error {
	defer loop.SleepUntil(ctx, registryPause, nil)
	return s.syncRegistry(ctx)
}

// syncRegistry does the work of readRegistry. It also forgets partition counts of deleted queues.
func (s *Scheduler) syncRegistry(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	registered, err := lua.ReadRegistry(call, s.cfg.Client, s.globals)
	if err != nil {
		return fmt.Errorf("read the registry: %w", err)
	}
	missing := s.learn(ctx, registered)
	if len(missing) == 0 {
		return nil
	}
	mark := s.cfg.Client.B().Hget().Key(s.globals.Queues).Field(lua.RegistryDeleted).Build()
	err = s.cfg.Client.Do(call, mark).Error()
	if rueidis.IsRedisNil(err) { // the registry was lost, and these queues were not deleted
		return s.register(ctx, missing)
	}
	if err != nil {
		return fmt.Errorf("read the registry: %w", lua.Classify("HGET "+s.globals.Queues, err))
	}
	alive, err := s.alive(ctx, registered, missing)
	return errors.Join(err, s.registerRemembered(ctx, alive))
}

// alive returns the queues that are registered with other counts, or have any key. When the registry was not lost, the
// other queues missing from it were deleted: registering them would bring them back.
func (s *Scheduler) alive(ctx context.Context,
	registered, queues map[string]lua.Counts) (map[string]lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var names []string // of partitions
	var of []string    // their queues
	var asks []rueidis.Completed
	found := map[string]lua.Counts{}
	for queue, counts := range queues {
		if registered[queue] != nil {
			found[queue] = counts
			continue
		}
		for _, name := range counts.Names(queue) {
			k := lua.NewKeys(s.cfg.Prefix, name)
			names, of = append(names, name), append(of, queue)
			asks = append(asks, s.cfg.Client.B().Exists().Key(k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Policy,
				k.Seen, k.Recurring).Build())
		}
	}
	if len(asks) == 0 {
		return found, nil
	}
	var errs []error
	for i, reply := range s.cfg.Client.DoMulti(ctx, asks...) {
		n, err := reply.AsInt64()
		if err != nil {
			errs = append(errs, fmt.Errorf("keys of %s: %w", names[i], lua.Classify("EXISTS", err)))
		}
		if n > 0 {
			found[of[i]] = queues[of[i]]
		}
	}
	return found, errors.Join(errs...)
}

// registerRemembered registers queues with the counts that this bridge knows. It forgets counts of deleted queues.
func (s *Scheduler) registerRemembered(ctx context.Context, queues map[string]lua.Counts) error {
	if len(queues) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	current, err := lua.SyncCounts(call, s.cfg.Client, s.globals, queues)
	if err != nil {
		return fmt.Errorf("register %d queues: %w", len(queues), err)
	}
	deleted := map[string]lua.Counts{}
	for queue, counts := range queues {
		if gone := lua.WithoutCounts(counts, current[queue]); len(gone) > 0 {
			deleted[queue] = gone
		}
	}
	s.forget(ctx, deleted)
	return nil
}

// Discover scans the next keys of the server for unregistered queues, and for partitions beyond the known count. It
// registers the queues, and partitions that a growth has prepared. It moves messages of any other partition to the
// partition in which they belong, and watches partitions that the scheduler forgot within the last minute. Only the
// first live scheduler does this.
func (s *Scheduler) Discover(ctx context.Context) error {
	s.mu.Lock()
	first := len(s.live) > 0 && s.live[0] == s.members.id
	dropped := s.dropped
	s.dropped = nil
	s.mu.Unlock()
	if !first {
		return nil
	}
	s.watchDropped(dropped)
	found, err := s.scan.Step(ctx)
	if err == nil {
		err = s.place(ctx, append(found, s.unregistered...))
	}
	s.moveStrays(ctx)
	return err
}

func (s *Scheduler) place(ctx context.Context, found []string) error {
	var err error
	unknown := s.unheardOf(found)
	if len(unknown) > 0 { // unknown to this bridge: the published count may already include them
		err = s.syncRegistry(ctx)
		unknown = s.unheardOf(found)
	}
	publish, strays, failed := s.placed(ctx, unknown)
	if err == nil {
		err = s.register(ctx, publish)
	}
	err = errors.Join(err, failed)
	s.unregistered = nil
	if err != nil && (lua.Temporary(err) || ctx.Err() != nil) && s.cfg.Client.Mode() != rueidis.ClientModeCluster {
		// A drained queue has no schedule by which a bridge could find it again. If the bridge that drained it dies,
		// its messages would stay for ever.
		s.unregistered = found
		return err
	}
	s.learn(ctx, publish) // on a cluster the registry may be out of reach while the queue is not
	if err == nil {
		s.foundStrays(strays)
	}
	return err
}

func (s *Scheduler) register(ctx context.Context, queues map[string]lua.Counts) error {
	if len(queues) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	_, err := lua.RegisterCounts(ctx, s.cfg.Client, s.globals, queues)
	if err != nil {
		err = fmt.Errorf("register %d queues: %w", len(queues), err)
	}
	return err
}

// joined handles each good heartbeat. After an outage everything that backs off is retried at once.
func (s *Scheduler) joined(ctx context.Context, live []string, fresh bool) {
	s.mu.Lock()
	changed := !slices.Equal(s.live, live)
	s.live = live
	if fresh {
		for _, loop := range s.owned {
			loop.retry()
		}
	}
	s.mu.Unlock()
	if changed {
		s.assign(ctx)
	}
	if fresh {
		loop.Poke(s.registry)
		loop.Poke(s.survey)
		loop.Poke(s.discover)
	}
}

// woken handles a wake token of a queue; "" = of the shared stream.
func (s *Scheduler) woken(queue string) {
	if queue == "" {
		loop.Poke(s.registry)
	} else if loop := s.loop(queue); loop != nil {
		loop.poke()
		s.cfg.Notice(queue) // the token may announce a lease, which must be watched from its beginning
	}
}

// wakeBroke handles an error of a blocked read. That read is the first to notice when the server goes away.
func (s *Scheduler) wakeBroke(err error) {
	if errors.Is(err, lua.ErrWrongType) {
		loop.Poke(s.survey) // the survey finds out which queue it is
	}
}

// reported wraps a pass so that its changes of state are logged. On a single server only the heartbeat logs that the
// server is unavailable.
func (s *Scheduler) reported(what string, pass func(context.Context) error) func(context.Context) error {
	st := &loop.Reporter{Log: s.cfg.Logger, Activity: what, Quiet: s.quiet}
	return func(ctx context.Context) error {
		err := pass(ctx)
		if ctx.Err() == nil {
			st.Report(err)
		}
		return err
	}
}

func (s *Scheduler) quiet(err error) bool {
	return s.cfg.Client.Mode() != rueidis.ClientModeCluster && lua.Temporary(err)
}
