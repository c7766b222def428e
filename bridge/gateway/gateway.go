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
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
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
	// MaxPolls limits the callers that wait for messages or listen to events at the same time. Further ones get 503.
	// It also limits the streams of lines that are read at the same time. One token may have a quarter of each. Default
	// 10,000.
	MaxPolls int
	// MaxRequests limits the requests that are answered at the same time. Further ones get 503. One token may have a
	// quarter of them in each of two states: bodies that are read, with 1 MiB of memory for each and at least 64 MiB,
	// and answers that the caller has not yet read. Default 1,000.
	MaxRequests int
	Timeout     time.Duration // of a request, except streams; default 10s
}

// Gateway answers HTTP requests by calling bridge.Client, admin.Admin and pull.Puller. It stores nothing itself, so any
// number may run side by side.
type Gateway struct {
	cfg     Config
	client  *bridge.Client
	op      *admin.Admin
	log     *slog.Logger
	mux     *http.ServeMux
	bodies  perToken      // bodies that are being read
	bytes   perToken      // bytes in memory of bodies that are being read
	streams perToken      // streams of lines that are being read
	answers perToken      // answers that are being written
	busy    atomic.Int64  // requests in progress that do not wait for their caller or for a message
	waiting perToken      // callers that wait for a message or listen to events
	polls   chan struct{} // holds one for each caller that waits for a message or listens to events
	puller  *pull.Puller
	shared  *sharedStats
	lmstfy  *lmstfy.Server // everything under /api/

	stopping context.Context // cancelled when the gateway stops; ends all waiting
	stop     context.CancelFunc
	pulled   sync.Once // starts the Puller at the first request for messages
	asJobs   sync.Once // starts the loops of lmstfy's API at its first request
	pulling  sync.WaitGroup

	policy loop.Locks // by queue; held from the check of a policy's ETag until the policy is written
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
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: cfg.Redis, Prefix: cfg.Prefix, RetryTimeout: cfg.Timeout / 2,
		Durability: cfg.Durability, Observer: cfg.Observer, Logger: cfg.Logger, AllowOldBridges: cfg.AllowOldBridges})
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
		polls:  make(chan struct{}, cfg.MaxPolls),
		bodies: perToken{most: cfg.MaxRequests / 4}, answers: perToken{most: cfg.MaxRequests / 4},
		waiting: perToken{most: cfg.MaxPolls / 4}, streams: perToken{most: cfg.MaxPolls / 4, inAll: cfg.MaxPolls},
		bytes: perToken{most: max(cfg.MaxRequests/4*bytesOfPlace, leastBytes)}}
	g.stopping, g.stop = context.WithCancel(context.Background())
	if cfg.AllowOldBridges {
		g.op = g.op.AllowOldBridges()
	}
	if cfg.Observer != nil {
		g.op = g.op.Observed(cfg.Observer)
	}
	g.shared = newSharedStats(g.op, g.stopping, cfg.Timeout)
	g.lmstfy, err = lmstfy.New(lmstfy.Config{Redis: cfg.Redis, Prefix: cfg.Prefix, Client: client, Admin: g.op,
		Puller: g.puller, Access: cfg.Access, Logger: cfg.Logger, Timeout: cfg.Timeout,
		Hold: g.poll, Reading: g.reading, Answering: g.answering})
	if err != nil {
		return nil, err
	}
	g.mux = http.NewServeMux()
	for _, one := range routes {
		g.mux.HandleFunc(one.method+" "+one.pattern, func(w http.ResponseWriter, r *http.Request) {
			g.answer(one, w.(*reply), r)
		})
	}
	g.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { g.unknown(w.(*reply), r) })
	return g, nil
}

// Close ends all waiting for messages, and waits for calls in flight. Stop the server first.
func (g *Gateway) Close() error {
	g.stop()
	g.pulled.Do(func() {})
	g.asJobs.Do(func() {})
	g.pulling.Wait()
	return g.client.Close()
}

// Handler returns the HTTP handler of the gateway.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// Bounds of a connection.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 30 * time.Second // streams renew it
	idleTimeout    = 60 * time.Second
	maxHeaderBytes = 64 << 10
)

// Connections returns the most connections that a listener for the gateway should keep open. Over HTTP/1.1 each waiting
// caller and each stream of lines holds a connection, and MaxPolls limits each of the two. Twice MaxRequests
// connections are left for other callers.
func (g *Gateway) Connections() int { return 2*g.cfg.MaxPolls + 2*g.cfg.MaxRequests }

// NewServer returns a server for a Gateway, with limits on time and memory for each connection. It speaks HTTP/1.1,
// and HTTP/2 without TLS to clients that begin with it. Shutdown ends within the Timeout of the Gateway: callers that
// wait for a message are answered at once, without one.
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
