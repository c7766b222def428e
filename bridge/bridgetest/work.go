package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/clock"
)

// startedWorker is a worker that a kit runs.
type startedWorker struct {
	worker *bridge.Worker
	queues []string
	group  string
	stop   context.CancelFunc
	ended  chan struct{}
	err    error // of Run; read it after ended is closed
}

func (w *startedWorker) isRunning() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// Work starts a worker with the handlers of a mux, for all queues of its kinds, until the test ends.
func (k *Kit) Work(mux *bridge.Mux, group string) *bridge.Worker {
	k.t.Helper()
	return k.Run(bridge.WorkerConfig{Mux: mux, Group: group})
}

// Run starts a worker with a configuration of the program under test, until the test ends. The configuration must not
// set Redis and Prefix. Defaults for a test: Concurrency is 4 for each queue. At the end of the test, the contexts of
// handlers are cancelled at once, and the worker waits for the handlers for CancelGrace. An invalid configuration fails
// the test.
//
// Handlers of one moment run concurrently, as they do in production. With Concurrency 1 they run one after another.
func (k *Kit) Run(cfg bridge.WorkerConfig) *bridge.Worker {
	k.t.Helper()
	worker, err := k.start(cfg)
	if err != nil {
		k.t.Fatalf("bridgetest: %v", err)
	}
	return worker
}

func (k *Kit) start(cfg bridge.WorkerConfig) (*bridge.Worker, error) {
	if cfg.Redis != nil || cfg.Prefix != "" {
		return nil, errors.New("worker: Redis and Prefix must not be set: they are those of the kit")
	}
	cfg.Redis, cfg.Prefix = k.redis, k.prefix
	if cfg.Logger == nil {
		cfg.Logger = k.cfg.Logger
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = -1
	}
	cfg.Settled = k.settlements.watch(cfg.Settled)
	queues := queuesOf(cfg)
	worker, err := newWorker(cfg, len(queues))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(clock.With(k.ctx, k.clock)) // handlers get the values of this context
	w := &startedWorker{worker: worker, queues: queues, group: cfg.Group, stop: stop, ended: make(chan struct{})}
	k.workers = append(k.workers, w)
	go func() {
		defer close(w.ended)
		w.err = worker.Run(ctx)
		k.readers.forget(cfg.Group, worker.Consumer())
	}()
	return worker, nil
}

// newWorker returns a worker with few slots, unless the configuration sets their number. With few slots a worker
// settles each delivery at once, and does not wait some milliseconds for more. A large batch needs the usual number of
// slots.
func newWorker(cfg bridge.WorkerConfig, queues int) (*bridge.Worker, error) {
	if cfg.Concurrency == 0 {
		few := cfg
		few.Concurrency = 4 * max(1, queues)
		if worker, err := bridge.NewWorker(few); err == nil {
			return worker, nil
		}
	}
	return bridge.NewWorker(cfg)
}

// queuesOf returns the queues that a worker will read.
func queuesOf(cfg bridge.WorkerConfig) (queues []string) {
	for _, q := range cfg.Queues {
		queues = append(queues, q.Queue)
	}
	if cfg.Queue != "" {
		queues = append(queues, cfg.Queue)
	}
	if len(queues) == 0 && cfg.Mux != nil {
		queues = cfg.Mux.Queues()
	}
	return queues
}

// settlements counts the settlements of deliveries.
type settlements struct {
	mu     sync.Mutex
	at     map[string]int // queue, group and ID → settlements since the clock was set
	last   time.Time      // real time of the last one
	lastOf *bridge.Message
	all    int
	most   int    // the greatest number in at
	mostOf string // describes its message
}

func newSettlements() *settlements { return &settlements{at: map[string]int{}} }

// watch returns a function for WorkerConfig.Settled that notes a settlement, and calls the next one.
func (s *settlements) watch(next func(*bridge.Message, bridge.Settlement)) func(*bridge.Message, bridge.Settlement) {
	return func(m *bridge.Message, settled bridge.Settlement) {
		s.note(m)
		if next != nil {
			next(m, settled)
		}
	}
}

func (s *settlements) note(m *bridge.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.lastOf = time.Now(), m
	s.all++
	key := m.Queue + "\x00" + m.Group + "\x00" + m.ID
	s.at[key]++
	if s.at[key] > s.most {
		s.most, s.mostOf = s.at[key], describe(m)
	}
}

// clockSet notes that time passes: settlements are counted anew.
func (s *settlements) clockSet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.at)
	s.most, s.mostOf = 0, ""
}

// lastTime returns the real time of the last settlement.
func (s *settlements) lastTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// count returns the number of settlements since the kit was made.
func (s *settlements) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// lastOne says which message was settled last; "" if there was none.
func (s *settlements) lastOne() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastOf == nil {
		return ""
	}
	return ", in the last place " + describe(s.lastOf)
}

// mostRuns bounds the deliveries of one message to a group while the clock stands still.
const mostRuns = 1000

// endless describes a message that was delivered again and again while the clock stood still; "" if there is none.
func (s *settlements) endless() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most <= mostRuns {
		return ""
	}
	return fmt.Sprintf("%s was delivered %d times although the clock stands still: its handler asks for it at once, "+
		"with Release, Snooze(0) or RetryAfter(0)", s.mostOf, s.most)
}

// describe names a message of a worker for people.
func describe(m *bridge.Message) string {
	kind := ""
	if name := m.Headers[bridge.KindHeader]; name != "" {
		kind = fmt.Sprintf(", kind %q", name)
	}
	return fmt.Sprintf("message %q (queue %q, group %q%s, attempt %d)", m.ID, m.Queue, m.Group, kind, m.Attempt)
}
