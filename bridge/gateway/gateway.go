package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// Access authenticates and limits callers, and writes the audit log. An access.Store implements it.
type Access interface {
	Authenticate(ctx context.Context, secret string) (*access.Grant, error)
	Take(ctx context.Context, g *access.Grant, verb access.Verb, n int) (wait time.Duration, err error)
	GiveBack(ctx context.Context, g *access.Grant, verb access.Verb, n int)
	Audit(g *access.Grant, action, queue string, attrs ...slog.Attr)
}

// Defaults of Config.
const (
	DefaultMaxPayload  = 1 << 20
	DefaultMaxRequests = 1000
	DefaultMaxPolls    = 10_000
	DefaultTimeout     = 10 * time.Second
)

// Config configures a Gateway. Redis and Access are required.
type Config struct {
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"
	Access Access
	Logger *slog.Logger // nil = discard

	// Durability is the level that Redis must confirm before the gateway answers a request that schedules, cancels or
	// moves a message (see bridge.ClientConfig). Without a confirmation in time the answer is 503 "uncertain". The
	// change is made all the same. The same request with the same ID waits for the confirmation again. Default
	// bridge.Accepted.
	Durability bridge.Durability

	// AllowOldBridges accepts messages that a live bridge may not serve (see bridge.ClientConfig). It is for a rolling
	// upgrade from a release whose bridges serve keys but send no protocol level.
	AllowOldBridges bool

	Observer bridge.Observer // gets events and durations of messages; nil = none

	MaxPayload int // bytes of a payload; default 1 MiB, at most 16 MiB
	// MaxPolls limits the callers that wait for messages or listen to events at the same time. Further callers get 503.
	// MaxPolls also limits the streams of lines that are read at the same time. One token may have a quarter of the
	// waiting callers, and a quarter of the streams. Default 10,000.
	MaxPolls int
	// MaxRequests limits the requests that are answered at the same time. Further requests get 503. A quarter of
	// MaxRequests limits two things for each token: the bodies that the gateway is reading, and the answers that the
	// token's callers have not read yet. The bodies of a token may use 1 MiB of memory for each body that the token may
	// send at once, and at least 64 MiB. Default 1,000.
	MaxRequests int
	Timeout     time.Duration // of a request that is not a stream; default 10s
}

// Gateway answers HTTP requests by calling bridge.Client, admin.Admin and pull.Puller. It stores nothing itself, so any
// number of gateways may run side by side.
type Gateway struct {
	cfg      Config
	client   *bridge.Client
	op       *admin.Admin
	log      *slog.Logger
	mux      *http.ServeMux
	bodies   perToken      // bodies that are being read
	bytes    perToken      // bytes in memory of bodies that are being read
	streams  perToken      // streams of lines that are being read
	longRuns perToken      // operations that look at whole queues
	results  perToken      // waits for results
	answers  perToken      // answers that are being written
	reads    readers       // requests that read payloads
	unread   perToken      // bytes of large answers that are being written
	busy     atomic.Int64  // requests in progress that do not wait for their caller or for a message
	waiting  perToken      // callers that wait for a message or listen to events
	polls    chan struct{} // holds one for each caller that waits for a message or listens to events
	puller   *pull.Puller
	shared   *sharedStats
	mounted  []mount

	stopping   context.Context // cancelled when the gateway stops; ends all waiting
	stop       context.CancelFunc
	running    sync.Mutex // held while Run runs
	runCalled  atomic.Bool
	warnNotRun sync.Once

	policyLocks loop.Locks // by queue; held from the check of a policy's ETag until the policy is written
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.MaxPayload = cmp.Or(c.MaxPayload, DefaultMaxPayload)
	c.MaxRequests = cmp.Or(c.MaxRequests, DefaultMaxRequests)
	c.MaxPolls = cmp.Or(c.MaxPolls, DefaultMaxPolls)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) validate() error {
	return lua.Faults("gateway",
		lua.Required("redis", c.Redis != nil && c.Redis.Client != nil && c.Redis.Blocking != nil),
		lua.Required("access", c.Access != nil),
		lua.CheckPrefix(c.Prefix),
		c.Durability.Validate(),
		lua.Between("max payload", c.MaxPayload, 1, lua.MaxPayloadBytes),
		lua.AtLeast("max polls", c.MaxPolls, 1),
		lua.AtLeast("max requests", c.MaxRequests, 1),
		lua.AtLeast("timeout", c.Timeout, time.Millisecond),
	)
}

// New checks the configuration; the error names all its faults, each a *bridge.InvalidError. Redis is not touched.
func New(cfg Config) (*Gateway, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: cfg.Redis, Prefix: cfg.Prefix,
		RetryTimeout: cfg.Timeout / 2, Durability: cfg.Durability, Observer: cfg.Observer, Logger: cfg.Logger,
		AllowOldBridges: cfg.AllowOldBridges})
	if err != nil {
		return nil, err
	}
	op, err := admin.New(cfg.Redis, cfg.Prefix)
	if err != nil {
		return nil, err
	}
	puller, err := pull.New(pull.Config{Client: cfg.Redis.Client, Blocking: cfg.Redis.Blocking, Prefix: cfg.Prefix,
		Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, client: client, op: op, log: cfg.Logger, puller: puller,
		reads:    readers{most: maxReads, waiters: cfg.MaxRequests / 4},
		unread:   perToken{limit: maxUnread},
		polls:    make(chan struct{}, cfg.MaxPolls),
		bodies:   perToken{limit: cfg.MaxRequests / 4},
		bytes:    perToken{limit: max(cfg.MaxRequests/4*bytesPerBody, minTokenBytes)},
		answers:  perToken{limit: cfg.MaxRequests / 4},
		waiting:  perToken{limit: cfg.MaxPolls / 4},
		streams:  perToken{limit: cfg.MaxPolls / 4, totalLimit: cfg.MaxPolls},
		results:  perToken{limit: maxTokenResults},
		longRuns: perToken{limit: maxTokenLongRuns, totalLimit: maxLongRuns}}
	g.stopping, g.stop = context.WithCancel(context.Background())
	if cfg.AllowOldBridges {
		g.op = g.op.AllowOldBridges()
	}
	if cfg.Observer != nil {
		g.op = g.op.Observed(cfg.Observer)
	}
	g.shared = newSharedStats(g.op, g.stopping, cfg.Timeout)
	g.mux = g.newMux()
	return g, nil
}

// mount is an API beside the gateway's own.
type mount struct {
	prefix string
	answer func(*Call)
	run    func(context.Context)
}

// Mount adds an API beside the gateway's own: answer answers all requests whose path begins with prefix. Run calls run
// with a context that ends when the gateway stops. Call Mount before Run and before the first request.
func (g *Gateway) Mount(prefix string, answer func(*Call), run func(context.Context)) {
	g.mounted = append(g.mounted, mount{prefix, answer, run})
}

// Parts are the clients and settings of a gateway that a mounted API uses too.
type Parts struct {
	Redis   *bridge.Redis
	Prefix  string
	Client  *bridge.Client
	Admin   *admin.Admin
	Puller  *pull.Puller
	Logger  *slog.Logger
	Timeout time.Duration // of a request
}

// Parts returns the clients and settings of the gateway. A mounted API may use them until Close.
func (g *Gateway) Parts() Parts {
	return Parts{Redis: g.cfg.Redis, Prefix: g.cfg.Prefix, Client: g.client, Admin: g.op, Puller: g.puller, Logger: g.log,
		Timeout: g.cfg.Timeout}
}

// Run runs the loops of the gateway and of its mounted APIs, until ctx ends or Close is called, and returns nil. It
// wakes requests that wait for messages. When Run ends, all waiting requests are answered. A gateway runs once. Without
// Run, a waiting request notices a new message only when its wait ends, unless a later request gets the message first.
// The first request that waits without Run logs a warning.
func (g *Gateway) Run(ctx context.Context) error {
	g.runCalled.Store(true)
	g.running.Lock()
	defer g.running.Unlock()
	defer context.AfterFunc(ctx, g.stop)()
	var loops sync.WaitGroup
	loops.Go(func() { g.puller.Run(g.stopping) })
	for _, api := range g.mounted {
		loops.Go(func() { api.run(g.stopping) })
	}
	loops.Wait()
	return nil
}

// Close answers all waiting requests, and waits for Run and for calls in flight. Stop the server first.
func (g *Gateway) Close() error {
	g.stop()
	g.running.Lock()
	defer g.running.Unlock()
	return g.client.Close()
}

// Bounds of a connection.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 30 * time.Second // of a request; a stream renews it
	idleTimeout    = 60 * time.Second
	maxHeaderBytes = 64 << 10
)

// Connections returns how many connections a listener for the gateway should keep open at most. Over HTTP/1.1 each
// waiting caller and each stream of lines holds a connection: at most MaxPolls for waiting callers, and as many for
// streams. Twice MaxRequests connections are left for other callers.
func (g *Gateway) Connections() int { return 2*g.cfg.MaxPolls + 2*g.cfg.MaxRequests }

// NewServer returns a server for a Gateway, with limits on time and memory for each connection. The server speaks
// HTTP/1.1, and HTTP/2 without TLS to clients that begin with HTTP/2. Its Shutdown ends within the Timeout of the
// Gateway, because callers that wait for a message are answered at once, without a message.
func NewServer(g *Gateway) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Handler: g.Handler(), Protocols: protocols, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: readTimeout + g.cfg.Timeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	s.RegisterOnShutdown(g.stop)
	return s
}
