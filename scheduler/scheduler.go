package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
)

// Scheduler drains the queues that it owns at their due times, and any queue whose messages have been overdue for
// longer than Config.Overdue. One Redis may have any number of schedulers.
type Scheduler struct {
	cfg     Config
	globals lua.Globals
	started atomic.Bool
	loops   sync.WaitGroup // loops of drainers, of planners and of stand-bys

	// Shared by the goroutines. Each has a lock of its own.
	members  *membership
	waker    *waker
	owners   ownership
	surveyed surveyed
	standby  standby

	turns     turns     // only the survey's goroutine uses it
	discovery discovery // only Discover's goroutine uses it

	assigning sync.Mutex // serialises assign and the Owned callback

	// A value in one of these channels starts the next pass of the loop of that name at once.
	registry, survey, discover chan struct{}
}

// New returns a Scheduler. It does not touch Redis.
func New(cfg Config) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	globals := lua.NewGlobals(cfg.Prefix)
	s := &Scheduler{
		cfg: cfg, globals: globals,
		owners: ownership{
			self: cfg.Identity.String(), counts: map[string]lua.Counts{}, owned: map[string]*drainer{},
			recurring: recurring{
				planner: planner.New(cfg.Client, cfg.Prefix, cfg.Identity.Actor(), cfg.Logger),
				queues:  map[string]bool{},
				loops:   map[string]context.CancelFunc{},
			},
		},
		surveyed: surveyed{standing: map[string]string{}, trouble: map[string]*queueTrouble{}},
		standby:  standby{partitions: map[string]bool{}},
		registry: make(chan struct{}, 1), survey: make(chan struct{}, 1), discover: make(chan struct{}, 1),
	}
	s.discovery = newDiscovery(cfg, s.quiet)
	s.members = newMembership(cfg, s.onHeartbeat)
	s.waker = newWaker(cfg, s.onToken, s.onReadError)
	return s, nil
}

// Run drains the queues until ctx ends. Then it removes this scheduler from the live ones, so that the others take over
// its queues within a heartbeat, and returns nil. During an outage of Redis it keeps trying. It logs each change of
// state once. No goroutine outlives Run. It may be called once.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("Run of a scheduler may be called once")
	}
	fixed := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	var loops sync.WaitGroup
	loops.Go(func() { s.waker.Run(ctx) })
	loops.Go(func() {
		loop.Every(ctx, fixed(s.cfg.HeartbeatInterval), loop.NewBackoff(maxBackoff), nil, s.members.Beat)
	})
	loops.Go(func() {
		loop.Every(ctx, fixed(s.cfg.RegistryInterval), loop.NewBackoff(maxBackoff), s.registry,
			s.withReport("read the registry", s.readRegistry))
	})
	loops.Go(func() {
		loop.Every(ctx, fixed(s.cfg.DiscoverInterval), loop.NewBackoff(maxBackoff), s.discover,
			s.withReport("look for queues", s.Discover))
	})
	loops.Go(func() {
		loop.Every(ctx, s.surveyInterval, loop.NewBackoff(maxBackoff), s.survey, s.withReport("survey", s.Survey))
	})
	loops.Wait()
	s.loops.Wait()
	s.members.leave()
	return nil
}

// Drain moves due messages of one queue into its stream, within the limits of one drain, even if another scheduler owns
// the queue. ErrRefused: the stream refuses entries. Concurrent drains do no harm. Drain takes one round trip; the cost
// is O(log n) per message.
func (s *Scheduler) Drain(ctx context.Context, queue string) (lua.Drained, error) {
	drained, err := s.drain(ctx, queue, s.keys(queue), s.cfg.DrainLimit)
	reportDrained(s.seriesOf(queue), drained)
	return drained, err
}

// pacedDrain returns the function by which the loop of a queue drains. Each call moves at most as many members as fit
// into the server's time budget: see pace.
func (s *Scheduler) pacedDrain(queue string) func(context.Context) (lua.Drained, error) {
	pace, series, hold := &pace{most: s.cfg.DrainLimit}, s.seriesOf(queue), readyLimitHold{}
	keys := s.keys(queue) // built once, because each key is an allocation
	return func(ctx context.Context) (lua.Drained, error) {
		began := time.Now()
		drained, err := s.drain(ctx, queue, keys, pace.limit())
		hold.subtractFrom(&drained, began)
		reportDrained(series, drained)
		drainTime, roundTrip := time.Since(began), s.members.roundTrip()
		pace.add(drained.Moved+drained.Dead, drainTime, roundTrip)
		if drained.Wait > 0 { // the script counts Wait from its beginning: subtract the time that it ran
			drained.Wait = max(time.Microsecond, drained.Wait-max(0, drainTime-roundTrip))
		}
		return drained, err
	}
}

// keys returns the keys of a queue, with this bridge as the actor.
func (s *Scheduler) keys(queue string) lua.Keys {
	return lua.NewKeys(s.cfg.Prefix, queue).As(s.cfg.Identity.Actor())
}

func (s *Scheduler) drain(ctx context.Context, queue string, keys lua.Keys, limit int) (lua.Drained, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
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

// onHeartbeat handles a heartbeat that succeeded. If it is fresh (the first one, or the first after an error, a gap or
// a step of the clock), all loops that back off go on at once.
func (s *Scheduler) onHeartbeat(ctx context.Context, live []string, fresh bool) {
	changed := s.owners.setLive(live)
	if fresh {
		s.owners.wakeAll()
	}
	if changed {
		s.assign(ctx)
	}
	if fresh {
		loop.Poke(s.registry)
		loop.Poke(s.survey)
		loop.Poke(s.discover)
	}
}

// onToken handles a wake token of a queue, or with "" a token of the shared stream.
func (s *Scheduler) onToken(queue string) {
	if queue == "" {
		loop.Poke(s.registry)
	} else if own := s.owners.drainer(queue); own != nil {
		own.poke()
		s.cfg.Notice(queue) // the token may announce a lease, and a lease must be watched from its beginning
	}
}

// onReadError handles an error of a blocked read.
func (s *Scheduler) onReadError(err error) {
	if errors.Is(err, lua.ErrWrongType) {
		loop.Poke(s.survey) // the survey finds out which queue has the key of the wrong type
	}
}

// withReport returns a pass that also logs when the pass begins to fail, and when it succeeds again.
func (s *Scheduler) withReport(activity string, pass func(context.Context) error) func(context.Context) error {
	state := &loop.Reporter{Log: s.cfg.Logger, Activity: activity, Quiet: s.quiet}
	return func(ctx context.Context) error {
		err := pass(ctx)
		if ctx.Err() == nil {
			state.Report(err)
		}
		return err
	}
}

// quiet reports whether not to log an error: on a single server only the heartbeat logs that the server is unavailable.
func (s *Scheduler) quiet(err error) bool {
	return s.cfg.Client.Mode() != rueidis.ClientModeCluster && lua.Temporary(err)
}
