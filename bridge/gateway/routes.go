package gateway

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
)

// Handler returns the HTTP handler of the gateway.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// serve handles every request: it sets headers, limits the number of requests, recovers panics and passes the request
// on.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	out := &reply{ResponseWriter: w, g: g, r: r, id: requestID(r.Header)}
	if r.ContentLength > 0 {
		out.body = &countedBody{ReadCloser: r.Body}
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
		// after the last chunk for a part of this request. So close the connection, and do not read those bytes as
		// another request.
		h.Set("Connection", "close")
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it this way
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
			panic(http.ErrAbortHandler) // resets the HTTP/2 stream; its connection stays open
		}
	}()
	defer g.busy.Add(-1)
	defer out.flushHTTP2()
	if g.busy.Add(1) > int64(g.cfg.MaxRequests) {
		out.problem(busy(ErrBusy, "this gateway has reached its limit of requests: try again"))
		return
	}
	for _, api := range g.mounted {
		if strings.HasPrefix(r.URL.Path, api.prefix) {
			c := g.newCall(out, r)
			defer c.end()
			api.answer(c)
			return
		}
	}
	if !cleanPath(r.URL) {
		out.problem(&problem{Type: typeMalformed, Status: http.StatusBadRequest,
			Detail: "the path has a part that is empty, . or .., or is not UTF-8"})
		return
	}
	g.mux.ServeHTTP(out, r)
}

// Values of headers that many answers have. They are slices, so that no answer allocates one.
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
	isUnsafe := func(r rune) bool {
		isAlphanumeric := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !isAlphanumeric && !strings.ContainsRune("-_.:", r)
	}
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, isUnsafe) {
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
		w.problem(&problem{Type: typeNoRoute, Status: http.StatusNotFound, Detail: "the API has no such path"})
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	w.problem(&problem{Type: typeMethod, Status: http.StatusMethodNotAllowed,
		Detail: "this path allows the methods " + strings.Join(allowed, ", ")})
}

// newMux returns the handler of all routes in the table routes.
func (g *Gateway) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for _, one := range routes {
		mux.HandleFunc(one.method+" "+one.pattern, func(w http.ResponseWriter, r *http.Request) {
			g.answer(one, w.(*reply), r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { g.unknown(w.(*reply), r) })
	return mux
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}

// route is an operation of the API. A request with a parameter whose name is not in query is refused.
type route struct {
	name, method, pattern string
	verb                  access.Verb // that the token must allow; "" = no token is needed
	orInspect             bool        // a token that allows access.Inspect is enough, too
	query                 string      // names of parameters, separated by spaces
	handler               handler
	audit                 bool // each request is logged as an operator's action
	stream                bool // a request may take longer than Config.Timeout
	readsPayloads         bool // few requests run at the same time, because payloads take memory
	chargesItself         bool // the handler itself charges the token's rate, or the route costs nothing
}

// handler returns the status of the answer and a value to send as JSON, or an error. A handler that has written the
// answer itself returns zeros.
type handler func(*call) (status int, body any, err error)

const (
	queuePath      = "/v1/queues/{queue}"
	messagePath    = queuePath + "/messages/{id}"
	letterPath     = queuePath + "/dead/{id}"
	recurrencePath = queuePath + "/recurrences/{id}"
)

// routes holds all routes. It is filled in init because handlers read it.
var routes []route

func init() { routes = table() }

func table() []route {
	const message = "id in_ms at_ms spread_ms max_attempts retry_delays_ms retry_for_ms max_snoozes max_crashes " +
		"handler_timeout_ms result_ms expires_ms dedup_ms replace key"
	const receiving = "group count within_ms wait_ms"
	const letters = "group reason error id older_than_ms newer_than_ms limit newest"
	return []route{
		{name: "document", method: http.MethodGet, pattern: "/v1/openapi.json", handler: document},

		{name: "publish", method: http.MethodPost, pattern: queuePath + "/messages", verb: access.Publish, query: message,
			handler: publish},
		{name: "publish many", method: http.MethodPost, pattern: queuePath + "/batch", verb: access.Publish,
			handler: publishMany, chargesItself: true, stream: true},
		{name: "get", method: http.MethodGet, pattern: messagePath, verb: access.Publish, orInspect: true,
			handler: get, readsPayloads: true},
		{name: "result", method: http.MethodGet, pattern: messagePath + "/result", verb: access.Inspect,
			query: "group wait_ms", handler: result, stream: true},
		{name: "cancel", method: http.MethodDelete, pattern: messagePath, verb: access.Publish, query: "running group",
			handler: cancel},
		{name: "reschedule", method: http.MethodPatch, pattern: messagePath, verb: access.Publish, query: "in_ms at_ms",
			handler: reschedule},

		{name: "receive", method: http.MethodPost, pattern: queuePath + "/deliveries", verb: access.Consume, query: receiving,
			handler: receive, stream: true},
		{name: "receive of several", method: http.MethodPost, pattern: "/v1/deliveries", verb: access.Consume,
			query: receiving + " queues weights", handler: receiveOfSeveral, stream: true},
		{name: "settle", method: http.MethodPost, pattern: "/v1/settlements", verb: access.Consume, handler: settle,
			chargesItself: true},

		{name: "list queues", method: http.MethodGet, pattern: "/v1/queues", verb: access.Inspect, handler: queues},
		{name: "find", method: http.MethodGet, pattern: "/v1/messages/{id}", verb: access.Inspect,
			handler: find, readsPayloads: true},
		{name: "stats", method: http.MethodGet, pattern: queuePath + "/stats", verb: access.Inspect, handler: stats},
		{name: "forecast", method: http.MethodGet, pattern: queuePath + "/forecast", verb: access.Inspect,
			query: "group within_ms", handler: forecast},
		{name: "live stats", method: http.MethodGet, pattern: "/v1/events/stats", verb: access.Inspect,
			query: "interval_ms queues", handler: events, stream: true},
		{name: "peek", method: http.MethodGet, pattern: queuePath + "/schedule", verb: access.Inspect,
			query: "limit payloads", handler: peek, readsPayloads: true},
		{name: "history", method: http.MethodGet, pattern: queuePath + "/history", verb: access.Inspect, query: "limit",
			handler: history},
		{name: "pending", method: http.MethodGet, pattern: queuePath + "/pending", verb: access.Inspect,
			query: "group consumer min_idle_ms limit", handler: pending},
		{name: "consumers", method: http.MethodGet, pattern: queuePath + "/consumers", verb: access.Inspect, query: "group",
			handler: consumers},
		{name: "pause", method: http.MethodPost, pattern: queuePath + "/pause", verb: access.Operate, query: "workers",
			handler: pause, audit: true},
		{name: "resume", method: http.MethodPost, pattern: queuePath + "/resume", verb: access.Operate, handler: resume,
			audit: true},

		{name: "search", method: http.MethodPost, pattern: "/v1/search", verb: access.Inspect, handler: search,
			stream: true},
		{name: "act", method: http.MethodPost, pattern: "/v1/act", verb: access.Operate, handler: act, stream: true},

		{name: "read policy", method: http.MethodGet, pattern: queuePath + "/policy", verb: access.Inspect, query: "group",
			handler: readPolicy},
		{name: "change policy", method: http.MethodPatch, pattern: queuePath + "/policy", verb: access.Operate,
			query: "group", handler: changePolicy, audit: true},

		{name: "list dead letters", method: http.MethodGet, pattern: queuePath + "/dead", verb: access.Inspect,
			query: letters, handler: listLetters, readsPayloads: true},
		{name: "show dead letter", method: http.MethodGet, pattern: letterPath, verb: access.Inspect,
			handler: showLetter, readsPayloads: true},
		{name: "purge dead letters", method: http.MethodDelete, pattern: queuePath + "/dead", verb: access.Operate,
			query: letters + " all", handler: purgeLetters, audit: true},
		{name: "purge dead letter", method: http.MethodDelete, pattern: letterPath, verb: access.Operate,
			handler: purgeLetter, audit: true},
		{name: "redrive dead letters", method: http.MethodPost, pattern: queuePath + "/dead/redrive", verb: access.Operate,
			query: letters + " all in_ms spread_ms to rate dry_run", handler: redriveLetters, audit: true},
		{name: "redrive dead letter", method: http.MethodPost, pattern: letterPath + "/redrive", verb: access.Operate,
			query: "in_ms to replace_payload", handler: redriveLetter, audit: true},

		{name: "list recurrences", method: http.MethodGet, pattern: queuePath + "/recurrences", verb: access.Inspect,
			handler: listRecurrences, readsPayloads: true},
		{name: "show recurrence", method: http.MethodGet, pattern: recurrencePath, verb: access.Inspect,
			handler: showRecurrence, readsPayloads: true},
		{name: "put recurrence", method: http.MethodPut, pattern: recurrencePath, verb: access.Operate,
			handler: putRecurrence, audit: true},
		{name: "remove recurrence", method: http.MethodDelete, pattern: recurrencePath, verb: access.Operate,
			handler: removeRecurrence, audit: true},
		{name: "pause recurrence", method: http.MethodPost, pattern: recurrencePath + "/pause", verb: access.Operate,
			handler: pauseRecurrence, audit: true},
		{name: "resume recurrence", method: http.MethodPost, pattern: recurrencePath + "/resume", verb: access.Operate,
			handler: resumeRecurrence, audit: true},
		{name: "run recurrence", method: http.MethodPost, pattern: recurrencePath + "/run", verb: access.Operate,
			handler: runRecurrence, audit: true},
	}
}
