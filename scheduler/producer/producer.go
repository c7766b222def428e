package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultRetryTimeout      = 10 * time.Second
	DefaultMaxCommit         = 256
	DefaultMaxCommitBytes    = 512 << 10
	DefaultDurabilityTimeout = 2 * time.Second
)

const (
	maxCommit       = 10_000            // greatest MaxCommit; it bounds the work of one script call (G7)
	tryTimeout      = 5 * time.Second   // time limit of one try of a script call, without the wait for a durability
	minTokenWindow  = time.Minute       // a token must outlive the repeats of its commit
	registerEvery   = 5 * time.Second   // for a queue in use, the greatest age of the known partition counts
	registerTimeout = time.Second       // of one inquiry; on a cluster messages wait this long for a server that hangs
	registerRetry   = 2 * time.Second   // after a failed inquiry
	maxCountsAge    = 2 * registerEvery // older counts are read again before a message that needs them is sent
	cancelChunk     = 1000              // IDs per script call
	closeTimeout    = 2 * time.Second   // for clearing tokens
	forgetAfter     = time.Second       // time from the last commit until the tokens of a queue are cleared
	retryInitial    = 20 * time.Millisecond
	retryMax        = time.Second
)

// Config configures a Producer.
type Config struct {
	// Client serves every call. Whoever made it closes it. Required.
	Client rueidis.Client
	// Prefix starts every key. Default lua.DefaultPrefix.
	Prefix string
	// RetryTimeout is how long a call repeats after errors that may pass, counted from its beginning. Default 10s;
	// negative = no repeats. Too low: callers see each failover. Too high: callers without a deadline hang for that
	// long.
	RetryTimeout time.Duration
	// MaxCommit is the greatest number of messages in one script call. Default 256, at most 10,000. The server does
	// nothing else while the script runs: some 3 µs per message.
	MaxCommit int
	// MaxCommitBytes is the greatest size of a script call with more than one message. Default 512 KiB. A larger
	// message is sent in a call of its own.
	MaxCommitBytes int
	// Durability is the guarantee that every call waits for before it returns nil; messages of one commit share the
	// wait. Default: the server has executed the call. Durability.Timeout is 2s by default, at most 1m. After the
	// timeout the error is a *lua.NotDurableError, and the call has taken effect. The first call asks the server, for
	// 5s at most, whether it supports this durability. If the server does not, the call fails with lua.ErrUnsupported
	// or lua.ErrDenied, and nothing was sent.
	Durability lua.Durability
	// Name is this producer's name in the histories of queues, at most 256 bytes. Default: lua.ActorClient, host and
	// process.
	Name string
	// Observer gets the outcomes of messages. Default: nil, no observer.
	Observer observe.Observer
	// AllowOldBridges accepts messages with an ordering key even if a live bridge may not serve them, because its
	// protocol level is below lua.LevelKeys. Default: they are refused with lua.ErrOldBridge.
	AllowOldBridges bool
	// Logger gets a line when the registration of a queue starts to fail, and when it works again. Default: discard.
	Logger *slog.Logger
	// NewID makes the IDs of messages without one. They must be unique; messages with equal due times are delivered in
	// the order of their IDs. It is called under a lock and must not block. Default: monotonic ULIDs.
	NewID func() string
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Name = cmp.Or(c.Name, lua.Actor(lua.ActorClient))
	c.RetryTimeout = cmp.Or(c.RetryTimeout, DefaultRetryTimeout)
	c.MaxCommit = cmp.Or(c.MaxCommit, DefaultMaxCommit)
	c.MaxCommitBytes = cmp.Or(c.MaxCommitBytes, DefaultMaxCommitBytes)
	c.Durability.Timeout = cmp.Or(c.Durability.Timeout, DefaultDurabilityTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.NewID == nil {
		c.NewID = newIDs().next
	}
	return c
}

func (c Config) validate() error {
	return errors.Join(lua.Required("redis", c.Client != nil), lua.CheckPrefix(c.Prefix), lua.CheckActor(c.Name),
		lua.Between("MaxCommit", c.MaxCommit, 1, maxCommit), lua.AtLeast("MaxCommitBytes", c.MaxCommitBytes, 1),
		c.Durability.Validate())
}

// Producer puts messages into the schedule. All methods are safe for concurrent use. A Producer keeps some hundred
// bytes of memory for each queue that it was used with.
type Producer struct {
	cfg     Config
	globals lua.Globals
	name    string        // random; prefix of the names of tokens
	tokens  atomic.Uint64 // number of tokens named so far

	tokenWindow time.Duration // how long the server remembers a token
	callTimeout time.Duration // of one script call, including the wait for its durability
	durable     durability
	levels      *lua.Levels // of the live bridges; nil = not checked

	mu     sync.Mutex
	routes map[string]*route // by queue
	closed chan struct{}
	busy   sync.WaitGroup // counts calls and committers; it grows from zero only under mu, and before closed is closed
	forget sync.Once
}

// New returns a Producer. It does not touch Redis.
func New(cfg Config) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	p := &Producer{
		cfg: cfg, globals: lua.NewGlobals(cfg.Prefix), name: ulid.Make().String(),
		callTimeout: tryTimeout + cfg.Durability.Timeout,
		routes:      map[string]*route{}, closed: make(chan struct{}),
	}
	p.tokenWindow = max(minTokenWindow, 2*cfg.RetryTimeout+2*p.callTimeout)
	p.durable.confirmed.Store(!cfg.Durability.Waits())
	if !cfg.AllowOldBridges {
		p.levels = lua.NewLevels(cfg.Client, cfg.Prefix)
	}
	return p, nil
}

// keys returns the keys of a partition, with this producer as the actor.
func (p *Producer) keys(partition string) lua.Keys {
	return lua.NewKeys(p.cfg.Prefix, partition).As(p.cfg.Name)
}

// enter begins a call. The caller ends it with busy.Done.
func (p *Producer) enter(ctx context.Context, queue string) (*route, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.begin() {
		return nil, ErrClosed
	}
	if !p.durable.confirmed.Load() {
		if err := p.checkDurability(ctx); err != nil {
			p.busy.Done()
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.routes[queue]
	if r == nil {
		r = newRoute(p, queue)
		p.routes[queue] = r
	}
	return r, nil
}

// begin makes Close wait until busy.Done. It returns false if the producer is closed.
func (p *Producer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beginLocked()
}

func (p *Producer) beginLocked() bool {
	select {
	case <-p.closed:
		return false
	default:
	}
	p.busy.Add(1)
	return true
}

// Close refuses further calls, waits for the calls in flight, and clears the producer's tokens in Redis, for at most
// 2s. Tokens that it does not clear expire after a minute or more. Close does not close the client.
func (p *Producer) Close() error {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	p.busy.Wait()
	p.forget.Do(p.forgetTokens)
	return nil
}

func (p *Producer) forgetTokens() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, r := range p.routes {
		if r.state.IsFailing() { // the queue may not be registered, and no later call will try again
			_, err := r.syncRegistry(ctx, r.producing)
			r.state.Report(err)
		}
		for _, commit := range r.commits {
			if commit != nil {
				commit.clear(ctx, commit.idle)
			}
		}
	}
}
