package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/lua"
)

// call is a request, with its grant once the token was checked.
type call struct {
	*Gateway
	ctx   context.Context
	w     *reply
	r     *http.Request
	grant *access.Grant
	queue string // "" where the route has none
	query query

	secret string // of the token
}

// id returns the {id} of the path, decoded.
func (c *call) id() string { return c.r.PathValue("id") }

// serve handles every request: it sets headers, limits the number of requests, recovers panics and passes the request
// on.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	out := &reply{ResponseWriter: w, g: g, r: r, id: requestID(r.Header)}
	if r.ContentLength > 0 {
		out.body = &counted{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // a copy: net/http needs the body of its own request unchanged
		r.Body = out.body
	}
	began := time.Now()
	h := out.Header() // names in canonical form: assigning is faster than Set
	h["X-Request-Id"] = []string{out.id}
	h["X-Content-Type-Options"] = noSniff
	h["Cache-Control"] = noStore
	if len(r.TransferEncoding) > 0 {
		// net/http hides a Content-Length beside Transfer-Encoding. A proxy that uses the Content-Length may take bytes
		// after the last chunk for a part of this request. So do not read them as another request.
		h.Set("Connection", "close")
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // it is compared so by net/http
				panic(p)
			}
			g.log.Error("a request made the gateway panic", slog.String("request", out.id),
				slog.String("panic", fmt.Sprintf("%T", p)), slog.String("stack", string(debug.Stack())))
			if out.status != 0 {
				panic(http.ErrAbortHandler) // a partial answer must not look complete
			}
			out.problem(&problem{Type: typeInternal, Status: http.StatusInternalServerError})
		}
		if out.status >= http.StatusBadRequest && r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingerTime))
		}
		g.answered(out, time.Since(began))
		if out.refused {
			panic(http.ErrAbortHandler) // the stream ends; its connection goes on
		}
	}()
	defer g.busy.Add(-1)
	defer out.flushHTTP2()
	if g.busy.Add(1) > int64(g.cfg.MaxRequests) {
		out.problem(&problem{Type: typeBusy, Status: http.StatusServiceUnavailable, wait: time.Second,
			Detail: "this gateway answers as many requests as it may: try again"})
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		g.asJobs.Do(func() { g.pulling.Go(func() { g.lmstfy.Run(g.stopping) }) })
		g.lmstfy.ServeHTTP(out, r)
		return
	}
	if !cleanPath(r.URL) {
		out.problem(&problem{Type: typeMalformed, Status: http.StatusBadRequest,
			Detail: "the path has a part that is empty, . or .., or is not UTF-8"})
		return
	}
	g.mux.ServeHTTP(out, r)
}

// Values of headers that many answers have.
var (
	noSniff     = []string{"nosniff"}
	noStore     = []string{"no-store"}
	isJSON      = []string{"application/json"}
	variesByZip = []string{"Accept-Encoding"}
)

// answered logs a request, at level debug.
func (g *Gateway) answered(w *reply, took time.Duration) {
	if g.log.Enabled(context.Background(), slog.LevelDebug) {
		g.log.Debug("answered", slog.String("request", w.id), slog.String("method", w.r.Method),
			slog.String("route", w.route), slog.Int("status", w.status), slog.Duration("took", took))
	}
}

// cleanPath reports whether a path has only plain parts: none that is empty, . or .., or not UTF-8. Go's mux would
// redirect such a path, and a proxy might read it as another path.
func cleanPath(u *url.URL) bool {
	path, found := strings.CutPrefix(u.EscapedPath(), "/")
	if !found {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		name, err := url.PathUnescape(part)
		if err != nil || name == "" || name == "." || name == ".." || !utf8.ValidString(name) {
			return false
		}
	}
	return true
}

// requestID returns the caller's ID of a request if it is safe for a log line, else a new one.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	sane := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("-_.:", r)
	}
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, func(r rune) bool { return !sane(r) }) {
		return rand.Text()
	}
	return id
}

// unknown answers a request that matches no route.
func (g *Gateway) unknown(w *reply, r *http.Request) {
	var allowed []string
	for _, method := range methods {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := g.mux.Handler(other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if allowed == nil {
		w.problem(&problem{Type: typeNoRoute, Status: http.StatusNotFound, Detail: "there is nothing at this path"})
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	w.problem(&problem{Type: typeMethod, Status: http.StatusMethodNotAllowed,
		Detail: "this path takes " + strings.Join(allowed, ", ")})
}

// answer checks the token and the parameters of a request, and calls the handler of its route.
func (g *Gateway) answer(one route, w *reply, r *http.Request) {
	w.route = one.method + " " + one.pattern
	c := &call{Gateway: g, ctx: r.Context(), w: w, r: r, queue: r.PathValue("queue")}
	if !one.stream {
		ctx, cancel := context.WithTimeout(c.ctx, g.cfg.Timeout)
		defer cancel()
		c.ctx = ctx
	}
	if err := g.allow(one, c); err != nil {
		w.failed(c, err)
		return
	}
	var err error
	if c.query, err = parseQuery(r.URL.RawQuery, one.query); err != nil {
		w.failed(c, err)
		return
	}
	if err = c.openBody(); err != nil {
		w.failed(c, err)
		return
	}
	status, body, err := one.handler(c)
	if one.audit {
		g.cfg.Access.Audit(c.grant, one.name, c.queue, slog.String("request", w.id), slog.Bool("done", err == nil))
	}
	switch {
	case err != nil:
		w.failed(c, err)
	case w.status == 0:
		w.json(status, body)
	}
}

// allow checks the token, and then the name of the queue.
func (g *Gateway) allow(one route, c *call) error {
	if one.verb == "" {
		return nil
	}
	kind, secret, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || secret == "" || len(c.r.Header.Values("Authorization")) != 1 {
		return refused("the header Authorization must hold \"Bearer\" and a token")
	}
	c.secret = strings.TrimSpace(secret)
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.mayAnswer(); err != nil {
		return err
	}
	_, hasQueue := strings.CutPrefix(one.pattern, "/v1/queues/{queue}")
	if hasQueue {
		if err := lua.CheckQueue(c.queue); err != nil {
			return &problem{Type: typeMalformed, Status: http.StatusBadRequest, cause: err,
				Detail: "the path does not name a queue"}
		}
	}
	if hasQueue && !c.grant.May(one.verb, c.queue) {
		return forbidden(one.verb)
	}
	if one.chargesItself {
		return nil
	}
	return c.take(one.verb, 1)
}

// authenticate gets the current grant of the token. Long requests call it again, because the token may have been
// revoked meanwhile.
func (c *call) authenticate() error {
	grant, err := c.cfg.Access.Authenticate(c.ctx, c.secret)
	if errors.Is(err, access.ErrRefused) {
		return refused("the token is unknown, revoked or expired")
	}
	if err == nil {
		c.grant = grant
	}
	return err
}

// mayAnswer returns an error if too many answers to the token wait to be read.
func (c *call) mayAnswer() error {
	if !c.answering(c.w, c.grant.Name()) {
		return errAnswers()
	}
	return nil
}

// take charges n to the token's rate, and returns an error if the rate does not allow n now.
func (c *call) take(verb access.Verb, n int) error {
	wait, err := c.cfg.Access.Take(c.ctx, c.grant, verb, n)
	if err == nil && wait > 0 {
		return tooFast(wait)
	}
	return nil
}

func tooFast(wait time.Duration) error {
	return &problem{Type: typeRate, Status: http.StatusTooManyRequests, wait: wait, Detail: "the token's rate is used up"}
}

func refused(detail string) error {
	return &problem{Type: typeToken, Status: http.StatusUnauthorized, Detail: detail}
}

func forbidden(verb access.Verb) error {
	return &problem{Type: typeForbidden, Status: http.StatusForbidden,
		Detail: "the token is not for this: it takes the verb " + string(verb) + " on all that is asked for"}
}

// retryAfter returns a wait in whole seconds, rounded up.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
