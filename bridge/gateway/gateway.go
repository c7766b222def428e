package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/access"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// Access says who may do what: an access.Store.
type Access interface {
	Authenticate(ctx context.Context, secret string) (*access.Grant, error)
	Take(ctx context.Context, g *access.Grant, verb access.Verb, n int) (wait time.Duration, err error)
	GiveBack(ctx context.Context, g *access.Grant, verb access.Verb, n int)
	Audit(g *access.Grant, action, queue string, attrs ...slog.Attr)
}

// Bounds of what a gateway takes, where Config says nothing.
const (
	DefaultMaxPayload  = 1 << 20
	DefaultMaxRequests = 1000
	DefaultMaxPolls    = 10_000
	DefaultTimeout     = 10 * time.Second
)

// Config configures a Gateway. Redis is required, and Access.
type Config struct {
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"
	Access Access
	Logger *slog.Logger // nil = discard

	// Durability is the level that Redis has to confirm before the gateway answers a request that schedules, cancels or
	// moves a message (see bridge.ClientConfig). Without a confirmation in time the answer is 503 "uncertain". The change
	// is made all the same. The same request with the same ID waits for the confirmation again. Default bridge.Accepted.
	Durability bridge.Durability

	// AllowOldBridges accepts messages that a living bridge may not serve (see bridge.ClientConfig). It is for a rolling
	// upgrade from a release whose bridges serve keys but send no protocol level.
	AllowOldBridges bool

	Observer bridge.Observer // is told what becomes of messages; nil = nobody is

	MaxPayload int // bytes of a payload; default 1 MiB, at most 16 MiB
	// MaxPolls are the callers that wait, or listen, at the same time; further ones get 503. Those of one token are at
	// most a quarter of them, and a token may send as many streams of lines at the same time. Default 10,000.
	MaxPolls int
	// MaxRequests are answered at the same time; further ones get 503. For one token the bodies of a quarter of them are
	// read at the same time, with 1 MiB for each of these and 64 MiB at least, and as many answers wait for whoever asked
	// to take them. Default 1,000.
	MaxRequests int
	Timeout     time.Duration // of a request, but for streams; default 10s
}

// Gateway answers HTTP requests with what bridge.Client and admin.Admin do. It keeps no state: any number may run side by side.
type Gateway struct {
	cfg     Config
	client  *bridge.Client
	op      *admin.Admin
	log     *slog.Logger
	mux     *http.ServeMux
	bodies  share         // that are being read
	bytes   share         // of bodies, that are kept while the rest of the body is read
	streams share         // of lines, that are being read
	answers share         // that are being written
	busy    atomic.Int64  // requests that are answered, and do not wait for their caller or a message
	waiting share         // that wait for a message, or listen
	polls   chan struct{} // one for each caller that waits for a message, or listens
	puller  *pull.Puller
	live    *live
	lmstfy  *lmstfy.Server // everything under /api/

	stopping context.Context // ends all waiting
	stop     context.CancelFunc
	pulled   sync.Once // somebody has asked for messages
	asJobs   sync.Once // somebody has used lmstfy's API
	pulling  sync.WaitGroup

	policy sync.Mutex // held from the look at a policy's ETag until it is written
}

// New checks the configuration. Redis is not touched.
func New(cfg Config) (*Gateway, error) {
	if cfg.Redis == nil || cfg.Access == nil {
		return nil, errors.New("gateway: Redis and Access are required")
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.MaxPayload = cmp.Or(cfg.MaxPayload, DefaultMaxPayload)
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, DefaultMaxRequests)
	cfg.MaxPolls = cmp.Or(cfg.MaxPolls, DefaultMaxPolls)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxPayload < 0 || cfg.MaxPayload > lua.MaxPayloadBytes {
		return nil, lua.Invalid("max payload", "", "must be between 1 and %d bytes", lua.MaxPayloadBytes)
	}
	if err := lua.CheckPrefix(cfg.Prefix); err != nil {
		return nil, err
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: cfg.Redis, Prefix: cfg.Prefix, RetryTimeout: cfg.Timeout / 2,
		Durability: cfg.Durability, Observer: cfg.Observer, Logger: cfg.Logger, AllowOldBridges: cfg.AllowOldBridges})
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, client: client, op: admin.New(cfg.Redis, cfg.Prefix), log: cfg.Logger,
		polls:  make(chan struct{}, cfg.MaxPolls),
		bodies: share{most: cfg.MaxRequests / 4}, answers: share{most: cfg.MaxRequests / 4},
		waiting: share{most: cfg.MaxPolls / 4}, streams: share{most: cfg.MaxPolls / 4},
		bytes: share{most: max(cfg.MaxRequests/4*bytesOfPlace, leastBytes)},
		puller: pull.New(pull.Config{Client: cfg.Redis.Client, Blocking: cfg.Redis.Blocking, Prefix: cfg.Prefix,
			Logger: cfg.Logger})}
	g.stopping, g.stop = context.WithCancel(context.Background())
	if cfg.AllowOldBridges {
		g.op = g.op.AllowOldBridges()
	}
	if cfg.Observer != nil {
		g.op = g.op.Observed(cfg.Observer)
	}
	g.live = newLive(g.op, g.stopping, cfg.Timeout)
	g.lmstfy = lmstfy.New(lmstfy.Config{Redis: cfg.Redis, Prefix: cfg.Prefix, Client: client, Admin: g.op, Puller: g.puller,
		Access: cfg.Access, Logger: cfg.Logger, Timeout: cfg.Timeout,
		Hold: g.hold, Reading: g.reading, Answering: g.answering})
	g.mux = http.NewServeMux()
	for _, one := range routes {
		g.mux.HandleFunc(one.method+" "+one.pattern, func(w http.ResponseWriter, r *http.Request) {
			g.answer(one, w.(*reply), r)
		})
	}
	g.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { g.unknown(w.(*reply), r) })
	return g, nil
}

// Close ends all waiting for messages, and waits for what is being scheduled. End the server first.
func (g *Gateway) Close() error {
	g.stop()
	g.pulled.Do(func() {})
	g.asJobs.Do(func() {})
	g.pulling.Wait()
	return g.client.Close()
}

// Handler returns what answers requests.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// Bounds of what connections cost.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 30 * time.Second // streams renew it
	idleTimeout    = 60 * time.Second
	maxHeaderBytes = 64 << 10
)

// NewServer returns a server for a Gateway, with bounds on what a client may cost. It speaks HTTP/1.1, and HTTP/2 without TLS to
// clients that begin with it. What Shutdown waits for ends by itself within the Timeout of the Gateway: who waits for a message
// is told at once that there is none yet.
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
