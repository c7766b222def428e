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
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/access"
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

// Config is what a Server works with. All is required but Prefix and Logger.
type Config struct {
	Redis  *bridge.Redis
	Prefix string // of all keys; default "duestream"
	Client *bridge.Client
	Admin  *admin.Admin
	Puller *pull.Puller
	Access Access
	Logger *slog.Logger // nil = discard

	Timeout time.Duration // of what does not wait for jobs
	// Hold calls pull, which takes about so long for whoever asked, so that others are answered meanwhile. The context that pull
	// gets ends when nobody waits any more.
	Hold func(w http.ResponseWriter, ctx context.Context, wait time.Duration, pull func(context.Context) error) error
	// Reading begins to read the body of a request, and bounds how long that may take. It is false when as many of that token's
	// are read as may be. done ends it.
	Reading func(w http.ResponseWriter, r *http.Request, token string) (done func(error), ok bool)
	// Answering says whose token the answer to a request counts for. It is false when as many answers to it are being
	// written as may be.
	Answering func(w http.ResponseWriter, token string) bool
}

// Server answers lmstfy's API, everything under /api/. While Run runs, jobs that are not done within their ttr come back.
type Server struct {
	cfg   Config
	log   *slog.Logger
	ids   ids
	clock clock
	held  held
	done  acked

	mu      sync.Mutex
	ensured map[string]time.Time // when a queue's settings were seen to be right
}

// New returns a Server. Redis is not touched.
func New(cfg Config) *Server {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
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
	queue         string // as the request names it, also several
	name          string // of our queue; "" where there are several
	unused        func() // gives back what was taken out of the token's rate; nil = nothing was
}

// route is one thing that can be asked for. The path begins with /api/ and two names.
type route struct {
	method, rest string // rest of the path; {id} stands for one part
	verbs        []access.Verb
	answer       func(*call) (status int, body any, err error)
	action       string // of what an operator does
	polls        bool
}

var (
	publishing = []access.Verb{access.Publish}
	consuming  = []access.Verb{access.Consume}
	looking    = access.Verbs() // any of them
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

// find returns what a request asks for.
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
	if err != nil && c.unused != nil {
		c.unused()
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

// names checks the namespace, and the queue where it is one.
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

// allow finds out who asks, and whether they may.
func (c *call) allow(one route) error {
	token := cmp.Or(c.r.Header.Get("X-Token"), c.r.URL.Query().Get("token"))
	if pool, secret, is := strings.Cut(token, ":"); is {
		if token = secret; pool != "" && pool != "default" {
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
		return nil // once its queues are known
	}
	return c.may(c.name, one.verbs...)
}

// authenticate takes up what the token is for now.
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

// may refuses what the token is not for.
func (c *call) may(name string, verbs ...access.Verb) error {
	for _, verb := range verbs {
		if c.grant.May(verb, name) {
			return nil
		}
	}
	return errToken
}

// take counts against what the token allows of a verb, unless the answer is an error.
func (c *call) take(verb access.Verb, n int) error {
	grant := c.grant
	c.unused = nil
	wait, err := c.cfg.Access.Take(c.ctx, grant, verb, n)
	if err != nil || wait <= 0 {
		c.unused = func() { c.cfg.Access.GiveBack(c.ctx, grant, verb, n) }
		return nil
	}
	action := map[access.Verb]string{access.Consume: "consume", access.Publish: "produce"}[verb]
	return &failed{status: http.StatusTooManyRequests, wait: wait, body: map[string]any{
		"msg": "token(" + c.grant.Name() + ") " + action + " reach the limit rate, please retry later"}}
}

// ensure has the queue's group have the settings that it needs. That they are is believed for a minute.
func (s *Server) ensure(ctx context.Context, name string) error {
	s.mu.Lock()
	fresh := time.Since(s.ensured[name]) < time.Minute
	s.mu.Unlock()
	if fresh {
		return nil
	}
	if err := EnsureQueue(ctx, s.cfg.Admin, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ensured) > mostKnown {
		clear(s.ensured)
	}
	s.ensured[name] = time.Now()
	return nil
}

// mostKnown is how many names, and how many jobs, a Server remembers.
const mostKnown = 200_000
