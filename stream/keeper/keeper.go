package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultKeepMin        = 100 * time.Millisecond
	DefaultKeepMax        = time.Second
	DefaultQuietMax       = 5 * time.Second
	DefaultTidyInterval   = 30 * time.Second
	DefaultPatrolInterval = time.Hour
	DefaultConsumerIdle   = time.Hour
)

const (
	collectNotices   = 20 * time.Millisecond // wait for more notices, because they come in bursts and share a survey
	surveyInterval   = time.Second           // time between two surveys
	consumerInterval = 10 * time.Minute      // time between two deletions of idle consumers
	orphanInterval   = 20 * time.Second      // time between two sweeps for orphans, while a queue is busy
	tidyMin          = 30 * time.Second      // shortest rest of a queue without entries, if no candidate waits
	tidyMax          = 10 * time.Minute      // longest rest; then the queue waits for its turn
)

// Config configures a Keeper. Only Client is required.
type Config struct {
	// Client serves every call; whoever made it closes it.
	Client rueidis.Client
	// Prefix starts every key. Default lua.DefaultPrefix.
	Prefix string
	// Logger gets one line per change of state. Default: nil, no log.
	Logger *slog.Logger
	// Actor is the name of the bridge in the histories of queues. Default: "", no name.
	Actor string
	// Observer gets the numbers of reclaimed, dead-lettered and freed entries. Default: nil, no observer.
	Observer observe.Observer

	// Defaults is the policy of queues without a policy of their own. It is written at the start, and again when Redis
	// has lost it. The zero value leaves the defaults in Redis unchanged.
	Defaults policy.Policy

	// KeepMin and KeepMax bound the interval between two passes over a busy queue. The interval is a fifth of the
	// smallest visibility timeout of the queue's groups, within these bounds. Default 100ms and 1s. KeepMax is also the
	// longest time that acknowledged entries stay in memory if consumers only run XACK and one pass frees all of them.
	KeepMin, KeepMax time.Duration
	// QuietMax is the longest interval between two passes over a queue whose entries nobody reads. Default 5s; at least
	// KeepMax.
	QuietMax time.Duration
	// TidyInterval is the time between two visits to queues that hold only dedup windows or orphans. One queue is
	// visited at a time, however many there are. Default 30s. Too low: idle queues cost requests. Too high: ended
	// windows stay longer.
	TidyInterval time.Duration
	// PatrolInterval is about the time between two patrols. A patrol searches the bodies of all queues for orphans. It
	// finds the orphans of a queue in which equally many members lack a body: there the numbers of bodies and members
	// are equal, so that nothing else shows the orphans. Default 1h. Too low: the server reads all scheduled messages
	// that often. Too high: a body whose producer died between HSET and ZADD stays longer.
	PatrolInterval time.Duration
	// ConsumerIdle is the time without a read after which a consumer that holds no entries is deleted. Default 1h.
	ConsumerIdle time.Duration
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.KeepMin = cmp.Or(c.KeepMin, DefaultKeepMin)
	c.KeepMax = cmp.Or(c.KeepMax, DefaultKeepMax)
	c.QuietMax = cmp.Or(c.QuietMax, DefaultQuietMax)
	c.TidyInterval = cmp.Or(c.TidyInterval, DefaultTidyInterval)
	c.PatrolInterval = cmp.Or(c.PatrolInterval, DefaultPatrolInterval)
	c.ConsumerIdle = cmp.Or(c.ConsumerIdle, DefaultConsumerIdle)
	return c
}

func (c Config) validate() error {
	errs := []error{
		lua.Required("redis", c.Client != nil),
		lua.CheckPrefix(c.Prefix),
		lua.AtLeast("KeepMin", c.KeepMin, time.Millisecond),
		lua.AtLeast("KeepMax", c.KeepMax, c.KeepMin),
		lua.AtLeast("QuietMax", c.QuietMax, c.KeepMax),
		lua.AtLeast("TidyInterval", c.TidyInterval, time.Millisecond),
		lua.AtLeast("PatrolInterval", c.PatrolInterval, time.Millisecond),
		lua.AtLeast("ConsumerIdle", c.ConsumerIdle, time.Millisecond),
	}
	if c.Defaults != (policy.Policy{}) {
		if err := c.Defaults.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("defaults: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Keeper maintains queues whose messages are ready: it reclaims abandoned entries, frees acknowledged entries, and
// deletes idle consumers. A queue costs requests only while Redis holds data of it. Own, Notice, Turns and Untidy never
// block, and may be called from any goroutine, also before Run. Run may be called once. Any number of processes may
// maintain the same queue.
type Keeper struct {
	cfg   Config
	state loop.Reporter
	ran   atomic.Bool
	wake  chan struct{} // poked when a queue is noticed

	mu      sync.Mutex
	owned   map[string]bool
	noticed map[string]bool    // queues that may be busy: the next survey reads their state
	upkeeps map[string]*upkeep // by queue

	tidyTurns *takeTurns
	patrol    *patrol
	policies  *policy.Reader
}

// New checks the configuration. It does not touch Redis before Run.
func New(cfg Config) (*Keeper, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	k := &Keeper{
		cfg:   cfg,
		state: loop.Reporter{Log: cfg.Logger, Activity: "looking at busy queues"},
		wake:  make(chan struct{}, 1),
		owned: map[string]bool{}, noticed: map[string]bool{}, upkeeps: map[string]*upkeep{},
		tidyTurns: newTakeTurns(cfg.TidyInterval), policies: policy.NewReader(cfg.Prefix),
	}
	k.patrol = newPatrol(k)
	return k, nil
}

// Own sets the queues that this keeper owns. It stops the upkeep of other queues, and notices queues that are new.
func (k *Keeper) Own(queues []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.owned
	k.owned = make(map[string]bool, len(queues))
	for _, queue := range queues {
		k.owned[queue] = true
		if !before[queue] {
			k.notice(queue)
		}
	}
	for queue, u := range k.upkeeps {
		if !k.owned[queue] {
			u.stop()
			delete(k.upkeeps, queue)
		}
	}
	for queue := range k.noticed {
		if !k.owned[queue] {
			delete(k.noticed, queue)
		}
	}
}

// Notice tells the keeper that a queue may be busy or untidy. The keeper reads the state of the queue within a second,
// unless the upkeep of the queue is busy already.
func (k *Keeper) Notice(queue string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owned[queue] {
		k.notice(queue)
	}
}

// Turns tells the keeper that a queue holds messages with ordering keys. The queue then gets passes of its own: the
// first within a second, and one every half minute while there is nothing to do.
func (k *Keeper) Turns(queue string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.upkeeps[queue]
	switch {
	case !k.owned[queue]:
	case u == nil:
		k.notice(queue)
	case !u.busy && !u.keyed:
		u.keyed = true
		loop.Poke(u.poked)
	}
}

// Untidy tells the keeper that a queue has no entries, but orphans or dedup windows. Unlike Notice it has no effect if
// the queue has an upkeep.
func (k *Keeper) Untidy(queue string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owned[queue] && k.upkeeps[queue] == nil {
		k.notice(queue)
	}
}

// notice adds a queue to the next survey. If its upkeep is busy, the upkeep goes on instead. The caller holds mu.
func (k *Keeper) notice(queue string) {
	if u := k.upkeeps[queue]; u != nil && u.busy {
		u.noticed = true
		return
	}
	k.noticed[queue] = true
	loop.Poke(k.wake)
}

func (k *Keeper) owns(queue string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.owned[queue]
}

func (k *Keeper) ownedQueues() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.owned))
}

// Run maintains the owned queues until ctx is cancelled, and then returns nil. It never gives up in an outage of Redis.
func (k *Keeper) Run(ctx context.Context) error {
	if k.ran.Swap(true) {
		return errors.New("keeper: Run may be called once")
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { k.policies.Run(ctx, k.cfg.Client) })
	loops.Go(func() { k.patrol.run(ctx) })
	loops.Go(func() { newDefaultsKeeper(k.cfg).run(ctx) })
	retry := loop.NewBackoff(2 * time.Second)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
		if !loop.Sleep(ctx, collectNotices) {
			return nil
		}
		wait := surveyInterval
		if err := k.startNoticed(ctx, &loops); err == nil {
			k.state.Report(nil)
			retry.Reset()
		} else if ctx.Err() == nil {
			k.state.Report(err)
			wait = retry.NextBackOff()
			loop.Poke(k.wake) // even if no queue is noticed any more: the next survey must report that Redis is back
		}
		if !loop.Sleep(ctx, wait) {
			return nil
		}
	}
}

// startNoticed surveys the noticed queues, and starts an upkeep for each queue that needs one.
func (k *Keeper) startNoticed(ctx context.Context, loops *sync.WaitGroup) error {
	return k.inBatches(k.takeNoticed(), func(batch []string) error { return k.startBusy(ctx, loops, batch) })
}

// inBatches calls do for all queues, as many at a time as one survey takes.
func (k *Keeper) inBatches(queues []string, do func(batch []string) error) error {
	size := lua.MaxSurvey
	if k.cfg.Client.Mode() == rueidis.ClientModeCluster {
		size = 1 // one slot per call
	}
	var calls sync.WaitGroup
	errs := make([]error, (len(queues)+size-1)/size)
	for i := range errs {
		batch := queues[i*size : min((i+1)*size, len(queues))]
		calls.Go(func() { errs[i] = do(batch) })
		if size > 1 { // a cluster gets all calls at once, because a hanging server must not delay the others
			calls.Wait()
		}
	}
	calls.Wait()
	return errors.Join(errs...)
}

// startBusy surveys a batch of queues, and starts an upkeep for each queue that needs one.
func (k *Keeper) startBusy(ctx context.Context, loops *sync.WaitGroup, batch []string) error {
	looks, err := k.survey(ctx, batch)
	if err != nil {
		k.noticeAgain(batch)
		return err
	}
	for i, look := range looks {
		// A queue that cannot be read is left to the scheduler, which surveys all queues and reports the error.
		if look.Err == nil && (look.Busy || look.Untidy || look.Turns) {
			k.start(ctx, loops, batch[i], look.Busy || look.Turns)
		}
	}
	return nil
}

func (k *Keeper) survey(ctx context.Context, queues []string) ([]lua.Look, error) {
	keys := make([]lua.Keys, len(queues))
	for i, queue := range queues {
		keys[i] = lua.NewKeys(k.cfg.Prefix, queue)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	looks, err := lua.Survey(ctx, k.cfg.Client, keys, true)
	if err != nil {
		return nil, fmt.Errorf("look at %d queues: %w", len(queues), err)
	}
	return looks, nil
}

func (k *Keeper) takeNoticed() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	queues := make([]string, 0, len(k.noticed))
	for queue := range k.noticed {
		queues = append(queues, queue)
	}
	clear(k.noticed)
	return queues
}

// noticeAgain notices queues whose survey failed. Unlike notice, it includes queues with a busy upkeep.
func (k *Keeper) noticeAgain(queues []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, queue := range queues {
		if k.owned[queue] {
			k.noticed[queue] = true
		}
	}
}

// start starts the upkeep of a queue, or tells the running upkeep that the queue is busy.
func (k *Keeper) start(ctx context.Context, loops *sync.WaitGroup, queue string, busy bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.owned[queue] {
		return
	}
	if u := k.upkeeps[queue]; u != nil {
		if busy && !u.busy {
			u.busy = true
			loop.Poke(u.poked)
		}
		return
	}
	ctx, stop := context.WithCancel(ctx)
	u := newUpkeep(k, queue, busy, stop)
	k.upkeeps[queue] = u
	loops.Go(func() {
		defer stop()
		u.run(ctx)
	})
}

// end removes an upkeep that has nothing left to do. It returns false if the queue was noticed meanwhile.
func (k *Keeper) end(u *upkeep) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if u.noticed || u.busy {
		u.noticed, u.busy = false, true
		return false
	}
	if k.upkeeps[u.queue] == u {
		delete(k.upkeeps, u.queue)
	}
	return true
}
