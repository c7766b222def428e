package lmstfy

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
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

// Config configures a Server. All fields are required except Prefix and Logger.
type Config struct {
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"
	Client *bridge.Client
	Admin  *admin.Admin
	Puller *pull.Puller
	Access Access
	Logger *slog.Logger // nil = discard

	Timeout time.Duration // of a request that does not wait for jobs
	// Hold calls pull, which may block for about wait. Meanwhile the request does not count against the gateway's
	// limit of requests. The context that pull gets ends when the caller hangs up or the gateway stops.
	Hold func(w http.ResponseWriter, ctx context.Context, wait time.Duration, pull func(context.Context) error) error
	// Reading counts a request body for its token and sets a deadline for reading it. It returns false if the token has
	// reached its limit of bodies. Call done after the body was read, with the error of that.
	Reading func(w http.ResponseWriter, r *http.Request, token string) (done func(error), ok bool)
	// Answering makes the answer to a request count for a token. It returns false if the token has reached its limit of
	// answers in writing.
	Answering func(w http.ResponseWriter, token string) bool
}

// Server serves lmstfy's API: all paths under /api/. Jobs that are not acknowledged within their ttr are delivered
// again while Run runs.
type Server struct {
	cfg          Config
	log          *slog.Logger
	ids          ids
	clock        clock
	delivered    delivered
	acknowledged acknowledged

	floods loop.Floods // lines about single requests

	mu      sync.Mutex
	ensured map[string]time.Time // when each queue's settings were last checked
}

func (c Config) validate() error {
	return lua.Faults("lmstfy",
		lua.Required("redis", c.Redis != nil && c.Redis.Client != nil),
		lua.CheckPrefix(c.Prefix),
		lua.Required("client", c.Client != nil),
		lua.Required("admin", c.Admin != nil),
		lua.Required("puller", c.Puller != nil),
		lua.Required("access", c.Access != nil),
		lua.AtLeast("timeout", c.Timeout, time.Millisecond),
		lua.Required("hold", c.Hold != nil),
		lua.Required("reading", c.Reading != nil),
		lua.Required("answering", c.Answering != nil),
	)
}

// New checks the configuration; the error names all its faults, each a *bridge.InvalidError. Redis is not touched.
func New(cfg Config) (*Server, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newServer(cfg), nil
}

func newServer(cfg Config) *Server {
	s := &Server{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), ensured: map[string]time.Time{}}
	s.clock.client = cfg.Redis.Client
	return s
}

// call is a request that is being answered.
type call struct {
	*Server
	ctx           context.Context
	w             http.ResponseWriter
	r             *http.Request
	grant         *access.Grant
	secret        string
	namespace, id string
	queue         string // from the path: one queue, or several separated by commas
	name          string // full name of the queue; "" if there are several
	refund        func() // gives the request's charge to the token's rate back; nil = none was made
}

// route is an operation of the API. Its path begins with /api/, a namespace and a queue.
type route struct {
	method, rest string        // rest of the path; {id} stands for one part
	verbs        []access.Verb // the token needs one of them
	answer       func(*call) (status int, body any, err error)
	action       string // for the audit log; "" = not logged
	polls        bool   // it may name several queues, and wait for jobs
}

var (
	publishing = []access.Verb{access.Publish}
	consuming  = []access.Verb{access.Consume}
	looking    = access.Verbs() // any verb
	operating  = []access.Verb{access.Operate}
)

var routes = []route{
	{method: "PUT", rest: "", verbs: publishing, answer: publish},
	{method: "PUT", rest: "bulk", verbs: publishing, answer: publishBulk},
	{method: "PUT", rest: "job/{id}", verbs: publishing, answer: republish},
	{method: "GET", rest: "", verbs: consuming, answer: consume, polls: true},
	{method: "DELETE", rest: "job/{id}", verbs: consuming, answer: ack},
	{method: "GET", rest: "peek", verbs: looking, answer: peek},
	{method: "GET", rest: "job/{id}", verbs: looking, answer: peekJob},
	{method: "GET", rest: "size", verbs: looking, answer: size},
	{method: "DELETE", rest: "", verbs: operating, answer: destroy, action: "lmstfy: destroy"},
	{method: "GET", rest: "deadletter", verbs: looking, answer: peekDead},
	{method: "GET", rest: "deadletter/size", verbs: looking, answer: deadSize},
	{method: "PUT", rest: "deadletter", verbs: operating, answer: respawn, action: "lmstfy: respawn"},
	{method: "DELETE", rest: "deadletter", verbs: operating, answer: deleteDead, action: "lmstfy: delete dead letters"},
}

// find returns the route of a request, and the names in its path.
func find(method, path string) (one route, namespace, queue, id string, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(path, "/api/"), "/", 3)
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return route{}, "", "", "", false
	}
	rest := ""
	if len(parts) == 3 {
		if rest = parts[2]; rest == "" {
			return route{}, "", "", "", false
		}
		if name, is := strings.CutPrefix(rest, "job/"); is && name != "" && !strings.Contains(name, "/") {
			rest, id = "job/{id}", name
		}
	}
	for _, one := range routes {
		if one.method == method && one.rest == rest {
			return one, parts[0], parts[1], id, true
		}
	}
	return route{}, "", "", "", false
}

// ServeHTTP answers a request whose path begins with /api/.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	one, namespace, queue, id, ok := find(r.Method, r.URL.Path)
	if !ok {
		fail(s.log, w, r, failure(http.StatusNotFound, "api not found"))
		return
	}
	c := &call{Server: s, ctx: r.Context(), w: w, r: r, namespace: namespace, queue: queue, id: id}
	if !one.polls {
		ctx, cancel := context.WithTimeout(c.ctx, s.cfg.Timeout)
		defer cancel()
		c.ctx = ctx
	}
	err := c.names(one)
	if err == nil {
		err = c.allow(one)
	}
	if err != nil {
		fail(s.log, w, r, err)
		return
	}
	status, body, err := one.answer(c)
	if err != nil && c.refund != nil {
		c.refund()
	}
	if one.action != "" {
		s.cfg.Access.Audit(c.grant, one.action, c.name, slog.Bool("done", err == nil))
	}
	switch {
	case err != nil:
		fail(s.log, w, r, err)
	case status != 0:
		write(w, status, body)
	}
}

// names checks the namespace and, unless the route allows several, the queue.
func (c *call) names(one route) error {
	if !isName(c.namespace) {
		return failure(http.StatusBadRequest, "namespace name contains forbidden characters")
	}
	if one.polls {
		return nil
	}
	if !isName(c.queue) || c.queue[0] == '_' {
		return failure(http.StatusBadRequest, badQueue)
	}
	name, err := QueueName(c.namespace, c.queue)
	if err != nil {
		return failure(http.StatusBadRequest, "namespace or queue name too long")
	}
	c.name = name
	return nil
}

const badQueue = "queue name contains forbidden characters"

// allow checks the token, and that it allows the route.
func (c *call) allow(one route) error {
	token := cmp.Or(c.r.Header.Get("X-Token"), c.r.URL.Query().Get("token"))
	if pool, secret, is := strings.Cut(token, ":"); is {
		token = secret
		if pool != "" && pool != "default" {
			return failure(http.StatusNotFound, "pool not found")
		}
	}
	if token == "" {
		return failure(http.StatusUnauthorized, "token not found")
	}
	c.secret = token
	if err := c.authenticate(); err != nil {
		return err
	}
	if one.polls {
		return nil // consume checks each of its queues
	}
	return c.may(c.name, one.verbs...)
}

// authenticate gets the current grant of the token.
func (c *call) authenticate() error {
	grant, err := c.cfg.Access.Authenticate(c.ctx, c.secret)
	if err != nil {
		return unknownToken(err)
	}
	c.grant = grant
	if !c.cfg.Answering(c.w, grant.Name()) {
		return errAnswers
	}
	return nil
}

// may returns an error unless the token allows one of the verbs on a queue.
func (c *call) may(name string, verbs ...access.Verb) error {
	for _, verb := range verbs {
		if c.grant.May(verb, name) {
			return nil
		}
	}
	return errToken
}

// take charges n to the token's rate for a verb. If the request fails, ServeHTTP gives them back by calling refund.
func (c *call) take(verb access.Verb, n int) error {
	grant := c.grant
	c.refund = nil
	wait, err := c.cfg.Access.Take(c.ctx, grant, verb, n)
	if err != nil || wait <= 0 {
		c.refund = func() { c.cfg.Access.GiveBack(c.ctx, grant, verb, n) }
		return nil
	}
	action := map[access.Verb]string{access.Consume: "consume", access.Publish: "produce"}[verb]
	return &failed{status: http.StatusTooManyRequests, wait: wait, body: map[string]any{
		"msg": "token(" + c.grant.Name() + ") " + action + " reach the limit rate, please retry later"}}
}

const (
	ensureEvery = time.Minute
	ensureAgain = 5 * time.Second // pause after a failed check of settings that were right before
	ensureWait  = time.Second     // time limit of a check of such settings, or of several queues
)

// ensureAll calls EnsureQueue for each queue, at most once a minute. The calls are concurrent, so a queue whose server
// does not answer delays no other. Settings that were right before count as right while their server does not answer.
func (s *Server) ensureAll(ctx context.Context, names []string) []error {
	errs := make([]error, len(names))
	var looks sync.WaitGroup
	for i, name := range names {
		if due, known := s.isDue(name); due {
			looks.Go(func() { errs[i] = s.ensure(ctx, name, known, len(names) > 1) })
		}
	}
	looks.Wait()
	return errs
}

// isDue reports whether the caller must check the settings of a queue, and whether they were right before. If they
// were, other callers use the queue during the check.
func (s *Server) isDue(name string) (due, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, known := s.ensured[name]
	if time.Since(at) < ensureEvery {
		return false, known
	}
	if known {
		s.ensured[name] = time.Now().Add(ensureAgain - ensureEvery)
	}
	return true, known
}

func (s *Server) ensure(ctx context.Context, name string, known, several bool) error {
	limited := ctx
	if known || several {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, ensureWait)
		defer cancel()
	}
	err := EnsureQueue(limited, s.cfg.Admin, name)
	switch {
	case ctx.Err() != nil:
		return err
	case known && lua.Temporary(err):
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.ensured, name)
		return err
	}
	if len(s.ensured) > mostKnown {
		clear(s.ensured)
	}
	s.ensured[name] = time.Now()
	return nil
}

// mostKnown bounds the queue names that a Server remembers, and the jobs.
const mostKnown = 200_000
