package bridgetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// TB is the part of testing.TB that a kit uses.
type TB interface {
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Helper()
}

// DefaultPatience is the default of Config.Patience.
const DefaultPatience = 10 * time.Second

// Config configures a Kit. New uses the zero value.
type Config struct {
	// URL is the address of a server, in the form of bridge.Dial. Default: the value of the environment variable
	// DUESTREAM_TEST_REDIS_URL. Without it, the kit starts redis-server or valkey-server as a child process that ends
	// with the test, if one of them is on the PATH. Otherwise it uses a server inside this process.
	URL string
	// InProcess makes the kit use a server inside this process (miniredis), even if another server is available. URL
	// must be empty.
	InProcess bool
	// Start is the time of the kit's clock at the beginning, rounded down to milliseconds. Default: now. A fixed time
	// suits tests of cron expressions, for example on the day when summer time begins.
	Start time.Time
	// Defaults is the policy of queues that have no settings of their own, as in bridge.Config. Settings that are zero
	// have the defaults of the bridge.
	Defaults bridge.Policy
	// Patience is how long, in real time, Advance waits for a handler, or for a worker to read a message. After that
	// time the test fails, and the failure names the message. Default 10s.
	Patience time.Duration
	// Logger gets the log of the bridge, and of workers whose WorkerConfig has no Logger. Default: discard.
	Logger *slog.Logger
}

func (c Config) validate() error {
	var faults []error
	if c.URL != "" && c.InProcess {
		faults = append(faults, lua.Invalid("URL", c.URL, "must be empty with InProcess"))
	}
	if !c.Start.IsZero() {
		faults = append(faults, lua.CheckTime("Start", c.Start))
	}
	if c.Patience < 0 {
		faults = append(faults, lua.Invalid("Patience", c.Patience.String(), "must not be negative"))
	}
	return errors.Join(faults...)
}

// Kit is a server, a bridge, a client and workers that share one clock. The clock stands still until Advance moves it.
// Other kits do not see the messages of a kit, because each has a prefix of its own, so tests may run in parallel. Only
// the goroutine of the test may call methods that may end the test, such as Run, Advance and RequireScheduledIn.
type Kit struct {
	t      TB
	cfg    Config
	server *server
	prefix string
	ctx    context.Context
	stop   context.CancelFunc
	ending chan struct{} // closed when the test ends, before the workers stop

	clock    *kitClock
	activity *activity
	readers  *readers
	redis    *bridge.Redis  // for the program under test
	own      rueidis.Client // for the kit
	client   *bridge.Client
	bridge   *steppedBridge

	settlements *settlements

	mostTimes   int
	mostInChain int
	advancing   atomic.Bool
	passing     sync.Mutex // held during a pass of the bridge
	workers     []*startedWorker
	running     sync.WaitGroup
}

// New returns a Kit with the zero Config. It ends with the test.
func New(t TB) *Kit {
	t.Helper()
	return NewWith(t, Config{})
}

// NewWith is New with a configuration. It fails the test if the configuration is invalid, or no server answers.
func NewWith(t TB, cfg Config) *Kit {
	t.Helper()
	k, err := open(t, cfg)
	if err != nil {
		t.Fatalf("bridgetest: %v", err)
	}
	return k
}

func open(t TB, cfg Config) (k *Kit, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Patience = cmp.Or(cfg.Patience, DefaultPatience)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	k = &Kit{
		t: t, cfg: cfg, prefix: fmt.Sprintf("bridgetest-%016x", rand.Uint64()),
		clock: newKitClock(), activity: newActivity(), readers: newReaders(), settlements: newSettlements(),
		mostTimes: mostTimes, mostInChain: mostInChain, ending: make(chan struct{}),
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	if k.server, err = openServer(k.ctx, cfg); err != nil {
		k.stop()
		return nil, err
	}
	start := cfg.Start
	if start.IsZero() {
		start = time.Now()
	}
	k.setClock(start)
	dialled, err := bridge.Dial(k.ctx, k.server.url)
	if err != nil {
		k.stop()
		k.server.end()
		return nil, err
	}
	t.Cleanup(k.end)
	program := timed{clock: k.clock, activity: k.activity, readers: k.readers}
	k.redis = &bridge.Redis{
		Client:   &timedClient{dialled.Client, program},
		Blocking: &timedClient{dialled.Blocking, timed{k.clock, k.activity, k.readers, true}},
	}
	k.own = &timedClient{dialled.Client, timed{clock: k.clock}}
	if k.client, err = bridge.NewClient(bridge.ClientConfig{Redis: k.redis, Prefix: k.prefix}); err != nil {
		return nil, err
	}
	if cfg.Defaults != (bridge.Policy{}) {
		if err := policy.WriteDefaults(k.ctx, k.own, k.prefix, complete(cfg.Defaults)); err != nil {
			return nil, err
		}
	}
	k.bridge = newSteppedBridge(k.own, k.prefix, cfg.Logger, k.clock, k.readers)
	k.bridge.setIdle, k.bridge.written = !k.server.hasClock, k.activity.takeSchedules
	if err := k.bridge.beat(k.ctx); err != nil {
		return nil, err
	}
	k.running.Go(k.passOnActivity)
	return k, nil
}

// complete returns a policy with the defaults of the bridge for the settings that it must have.
func complete(p bridge.Policy) bridge.Policy {
	usual := policy.Default()
	p.VisibilityTimeout = cmp.Or(p.VisibilityTimeout, usual.VisibilityTimeout)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, usual.MaxAttempts)
	p.RetryMin = cmp.Or(p.RetryMin, min(usual.RetryMin, cmp.Or(p.RetryMax, usual.RetryMin)))
	p.RetryMax = cmp.Or(p.RetryMax, max(usual.RetryMax, p.RetryMin))
	return p
}

// setClock sets the clock of the kit, and of a server inside this process.
func (k *Kit) setClock(t time.Time) {
	k.clock.set(t)
	k.server.setTime(k.clock.Now())
}

// end stops everything, in the order in which the parts depend on each other.
func (k *Kit) end() {
	close(k.ending)
	for _, w := range k.workers {
		w.stop()
	}
	for _, w := range k.workers {
		<-w.ended
	}
	k.stop()
	k.running.Wait()
	if k.client != nil {
		_ = k.client.Close() // there are no calls in flight that matter
	}
	if !k.server.isOwn {
		if err := deleteKeys(k.own, k.prefix); err != nil {
			k.t.Errorf("bridgetest: delete the keys with the prefix %s: %v", k.prefix, err)
		}
	}
	k.redis.Close()
	k.server.end()
}

// Redis returns the connection that the program under test must use, together with Prefix. On this connection, the
// server has the clock of the kit. The test must not close it.
func (k *Kit) Redis() *bridge.Redis { return k.redis }

// Prefix returns the prefix of the kit's keys, for ClientConfig, WorkerConfig and admin.New.
func (k *Kit) Prefix() string { return k.prefix }

// Client returns a client of the kit's server. The test must not close it.
func (k *Kit) Client() *bridge.Client { return k.client }

// Context returns a context that ends with the test.
func (k *Kit) Context() context.Context { return k.ctx }

// Now returns the time of the kit's clock. Give it to a program that needs the time, in place of time.Now.
func (k *Kit) Now() time.Time { return k.clock.Now() }

// Server returns a name of the kit's server, for people.
func (k *Kit) Server() string { return k.server.name }

// passOnActivity lets the bridge make a pass whenever the program under test has sent a command. So messages that are
// due now become ready although the clock stands still.
func (k *Kit) passOnActivity() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.activity.changed:
		}
		if k.advancing.Load() {
			continue
		}
		k.passing.Lock()
		for moved := true; moved && k.ctx.Err() == nil && !k.advancing.Load(); {
			state, err := k.bridge.look(k.ctx)
			if err != nil {
				break // the next call of Advance reports it
			}
			moved, _ = k.bridge.pass(k.ctx, state) // as above
		}
		k.passing.Unlock()
	}
}

// deleteKeys deletes all keys with a prefix on all nodes of a server.
func deleteKeys(c rueidis.Client, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var failed error
	for _, node := range c.Nodes() {
		for cursor := uint64(0); ; {
			scan := node.B().Scan().Cursor(cursor).Match(prefix + ":*").Count(1000).Build()
			page, err := node.Do(ctx, scan).AsScanEntry()
			if err != nil {
				failed = errors.Join(failed, err)
				break
			}
			for _, key := range page.Elements {
				// On a cluster the client finds the node; a replica lists the keys as well.
				failed = errors.Join(failed, c.Do(ctx, c.B().Unlink().Key(key).Build()).Error())
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return failed
}
