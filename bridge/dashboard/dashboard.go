package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// Access authenticates and limits viewers, and writes the audit log. An access.Store implements it.
type Access interface {
	Authenticate(ctx context.Context, secret string) (*access.Grant, error)
	Take(ctx context.Context, g *access.Grant, verb access.Verb, n int) (wait time.Duration, err error)
	Audit(g *access.Grant, action, queue string, attrs ...slog.Attr)
}

// Defaults of Config.
const (
	DefaultMaxViewers = 2000
	DefaultTimeout    = 10 * time.Second
)

// Config configures a Dashboard. Redis and Access are required.
type Config struct {
	Redis   *bridge.Redis
	Prefix  string // of all keys; default "duestream"
	Access  Access
	Logger  *slog.Logger // nil = discard
	Version string       // shown at the foot of each page

	// LoginByAddress lets the login page send the token after the # of its address, without a click. It is for
	// "duestream dev", which prints such an address. Elsewhere, a link could log a viewer in with another person's
	// token.
	LoginByAddress bool

	// ReadOnly refuses every change, whatever the token allows.
	ReadOnly bool

	// AllowOldBridges accepts changes that a live bridge may not serve (see bridge.ClientConfig).
	AllowOldBridges bool

	Observer bridge.Observer // gets events of messages; nil = none

	// MaxViewers limits the pages that are kept up to date at the same time. Their different views are limited to half
	// of MaxViewers, but at least 16. Further pages are shown and not updated. A token gets another place only while
	// more places are free than it holds, so one token gets at most half of them. Default 2,000.
	MaxViewers int
	Timeout    time.Duration // of a request that is not a stream; default 10s
}

// spareRequests is how many requests may be in flight besides MaxViewers streams. With HTTP/2, a limit of connections
// does not limit requests.
const spareRequests = 2000

// Dashboard is the handler. It keeps no state that another process needs, so any number of them may run side by side.
type Dashboard struct {
	cfg          Config
	clients      *clients
	op           *admin.Admin
	log          *slog.Logger
	hub          *hub
	examiner     *examiner
	adviser      *admin.Adviser
	memoryOf     readings[measuredMemory]     // the only key is ""
	retriesOf    readings[admin.RetrySummary] // by queue
	retryTime    shares                       // of reading retries
	jobs         *jobs
	searches     *line
	forms        *line  // large ones, whose memory is in use
	formMemory   budget // of other forms
	answerMemory budget // of answers that are being written, besides large downloads
	downloads    *line  // large ones, whose memory is in use
	finders      *line  // requests that search a message
	payloads     *line  // requests that read the payload of a dead letter or a recurrence
	book         *letterBook
	handler      http.Handler
	stopping     context.Context // cancelled by Close; ends all streams
	stop         context.CancelFunc
	cutting      context.Context // cancelled by Shutdown; ends all requests
	cut          context.CancelFunc
	messageTurns turns                         // of looks at watched messages
	finds        chan struct{}                 // has one element for each message that is being searched
	recurring    readings[[]recurrenceRow]     // recurrences by queue
	pastOf       readings[[]pastRun]           // last messages of recurrences
	targetsOf    readings[[]admin.PushState]   // targets of callbacks by queue
	tokensOf     readings[[]admin.StoredToken] // tokens; the only key is ""

	refusals refusals     // of logins
	requests atomic.Int64 // in flight

	changes    sync.Mutex // held by Close, and while a change begins
	closed     bool
	inProgress sync.WaitGroup // changes
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.MaxViewers = cmp.Or(c.MaxViewers, DefaultMaxViewers)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) validate() error {
	return lua.Faults("dashboard",
		lua.Required("redis", c.Redis != nil && c.Redis.Client != nil),
		lua.Required("access", c.Access != nil),
		lua.CheckPrefix(c.Prefix),
		lua.AtLeast("max viewers", c.MaxViewers, 1),
		lua.AtLeast("timeout", c.Timeout, time.Millisecond),
	)
}

// New checks the configuration; the error names all its faults, each a *bridge.InvalidError. Redis is not touched.
func New(cfg Config) (*Dashboard, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	clients, err := newClients(bridge.ClientConfig{
		Redis: cfg.Redis, Prefix: cfg.Prefix, RetryTimeout: cfg.Timeout / 2, Observer: cfg.Observer, Logger: cfg.Logger,
		AllowOldBridges: cfg.AllowOldBridges,
	})
	if err != nil {
		return nil, err
	}
	op, err := admin.New(cfg.Redis, cfg.Prefix)
	if err != nil {
		return nil, err
	}
	if cfg.AllowOldBridges {
		op = op.AllowOldBridges()
	}
	if cfg.Observer != nil {
		op = op.Observed(cfg.Observer)
	}
	d := &Dashboard{cfg: cfg, clients: clients, op: op, log: cfg.Logger, examiner: &examiner{}, adviser: op.Adviser()}
	d.stopping, d.stop = context.WithCancel(context.Background())
	d.cutting, d.cut = context.WithCancel(context.Background())
	d.hub = newHub(d.stopping, cfg.MaxViewers, cfg.Timeout)
	d.hub.log = cfg.Logger
	d.formMemory.all = formBytes
	d.answerMemory.all = answerBytes
	d.memoryOf.least = memoryEvery
	d.finds = make(chan struct{}, maxFinds)
	d.searches = &line{what: "searches", running: map[*turn]bool{}}
	d.forms = &line{what: "large forms", running: map[*turn]bool{}}
	d.downloads = &line{what: "large downloads", running: map[*turn]bool{}}
	d.finders = &line{what: "searches of one message", running: map[*turn]bool{}}
	d.jobs = &jobs{stopping: d.stopping, all: map[string]*job{}, audit: cfg.Access.Audit, log: cfg.Logger,
		changed:   func(j *job) { d.hub.wake(jobTopic(j)) },
		hasChange: d.hub.changed,
	}
	d.payloads = &line{what: "requests for payloads", running: map[*turn]bool{}}
	d.book = newLetterBook(op.DeadLetters())
	d.handler = http.NewCrossOriginProtection().Handler(d.newRouter())
	return d, nil
}

// Close ends all streams of updates, stops the jobs, refuses further changes, and waits for the changes in flight. A
// change takes at most Config.Timeout; growing or deleting a queue takes up to a minute. Call Close before
// http.Server.Shutdown, because Shutdown waits for the streams.
func (d *Dashboard) Close() error {
	d.stop()
	d.jobs.close()
	d.changes.Lock()
	d.closed = true
	d.changes.Unlock()
	d.inProgress.Wait()
	d.hub.wait()
	d.examiner.work.Wait()
	return d.clients.Close()
}

// Shutdown is Close, but ends the changes in flight when ctx ends. The error is then that of ctx.
func (d *Dashboard) Shutdown(ctx context.Context) error {
	defer context.AfterFunc(ctx, d.cut)()
	err := d.Close()
	if d.cutting.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return err
}

// shared returns a handle for what several viewers share. Its errors suggest no queue, because some of them may not
// know it.
func (d *Dashboard) shared() *admin.Admin {
	return d.op.Suggesting(func(string) bool { return false })
}

// beginChange adds a change in flight, and reports whether there may be one. The caller calls d.inProgress.Done.
func (d *Dashboard) beginChange() bool {
	d.changes.Lock()
	defer d.changes.Unlock()
	if !d.closed {
		d.inProgress.Add(1)
	}
	return !d.closed
}

// defect is a panic.
type defect struct {
	value any
	stack string
}

func (d *defect) Error() string { return fmt.Sprintf("a defect of this program: %v", d.value) }

// guarded calls work that serves several viewers, and returns a panic as a defect. Without it, a fault of one view
// would end the process and all its other work.
func guarded(work func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &defect{value, string(debug.Stack())}
		}
	}()
	return work()
}

// logPanic logs a panic of a request. The connection is cut, because the answer may have begun.
func (d *Dashboard) logPanic(r *http.Request) {
	value := recover()
	switch {
	case value == nil:
		return
	case value != http.ErrAbortHandler:
		d.log.Error("a request of the dashboard panicked", slog.String("path", r.URL.Path), slog.Any("error", value),
			slog.String("stack", string(debug.Stack())))
	}
	panic(http.ErrAbortHandler)
}

// contentPolicy forbids everything but the dashboard's own files.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// ServeHTTP answers a request. The path must begin behind the path of the dashboard: see the example of the package.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.URL.Path == "" { // the path lacks its slash at the end, so relative links would lead to its parent
		requested, _, _ := strings.Cut(r.RequestURI, "?")
		h.Set("Location", "./"+path.Base(requested)+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	defer d.requests.Add(-1)
	if d.requests.Add(1) > int64(d.cfg.MaxViewers+spareRequests) {
		h.Set("Retry-After", "1")
		http.Error(w, "this dashboard answers too many requests at the same time: try again", http.StatusServiceUnavailable)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	defer context.AfterFunc(d.cutting, end)()
	defer d.logPanic(r)
	d.handler.ServeHTTP(w, r.WithContext(ctx))
}
