package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/lua"
)

// Call is a request that is being answered, for the gateway's own handlers and those of mounted APIs. Its methods check
// the caller's token, and keep the caller within the limits of the gateway and of the token.
type Call struct {
	Ctx   context.Context // ends when the caller hangs up, or when the time of LimitTime is over
	W     http.ResponseWriter
	R     *http.Request
	Grant *access.Grant // the caller's right; nil before Authenticate

	g      *Gateway
	w      *reply // the same value as W
	secret string // of the token
	held   []*chargedBody
}

func (g *Gateway) newCall(w *reply, r *http.Request) *Call {
	return &Call{Ctx: r.Context(), W: w, R: r, g: g, w: w}
}

// end takes the bodies of the request off its token's count. Their bytes count until the request is answered, because
// the handler keeps them in memory.
func (c *Call) end() {
	for _, body := range c.held {
		body.giveBack()
	}
}

// LimitTime makes Ctx end after Config.Timeout. Call cancel when the request is answered.
func (c *Call) LimitTime() (cancel context.CancelFunc) {
	c.Ctx, cancel = context.WithTimeout(c.Ctx, c.g.cfg.Timeout)
	return cancel
}

// Authenticate checks the secret of the caller's token, and sets Grant. It returns access.ErrRefused, or an error of
// Redis.
func (c *Call) Authenticate(secret string) error {
	c.secret = secret
	return c.AuthenticateAgain()
}

// AuthenticateAgain reads the current grant of the caller's token. Long requests call it, because somebody may revoke
// the token meanwhile.
func (c *Call) AuthenticateAgain() error {
	grant, err := c.g.cfg.Access.Authenticate(c.Ctx, c.secret)
	if err == nil {
		c.Grant = grant
	}
	return err
}

// MayAnswer counts the answer for the caller's token. ErrAnswers: the token has reached its limit of answers that its
// callers have not read yet. The limit keeps places free for other tokens when callers read slowly or not at all.
func (c *Call) MayAnswer() error {
	if c.Grant != nil {
		c.w.token = c.Grant.Name()
	}
	if c.g.answers.isFull(c.w.token) {
		return errAnswers
	}
	return nil
}

// Charge charges n to the rate of the caller's token for a verb. If the rate does not allow n now, it charges nothing
// and returns how long to wait.
func (c *Call) Charge(verb access.Verb, n int) (wait time.Duration) {
	wait, err := c.g.cfg.Access.Take(c.Ctx, c.Grant, verb, n)
	if err != nil { // Ctx has ended, and the request fails anyway
		return 0
	}
	return wait
}

// HoldBytes counts the bytes of payloads for the caller's token, from before the answer is built until the caller has
// read it and leave is called. One large answer may have any size; several have at most 64 MiB together. ErrBusy: they
// have reached this limit.
func (c *Call) HoldBytes(n int) (leave func(), err error) {
	if n < largeAnswer {
		return func() {}, nil
	}
	leave, refusal := c.w.takeBytes(n)
	if refusal != nil {
		return nil, refusal
	}
	c.w.counted = true
	return leave, nil
}

// GiveBack undoes a Charge.
func (c *Call) GiveBack(verb access.Verb, n int) { c.g.cfg.Access.GiveBack(c.Ctx, c.Grant, verb, n) }

// Audit logs an operator's action on a queue.
func (c *Call) Audit(action, queue string, attrs ...slog.Attr) {
	c.g.cfg.Access.Audit(c.Grant, action, queue, attrs...)
}

// Body reads the whole body. ErrTooLarge: it has more than most bytes. Other errors are those of ReadBody.
func (c *Call) Body(most int) ([]byte, error) {
	if c.R.ContentLength > int64(most) && c.R.Header.Get("Content-Encoding") == "" {
		return nil, tooLarge(int64(most))
	}
	var text []byte
	err := c.ReadBody(func(body io.Reader) (err error) {
		text, err = c.readAtMost(body, most+1)
		return err
	})
	if err == nil && len(text) > most {
		return nil, tooLarge(int64(most))
	}
	return text, err
}

// ReadBody calls read with the body, within a time limit and the limits of the caller's token. ErrBodies: the token has
// reached its limit of bodies that are read at the same time. ErrBusy: these bodies have reached their limit of memory.
// ErrUnread: the body was incomplete, or too slow. ErrLate: the body was complete, but the time of LimitTime was over.
func (c *Call) ReadBody(read func(io.Reader) error) error {
	if c.R.ContentLength == 0 {
		return c.bodyError(read(c.R.Body))
	}
	token := c.Grant.Name()
	defer c.g.bodies.end(token)
	if c.g.bodies.begin(token) {
		return errBodies(ErrBodies)
	}
	body := &chargedBody{ReadCloser: c.R.Body, bytes: &c.g.bytes, token: token}
	c.held = append(c.held, body)
	rc := http.NewResponseController(c.W)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	err := read(body)
	if err == nil {
		// net/http goes on reading, to notice a caller that hangs up.
		_ = rc.SetReadDeadline(time.Now().Add(readTimeout))
	}
	return c.bodyError(err)
}

// bodyError turns an error of reading the body into the answer to the caller.
func (c *Call) bodyError(err error) error {
	var tokenBusy *problem
	switch {
	case errors.Is(err, ErrBusy) && errors.As(err, &tokenBusy):
		return tokenBusy
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(c.Ctx.Err(), context.DeadlineExceeded):
		late := &problem{Type: typeMalformed, Status: http.StatusRequestTimeout, Detail: "the body took too long",
			cause: ErrUnread}
		if err == nil {
			late.cause = ErrLate
		}
		return late
	case err != nil: // also if the caller hung up
		return &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: "the body could not be read",
			cause: ErrUnread}
	}
	return nil
}

// maxAnnounced is the largest body, in bytes, whose memory is allocated before the body has arrived.
const maxAnnounced = 16 << 10

// readAtMost reads at most limit bytes of the body. It reads a body of known length into a slice of that size, unless
// the length is above maxAnnounced: a caller could announce a large body and never send it.
func (c *Call) readAtMost(body io.Reader, limit int) ([]byte, error) {
	size := c.R.ContentLength
	knowsSize := size >= 0 && size < int64(limit) && c.R.Header.Get("Content-Encoding") == ""
	if !knowsSize || size > maxAnnounced {
		return io.ReadAll(io.LimitReader(body, int64(limit)))
	}
	text := make([]byte, size)
	_, err := io.ReadFull(body, text)
	return text, err
}

// perToken limits the use of a resource by each token, so that one token cannot use all of the resource. The zero value
// allows each token one use at a time.
type perToken struct {
	limit      int // for each token; less than 1 counts as 1
	totalLimit int // for all tokens together; 0 = no limit

	mu     sync.Mutex
	counts map[string]int
	total  int
}

// begin adds one to a token's count, even above the limits. It reports whether the token, or the sum of all tokens, is
// over its limit now.
func (p *perToken) begin(token string) (over bool) { return p.add(token, 1) }

// end subtracts one from a token's count.
func (p *perToken) end(token string) { p.add(token, -1) }

// add adds n, which may be negative, to a token's count. Like begin it reports whether a limit is exceeded now.
func (p *perToken) add(token string, n int) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	count := p.counts[token] + n
	p.counts[token] = count
	if count == 0 {
		delete(p.counts, token)
	}
	p.total += n
	return count > max(1, p.limit) || p.totalLimit > 0 && p.total > p.totalLimit
}

// count returns a token's count.
func (p *perToken) count(token string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[token]
}

// isFull reports whether a token has reached its limit.
func (p *perToken) isFull(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[token] >= max(1, p.limit)
}

// isFarOver reports whether a token's count is above twice its limit.
func (p *perToken) isFarOver(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[token] > 2*max(1, p.limit)
}

// call is a request for one of the gateway's own routes.
type call struct {
	*Gateway
	*Call
	queue string // "" if the path names no queue
	query query
}

// id returns the {id} of the path, decoded.
func (c *call) id() string { return c.R.PathValue("id") }

// answer checks the token and the parameters of a request, and calls the handler of its route.
func (g *Gateway) answer(one route, w *reply, r *http.Request) {
	w.route = one.method + " " + one.pattern
	c := &call{Gateway: g, Call: g.newCall(w, r), queue: r.PathValue("queue")}
	defer c.end()
	if !one.stream {
		defer c.LimitTime()()
	}
	err := c.allow(one)
	if err == nil {
		c.query, err = parseQuery(r.URL.RawQuery, one.query)
	}
	if err == nil {
		err = c.openBody()
	}
	if err != nil {
		w.failed(c, err)
		return
	}
	if one.readsPayloads {
		end, err := c.beginRead()
		if err != nil {
			w.failed(c, err)
			return
		}
		defer end()
	}
	status, body, err := one.handler(c)
	if one.audit {
		c.Audit(one.name, c.queue, slog.String("request", w.id), slog.Bool("done", err == nil))
	}
	switch {
	case err != nil:
		w.failed(c, err)
	case w.status == 0:
		w.json(status, body)
	}
}

// allow checks the token, and then the name of the queue.
func (c *call) allow(one route) error {
	if one.verb == "" {
		return nil
	}
	kind, secret, _ := strings.Cut(c.R.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || secret == "" || len(c.R.Header.Values("Authorization")) != 1 {
		return &problem{Type: typeToken, Status: http.StatusUnauthorized,
			Detail: "the header Authorization must hold \"Bearer\" and a token"}
	}
	if err := c.Authenticate(strings.TrimSpace(secret)); err != nil {
		return err
	}
	if err := c.MayAnswer(); err != nil {
		return err
	}
	_, hasQueue := strings.CutPrefix(one.pattern, "/v1/queues/{queue}")
	if hasQueue {
		if err := lua.CheckQueue(c.queue); err != nil {
			return &problem{Type: typeMalformed, Status: http.StatusBadRequest, cause: err,
				Detail: "the path does not name a queue"}
		}
	}
	mayInspect := one.orInspect && c.Grant.May(access.Inspect, c.queue)
	if hasQueue && !mayInspect && !c.Grant.May(one.verb, c.queue) {
		return forbidden(one.verb)
	}
	if one.chargesItself {
		return nil
	}
	return c.take(one.verb, 1)
}

// take charges n to the token's rate, and returns an error if the rate does not allow n now.
func (c *call) take(verb access.Verb, n int) error {
	if wait := c.Charge(verb, n); wait > 0 {
		return tooFast(wait)
	}
	return nil
}

// mayAll returns an error unless the token allows the verb on all of these queues.
func (c *call) mayAll(verb access.Verb, queues []string) error {
	for _, queue := range queues {
		if err := lua.CheckQueue(queue); err != nil {
			return err
		}
		if !c.Grant.May(verb, queue) {
			return forbidden(verb)
		}
	}
	return nil
}

// stillMay is mayAll for a long request: it first reads the current grant of the token.
func (c *call) stillMay(verb access.Verb, queues []string) error {
	if err := c.AuthenticateAgain(); err != nil {
		return err
	}
	return c.mayAll(verb, queues)
}

// query holds the parameters of a request.
type query map[string]string

// parseQuery reads the parameters. It refuses names that the route does not know, and a name that is given twice.
func parseQuery(raw, names string) (query, error) {
	if raw == "" {
		return nil, nil
	}
	all, err := url.ParseQuery(raw)
	if err != nil {
		return nil, malformed("the query cannot be read")
	}
	q := query{}
	for name, values := range all {
		switch {
		case !slices.Contains(strings.Fields(names), name):
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest,
				Detail: "the query has an unknown parameter",
				fault:  fault{Field: cut(name), Limit: "must be one of: " + names}}
		case len(values) > 1:
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: "the query has a parameter twice",
				fault: fault{Field: name, Limit: "must be given once"}}
		case !utf8.ValidString(values[0]):
			return nil, &problem{Type: typeMalformed, Status: http.StatusBadRequest, Detail: "the query is not UTF-8",
				fault: fault{Field: name, Limit: "must be UTF-8"}}
		}
		q[name] = values[0]
	}
	return q, nil
}

// openBody makes reads of a compressed body return it decompressed.
func (c *call) openBody() error {
	switch encoding := c.R.Header.Get("Content-Encoding"); strings.ToLower(encoding) {
	case "", "identity":
	case "gzip":
		c.R.Body = &unzipped{body: c.R.Body}
	default:
		c.w.Header().Set("Accept-Encoding", "gzip, identity")
		return &problem{Type: typeMedia, Status: http.StatusUnsupportedMediaType,
			Detail: "Content-Encoding must be gzip, or left out"}
	}
	return nil
}
