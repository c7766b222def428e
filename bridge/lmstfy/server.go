package lmstfy

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// server serves lmstfy's API: all paths under /api/. While run runs, jobs that are not acknowledged within their ttr
// are delivered again.
type server struct {
	parts        gateway.Parts
	log          *slog.Logger
	ids          ids
	clock        clock
	delivered    delivered
	acknowledged acknowledged

	floods loop.Floods // limits the log lines about single requests

	used    chan struct{} // closed at the first request
	setUsed func()        // closes used

	mu      sync.Mutex
	ensured map[string]time.Time // when each queue's settings were last checked
}

// Mount makes a gateway answer lmstfy's API, with the Client, Admin and Puller of the gateway. Call it before the
// gateway runs.
func Mount(g *gateway.Gateway) error {
	if err := lua.Faults("lmstfy", lua.Required("gateway", g != nil)); err != nil {
		return err
	}
	s := newServer(g.Parts())
	g.Mount("/api/", s.answer, s.run)
	return nil
}

func newServer(parts gateway.Parts) *server {
	used := make(chan struct{})
	s := &server{parts: parts, log: parts.Logger, ensured: map[string]time.Time{}, used: used,
		setUsed: sync.OnceFunc(func() { close(used) })}
	s.clock.client = parts.Redis.Client
	return s
}

// call is a request that is being answered.
type call struct {
	*server
	*gateway.Call
	namespace, id string
	queue         string // from the path: one queue, or several separated by commas
	name          string // full name of the queue; "" if there are several
	refund        func() // gives the request's charge back to the token's rate; nil = nothing was charged
}

// route is an operation of the API. Its path begins with /api/, a namespace and a queue.
type route struct {
	method, rest string        // rest = the path after the queue; {id} stands for one part
	verbs        []access.Verb // the token needs one of them
	answer       func(*call) (status int, body any, err error)
	action       string // for the audit log; "" = not logged
	polls        bool   // a request may name several queues, and wait for jobs
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

// answer answers a request whose path begins with /api/.
func (s *server) answer(request *gateway.Call) {
	s.setUsed()
	w, r := request.W, request.R
	one, namespace, queue, id, ok := find(r.Method, r.URL.Path)
	if !ok {
		fail(s.log, w, r, failure(http.StatusNotFound, "api not found"))
		return
	}
	c := &call{server: s, Call: request, namespace: namespace, queue: queue, id: id}
	if !one.polls {
		defer c.LimitTime()()
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
		c.Audit(one.action, c.name, slog.Bool("done", err == nil))
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

// allow checks the token, and that the token allows the route.
func (c *call) allow(one route) error {
	token := cmp.Or(c.R.Header.Get("X-Token"), c.R.URL.Query().Get("token"))
	if pool, secret, is := strings.Cut(token, ":"); is {
		token = secret
		if pool != "" && pool != "default" {
			return failure(http.StatusNotFound, "pool not found")
		}
	}
	if token == "" {
		return failure(http.StatusUnauthorized, "token not found")
	}
	if err := c.Authenticate(token); err != nil {
		return err
	}
	if err := c.MayAnswer(); err != nil {
		return err
	}
	if one.polls {
		return nil // consume checks each of its queues
	}
	return c.may(c.name, one.verbs...)
}

// may returns an error unless the token allows one of the verbs on a queue.
func (c *call) may(name string, verbs ...access.Verb) error {
	for _, verb := range verbs {
		if c.Grant.May(verb, name) {
			return nil
		}
	}
	return errToken
}

// take charges n to the token's rate for a verb. If the request fails, answer gives them back by calling refund.
func (c *call) take(verb access.Verb, n int) error {
	c.refund = nil
	wait := c.Charge(verb, n)
	if wait <= 0 {
		c.refund = func() { c.GiveBack(verb, n) }
		return nil
	}
	action := map[access.Verb]string{access.Consume: "consume", access.Publish: "produce"}[verb]
	return &failed{status: http.StatusTooManyRequests, wait: wait, body: map[string]any{
		"msg": "token(" + c.Grant.Name() + ") " + action + " reach the limit rate, please retry later"}}
}

const (
	ensureEvery = time.Minute
	ensureAgain = 5 * time.Second // pause after a failed check of settings that were right before
	ensureWait  = time.Second     // time limit of a check of settings that were right before, or of several queues
)

// ensureAll calls EnsureQueue for each queue, at most once a minute. The calls are concurrent, so a queue whose server
// does not answer delays no other queue. Settings that were right before count as right while their server does not
// answer.
func (s *server) ensureAll(ctx context.Context, names []string) []error {
	errs := make([]error, len(names))
	var checks sync.WaitGroup
	for i, name := range names {
		if isDue, wasRight := s.checkIsDue(name); isDue {
			checks.Go(func() { errs[i] = s.ensure(ctx, name, wasRight, len(names) > 1) })
		}
	}
	checks.Wait()
	return errs
}

// checkIsDue reports whether the caller must check the settings of a queue, and whether the settings were right before.
// If they were, it puts off the next check, so that other callers use the queue during this check.
func (s *server) checkIsDue(name string) (isDue, wasRight bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	checkedAt, wasRight := s.ensured[name]
	if time.Since(checkedAt) < ensureEvery {
		return false, wasRight
	}
	if wasRight {
		s.ensured[name] = time.Now().Add(ensureAgain - ensureEvery)
	}
	return true, wasRight
}

// ensure calls EnsureQueue, and records its success. several means that the request names other queues too.
func (s *server) ensure(ctx context.Context, name string, wasRight, several bool) error {
	limited := ctx
	if wasRight || several {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, ensureWait)
		defer cancel()
	}
	err := EnsureQueue(limited, s.parts.Admin, name)
	switch {
	case ctx.Err() != nil:
		return err
	case wasRight && lua.Temporary(err):
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.ensured, name)
		return err
	}
	if len(s.ensured) > maxRemembered {
		clear(s.ensured)
	}
	s.ensured[name] = time.Now()
	return nil
}

// maxRemembered bounds each list in a server's memory: queues, delivered jobs, and acknowledged jobs.
const maxRemembered = 200_000
