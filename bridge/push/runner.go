package push

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultLookInterval    = 3 * time.Second  // of Config.LookInterval
	DefaultShutdownTimeout = 20 * time.Second // of Config.ShutdownTimeout
)

const maxBackoff = 10 * time.Second

// Config configures a Runner. Redis is required.
type Config struct {
	// Redis may be shared with other parts of the program. The Runner needs one connection for each target and
	// partition of its queue, for a blocking read. For more than about 900 of them pass ManyReads to Dial.
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"

	// LookInterval is how often the targets are read. Default 3s. Each read costs two requests, and one more request
	// for each queue that has targets. On a cluster it costs one more request for each queue.
	LookInterval time.Duration

	// TLS holds the client certificates and the trusted authorities for connections to targets. If it is nil, the
	// Runner has no certificate and trusts the system's authorities.
	TLS *tls.Config

	// ShutdownTimeout is how long requests may go on after Run's context is cancelled. Default 20s; negative = no time.
	ShutdownTimeout time.Duration

	Observer bridge.Observer // gets events and durations of deliveries; may be nil
	Logger   *slog.Logger    // nil = discard
}

// ManyReads is an option for bridge.Dial: it allows 20,000 blocking reads at once, enough for thousands of targets.
// Without it, reads beyond the first thousand wait for each other, and messages are late.
func ManyReads(opt *rueidis.ClientOption) { opt.BlockingPoolSize = manyReads }

const manyReads = 20_000

// Runner posts the messages of all targets of a prefix. Run blocks until its context is cancelled.
type Runner struct {
	cfg      Config
	store    *Store
	reading  loop.Reporter // whether the targets can be read
	masters  loop.Reporter // whether all masters of a cluster can be reached, while at least one can
	resolver *net.Resolver // nil = the system's resolver

	serving sync.WaitGroup

	mu      sync.Mutex
	workers map[*bridge.Worker]targetID // the running workers

	// Used by Run's goroutine only.
	queues  []string // registered queues, as last read from Redis
	running map[targetID]*served
	invalid map[targetID]string // stored text of each invalid target that was logged
}

// targetID identifies a target: a queue and a group.
type targetID struct{ queue, group string }

// served is a target whose messages are posted.
type served struct {
	text    string // the stored text of the target
	target  Target
	circuit *circuit
	stop    context.CancelFunc
	done    chan struct{}
}

// NewRunner checks the configuration; the error names all its faults, each a *bridge.InvalidError. Redis is not touched
// before Run.
func NewRunner(cfg Config) (*Runner, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.LookInterval = cmp.Or(cfg.LookInterval, DefaultLookInterval)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, DefaultShutdownTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if err := lua.Faults("push",
		lua.Required("redis", cfg.Redis != nil && cfg.Redis.Client != nil && cfg.Redis.Blocking != nil),
		lua.CheckPrefix(cfg.Prefix),
		lua.AtLeast("look interval", cfg.LookInterval, time.Millisecond),
	); err != nil {
		return nil, err
	}
	return &Runner{
		cfg: cfg, store: NewStore(cfg.Redis.Client, cfg.Prefix),
		running: map[targetID]*served{}, invalid: map[targetID]string{},
		workers: map[*bridge.Worker]targetID{},
		reading: loop.Reporter{Log: cfg.Logger, Activity: "reading the targets of callbacks"},
		masters: loop.Reporter{Log: cfg.Logger,
			Activity: "reading the targets of callbacks of some masters of the cluster"},
	}, nil
}

// Ready returns an error while reading targets or messages fails, else nil. A target that is down is no error. An
// unreachable master of a cluster is no error if the master holds no queue with targets. Ready does not touch Redis.
func (r *Runner) Ready() error {
	var errs []error
	if trouble := r.reading.Trouble(); trouble != "" {
		errs = append(errs, fmt.Errorf("reading the targets of callbacks is failing: %s", trouble))
	}
	return errors.Join(append(errs, r.checkWorkers((*bridge.Worker).Ready))...)
}

// Alive returns an error if a worker hangs, so that the process must be restarted. Call it every few seconds. It does
// not touch Redis.
func (r *Runner) Alive() error { return r.checkWorkers((*bridge.Worker).Alive) }

// checkWorkers calls check for every running worker, and joins the errors.
func (r *Runner) checkWorkers(check func(*bridge.Worker) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for w, id := range r.workers {
		if err := check(w); err != nil {
			errs = append(errs, fmt.Errorf("%s/%s: %w", id.queue, id.group, err))
		}
	}
	return errors.Join(errs...)
}

// register adds a worker for Ready and Alive until ended is called.
func (r *Runner) register(w *bridge.Worker, id targetID) (ended func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[w] = id
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.workers, w)
	}
}

// Run serves the targets until ctx is cancelled. Then Run waits for running requests, at most ShutdownTimeout, and
// releases the other messages. A change of a target takes effect within seconds. An invalid target is logged once, and
// does not affect other targets. Call Run once.
func (r *Runner) Run(ctx context.Context) error {
	loop.Every(ctx, func() time.Duration { return r.cfg.LookInterval }, loop.NewBackoff(maxBackoff), nil,
		func(ctx context.Context) error {
			someMasters, err := r.readTargets(ctx)
			if ctx.Err() == nil {
				r.reading.Report(err)
			}
			if ctx.Err() == nil && err == nil {
				r.masters.Report(someMasters)
			}
			return cmp.Or(err, someMasters)
		})
	r.serving.Wait()
	return nil
}

// readTargets reads the targets, and starts, changes or stops their services to match. The service of a target that
// cannot be read goes on unchanged. If only some masters of a cluster cannot be reached, readTargets returns the error
// as someMasters, because the queues of the other masters are served.
func (r *Runner) readTargets(ctx context.Context) (someMasters, err error) {
	queues, errQueues := r.store.queues(ctx)
	if errQueues == nil {
		r.queues = queues
	} else if len(r.queues) == 0 {
		return nil, errQueues
	}
	found := r.store.all(ctx, r.queues, r.withTargets())
	r.update(ctx, found)
	isTemporary := errQueues == nil || lua.Temporary(errQueues)
	for _, err := range found.unread {
		isTemporary = isTemporary && lua.Temporary(err)
	}
	err = cmp.Or(errQueues, found.err())
	if isTemporary && r.store.isCluster() && len(found.unread) < len(r.queues) {
		return err, nil
	}
	return nil, err
}

// update starts, changes and stops services to match the targets that were found.
func (r *Runner) update(ctx context.Context, found targets) {
	isGone := func(id targetID) bool {
		_, exists := found.texts[id]
		return !exists && found.unread[id.queue] == nil
	}
	for id, one := range r.running {
		if isGone(id) {
			one.stop()
			delete(r.running, id)
		}
	}
	for id := range r.invalid {
		if isGone(id) {
			delete(r.invalid, id)
		}
	}
	for id, text := range found.texts {
		if one := r.running[id]; one == nil || one.text != text {
			r.change(ctx, id, text)
		}
	}
}

// withTargets returns the queues that had targets at the last read.
func (r *Runner) withTargets() map[string]bool {
	queues := map[string]bool{}
	for id := range r.running {
		queues[id.queue] = true
	}
	for id := range r.invalid {
		queues[id.queue] = true
	}
	return queues
}

// change starts the service of a new or changed target, after the service of its old version has ended.
func (r *Runner) change(ctx context.Context, id targetID, text string) {
	if r.invalid[id] == text {
		return
	}
	old := r.running[id]
	if old != nil {
		old.stop()
		delete(r.running, id)
	}
	delete(r.invalid, id)
	log := r.cfg.Logger.With(slog.String("queue", id.queue), slog.String("group", id.group))
	t, err := parseTarget(id.queue, id.group, text)
	if id.group == "" && text == otherType {
		err = fmt.Errorf("%s: %w", r.store.key(id.queue), lua.ErrWrongType)
	}
	if err != nil {
		r.invalid[id] = text
		log.Error("a target of callbacks is wrong: nothing is posted to it", slog.Any("error", err))
		return
	}
	serviceCtx, stop := context.WithCancel(ctx)
	one := &served{text: text, target: t, circuit: newCircuit(t, log), stop: stop, done: make(chan struct{})}
	if old != nil && t.sharesHealth(old.target) {
		one.circuit = old.circuit
		one.circuit.configure(t)
	}
	r.running[id] = one
	s := &service{runner: r, target: t, cfg: r.cfg, log: log, poster: newPoster(t, r.cfg.TLS, r.resolver),
		circuit: one.circuit, rateLimit: newRateLimit(t, r.cfg)}
	r.serving.Go(func() {
		defer close(one.done)
		defer stop()
		if old != nil {
			<-old.done
		}
		s.run(serviceCtx)
	})
}

// service serves one target.
type service struct {
	runner    *Runner
	target    Target
	cfg       Config
	log       *slog.Logger
	poster    *poster
	circuit   *circuit
	rateLimit *rateLimit // nil = the target has no rate
}

// run runs one worker after the other. While the circuit is closed, a worker has all slots. While it is open, run
// pauses, and then runs a worker for one round of probes.
func (s *service) run(ctx context.Context) {
	defer s.poster.close()
	for loop.Sleep(ctx, s.circuit.wait()) {
		s.poster.close() // a probe needs a new connection: an idle one may be dead
		if err := s.work(ctx); err != nil {
			s.log.Warn("a worker of callbacks did not end as it should", slog.Any("error", err))
		}
	}
}

// work takes messages until ctx ends, or the circuit opens or closes.
func (s *service) work(ctx context.Context) error {
	turn, end := context.WithCancel(ctx)
	defer end()
	slots := s.target.Concurrency
	probes := s.circuit.begin(end)
	if probes > 0 {
		slots = min(slots, probes)
	}
	// When the circuit opens, running requests get the time that they need. When the process stops, ShutdownTimeout may
	// end them sooner.
	requestTime := s.target.Timeout + bodyTime
	config := bridge.WorkerConfig{
		Redis: s.cfg.Redis, Prefix: s.cfg.Prefix, Queue: s.target.Queue, Group: s.target.Group,
		Handler:     func(ctx context.Context, m *bridge.Message) error { return s.handle(ctx, m, probes > 0) },
		Concurrency: slots, ShutdownTimeout: min(requestTime, s.cfg.ShutdownTimeout),
		Observer: s.cfg.Observer, Logger: s.cfg.Logger,
	}
	var w *bridge.Worker
	if s.rateLimit != nil {
		s.rateLimit.bind(&config, turn, func() uint64 { return w.Stats().Delivered })
	}
	w, err := bridge.NewWorker(config)
	if err != nil {
		<-ctx.Done() // trying again would not help, because the target and the configuration were checked before
		return err
	}
	defer s.runner.register(w, targetID{s.target.Queue, s.target.Group})()
	return w.Run(turn)
}

// handle is the handler of a target's workers. probe means that the circuit was open when the worker began.
func (s *service) handle(ctx context.Context, m *bridge.Message, probe bool) error {
	down, err := s.poster.deliver(ctx, m)
	if err != nil && ctx.Err() != nil {
		return err // this process cancelled the request, so the error says nothing about the target
	}
	if s.circuit.record(probe, down, err) {
		return bridge.Release(err)
	}
	return err
}
