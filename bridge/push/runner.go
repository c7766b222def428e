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
	// Redis is shared with whatever else the program does. Each target, and each partition of its queue, has a read that waits at
	// the server, over a connection of its own: for more than about 900 of them give Dial ManyReads.
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"

	// LookInterval is how often the targets are read. Default 3s. A look costs two requests, and one more for each queue that has
	// targets; on a cluster one for each queue.
	LookInterval time.Duration

	// TLS holds the certificates that this process shows to targets, and whom it trusts. Nil: none, and whom the system trusts.
	TLS *tls.Config

	// ShutdownTimeout is how long requests may go on after Run's context is cancelled. Default 20s; negative = not at all.
	ShutdownTimeout time.Duration

	Observer bridge.Observer // is told what becomes of deliveries; nil = nobody is
	Logger   *slog.Logger    // nil = discard
}

// ManyReads is for bridge.Dial: it lets that many reads wait at the server that thousands of targets can be served. Without it
// those beyond the first thousand wait for each other, and messages come late.
func ManyReads(opt *rueidis.ClientOption) { opt.BlockingPoolSize = manyReads }

const manyReads = 20_000

// Runner posts the messages of all targets of a prefix. Run blocks until its context is cancelled.
type Runner struct {
	cfg      Config
	store    *Store
	state    loop.Reporter
	resolver *net.Resolver // nil = the system's

	lines sync.WaitGroup

	mu      sync.Mutex
	workers map[*bridge.Worker]place // that take messages now

	// Used by Run's goroutine only.
	running map[place]*line
	broken  map[place]string // texts of targets that were told to be wrong
}

// place is who has a target.
type place struct{ queue, group string }

// line is a target that is served.
type line struct {
	text    string // as Redis holds it
	target  Target
	circuit *circuit
	stop    context.CancelFunc
	done    chan struct{}
}

// NewRunner checks the configuration. Redis is not touched before Run.
func NewRunner(cfg Config) (*Runner, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.LookInterval = cmp.Or(max(0, cfg.LookInterval), DefaultLookInterval)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, DefaultShutdownTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Redis == nil {
		return nil, errors.New("push: Redis is required")
	}
	if err := lua.CheckPrefix(cfg.Prefix); err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	return &Runner{
		cfg: cfg, store: NewStore(cfg.Redis.Client, cfg.Prefix), running: map[place]*line{}, broken: map[place]string{},
		workers: map[*bridge.Worker]place{},
		state:   loop.Reporter{Log: cfg.Logger, Activity: "reading the targets of callbacks"},
	}, nil
}

// Ready returns why targets are not followed, or messages not taken, now; nil when nothing fails. A target that is down is no
// reason: others are served. It does not touch Redis.
func (r *Runner) Ready() error {
	var errs []error
	if why := r.state.Trouble(); why != "" {
		errs = append(errs, fmt.Errorf("reading the targets of callbacks is failing: %s", why))
	}
	return errors.Join(append(errs, r.ask((*bridge.Worker).Ready))...)
}

// Alive returns why the process must be started anew: a worker hangs. It is to be asked every few seconds. It does not touch
// Redis.
func (r *Runner) Alive() error { return r.ask((*bridge.Worker).Alive) }

func (r *Runner) ask(question func(*bridge.Worker) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for w, at := range r.workers {
		if err := question(w); err != nil {
			errs = append(errs, fmt.Errorf("%s/%s: %w", at.queue, at.group, err))
		}
	}
	return errors.Join(errs...)
}

// works has a worker be asked until ended is called.
func (r *Runner) works(w *bridge.Worker, at place) (ended func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[w] = at
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.workers, w)
	}
}

// Run serves the targets until ctx is cancelled, then lets requests end and gives back what was not begun. It follows what is
// changed within seconds. A target that is wrong is logged once, and leaves others alone. Call it once.
func (r *Runner) Run(ctx context.Context) error {
	loop.Every(ctx, func() time.Duration { return r.cfg.LookInterval }, loop.NewBackoff(maxBackoff), nil,
		func(ctx context.Context) error {
			err := r.look(ctx)
			if ctx.Err() == nil {
				r.state.Report(err)
			}
			return err
		})
	r.lines.Wait()
	return nil
}

// look reads the targets, and has what runs be as they are. What could not be read goes on as it was.
func (r *Runner) look(ctx context.Context) error {
	found, err := r.store.all(ctx, r.known())
	if err != nil {
		return err
	}
	for at, one := range r.running {
		if _, there := found[at]; !there {
			one.stop()
			delete(r.running, at)
		}
	}
	for at := range r.broken {
		if _, there := found[at]; !there {
			delete(r.broken, at)
		}
	}
	for at, text := range found {
		if one := r.running[at]; one == nil || one.text != text {
			r.change(ctx, at, text)
		}
	}
	return nil
}

// known returns the queues that had targets at the last look.
func (r *Runner) known() map[string]bool {
	queues := map[string]bool{}
	for at := range r.running {
		queues[at.queue] = true
	}
	for at := range r.broken {
		queues[at.queue] = true
	}
	return queues
}

// change has a target be served as its new text says, once what was served of the old one has ended.
func (r *Runner) change(ctx context.Context, at place, text string) {
	if r.broken[at] == text {
		return
	}
	old := r.running[at]
	if old != nil {
		old.stop()
		delete(r.running, at)
	}
	delete(r.broken, at)
	log := r.cfg.Logger.With(slog.String("queue", at.queue), slog.String("group", at.group))
	t, err := parseTarget(at.queue, at.group, text)
	if at.group == "" && text == otherType {
		err = fmt.Errorf("%s: %w", r.store.key(at.queue), lua.ErrWrongType)
	}
	if err != nil {
		r.broken[at] = text
		log.Error("a target of callbacks is wrong: nothing is posted to it", slog.Any("error", err))
		return
	}
	own, stop := context.WithCancel(ctx)
	one := &line{text: text, target: t, circuit: newCircuit(t, log), stop: stop, done: make(chan struct{})}
	if old != nil && t.reaches(old.target) {
		one.circuit = old.circuit
		one.circuit.adopt(t)
	}
	r.running[at] = one
	s := &service{runner: r, target: t, cfg: r.cfg, log: log, poster: newPoster(t, r.cfg.TLS, r.resolver),
		circuit: one.circuit, pace: newPace(t, r.cfg)}
	r.lines.Go(func() {
		defer close(one.done)
		defer stop()
		if old != nil {
			<-old.done
		}
		s.run(own)
	})
}

// service serves one target.
type service struct {
	runner  *Runner
	target  Target
	cfg     Config
	log     *slog.Logger
	poster  *poster
	circuit *circuit
	pace    *pace // nil without a rate
}

// run has one worker after the other take messages: one with all slots while the circuit is closed; while it is open, none for a
// while, and then one for a round of probes.
func (s *service) run(ctx context.Context) {
	defer s.poster.close()
	for loop.Sleep(ctx, s.circuit.wait()) {
		s.poster.close() // a connection that is dead without a word is not what a probe is to find
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
	// Requests that are under way when the circuit opens are not cut short; the process may have to stop sooner.
	patience := s.target.Timeout + bodyTime
	config := bridge.WorkerConfig{
		Redis: s.cfg.Redis, Prefix: s.cfg.Prefix, Queue: s.target.Queue, Group: s.target.Group,
		Handler:     func(ctx context.Context, m *bridge.Message) error { return s.handle(ctx, m, probes > 0) },
		Concurrency: slots, ShutdownTimeout: min(patience, s.cfg.ShutdownTimeout), Observer: s.cfg.Observer, Logger: s.cfg.Logger,
	}
	var w *bridge.Worker
	if s.pace != nil {
		s.pace.bind(&config, turn, func() uint64 { return w.Stats().Delivered })
	}
	w, err := bridge.NewWorker(config)
	if err != nil {
		<-ctx.Done() // a target that was checked makes no worker: nothing that a repetition could mend
		return err
	}
	defer s.runner.works(w, place{s.target.Queue, s.target.Group})()
	return w.Run(turn)
}

// handle is the handler of a target's workers. probe: the circuit was open when its worker began.
func (s *service) handle(ctx context.Context, m *bridge.Message, probe bool) error {
	down, err := s.poster.deliver(ctx, m)
	if err != nil && ctx.Err() != nil {
		return err // it was cut short here: that says nothing of the target
	}
	if s.circuit.note(probe, down, err) {
		return bridge.Release(err)
	}
	return err
}
