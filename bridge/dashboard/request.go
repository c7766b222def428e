package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/lua"
)

// request is a request of a viewer with a valid token.
type request struct {
	*Dashboard
	op    *admin.Admin // its errors suggest only queues that the viewer may inspect
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context // ends after Config.Timeout, unless the request is for a stream
	grant *access.Grant
	known time.Time  // when the token was last known to be valid
	query url.Values // of the address; of an action, also its form

	seen    string // mark of the result that the page shows: see topic.mark; "" = the page shows none
	problem error  // of the address, or of the action whose form the page shows again; nil = none
	preview any    // of the action whose form the page shows again: see done

	subjects []slog.Attr // of the audit line, besides those that the form names: see about

	showsOnce bool // the page shows something that nobody can read again, so it is never refused
	inLine    bool // the form has a turn in the line of large forms until the answer is written
}

// errForbidden: the token does not allow the request.
var errForbidden = errors.New("your token does not allow this")

// errConflict: the state of a queue or message does not allow the change.
var errConflict = errors.New("nothing was changed")

// elsewhere is the error of a page that another page shows better. The browser is sent there.
type elsewhere struct{ page string }

func (e elsewhere) Error() string { return "see " + e.page }

// errNoPage: the dashboard has no such page.
var errNoPage = errors.New("this dashboard has no such page")

// errMethod: the page exists, but not for the method of the request.
var errMethod = errors.New("this address is not a page that can be opened")

// errReadOnly: the dashboard changes nothing.
var errReadOnly = errors.New("this dashboard is read-only")

// errUnread: the form of a request is too large, or no form.
var errUnread = errors.New("the form was not read")

// errUnseen: the change was made, and its page cannot be shown.
var errUnseen = errors.New("the change was made, but its result cannot be shown")

// errStops: the dashboard has been closed.
var errStops = errors.New("this process stops, and changed nothing: try again")

// tooFast: the rate of the token does not allow another change now.
type tooFast struct{ wait time.Duration }

func (e tooFast) Error() string {
	return fmt.Sprintf("your token has used up its rate: try again in %s", e.wait.Round(time.Millisecond))
}

// may reports whether the viewer's token allows a verb on a queue; "" stands for all queues. In read-only mode it
// allows nothing but inspect.
func (q *request) may(verb access.Verb, queue string) bool {
	if q.cfg.ReadOnly && verb != access.Inspect {
		return false
	}
	return q.grant.May(verb, queue)
}

// mayPublish reports whether the viewer may create, cancel and move messages of a queue.
func (q *request) mayPublish(queue string) bool {
	return q.may(access.Publish, queue) || q.may(access.Operate, queue)
}

// queue returns the queue that the query or the form names. pages and actions may trust that it is valid and that the
// token allows it.
func (q *request) queue() string { return q.query.Get("queue") }

// nothingMoves rewrites the finding that no bridge is alive for viewers who may not know of bridges. The finding tells
// them why their messages wait.
func nothingMoves(f doctor.Finding) doctor.Finding {
	return doctor.Finding{Code: f.Code, Name: f.Name, Severity: f.Severity, Count: f.Count,
		Found: "messages do not become ready",
		Why:   "the processes that move due messages do not run",
		Do:    "tell an operator who may see all queues"}
}

// findings returns the findings that the viewer may see. Findings about all queues are for viewers of all queues;
// others see nothingMoves.
func (q *request) findings(all []doctor.Finding) (seen []doctor.Finding) {
	for _, f := range all {
		switch {
		case q.may(access.Inspect, f.Queue):
			seen = append(seen, f)
		case f.Name == noBridge:
			seen = append(seen, nothingMoves(f))
		}
	}
	return seen
}

// noBridge is the name of the doctor's finding that no bridge is alive.
const noBridge = "no-bridge"

// queues returns the registered queues that the viewer may inspect.
func (q *request) queues() ([]string, error) {
	all, err := q.op.Queues(q.ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool { return !q.may(access.Inspect, name) }), nil
}

// begin authenticates the viewer and returns the request, or answers it and returns nil.
func (d *Dashboard) begin(w http.ResponseWriter, r *http.Request) *request {
	g, err := d.grant(r)
	switch {
	case errors.Is(err, errLogin):
		if hasLogin(r) {
			d.logRefusal(r)
		}
		if r.Header.Get("Hx-Request") != "" || r.Header.Get("Accept") == "text/event-stream" {
			w.Header().Set("Hx-Redirect", "login")
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}
		next := r.URL.Path[1:]
		if r.URL.RawQuery != "" {
			next += "?" + r.URL.RawQuery
		}
		redirect(w, "login?next="+url.QueryEscape(next))
		return nil
	case err != nil:
		d.fail(w, r, nil, err)
		return nil
	}
	op := d.op.As(actorOf(g.Name())).Suggesting(func(queue string) bool { return g.May(access.Inspect, queue) })
	return &request{Dashboard: d, op: op, w: w, r: r, ctx: r.Context(), grant: g, known: time.Now(),
		query: r.URL.Query()}
}

// limit ends the request's context after Config.Timeout. The caller defers the returned function.
func (q *request) limit() (end context.CancelFunc) {
	q.ctx, end = context.WithTimeout(q.ctx, q.cfg.Timeout)
	return end
}

// checkQueue returns an error if the request names a queue that is not valid, or that the token may not inspect.
func (q *request) checkQueue() error {
	if !q.query.Has("queue") || q.queue() == "" {
		return nil
	}
	if err := lua.CheckQueue(q.queue()); err != nil {
		return err
	}
	if !q.may(access.Inspect, q.queue()) {
		return errForbidden
	}
	return nil
}

// answerPage answers the request for a page.
func (d *Dashboard) answerPage(w http.ResponseWriter, r *http.Request, p page) {
	q := d.begin(w, r)
	if q == nil {
		return
	}
	defer q.limit()()
	err := q.checkQueue()
	var data any
	if err == nil {
		data, err = p.show(q)
	}
	var to elsewhere
	switch {
	case errors.As(err, &to):
		redirect(w, to.page)
	case err != nil:
		d.fail(w, r, q, err)
	case q.problem != nil: // with the address
		q.render(newFailure(q.problem).Status, p, data)
	default:
		q.render(http.StatusOK, p, data)
	}
}

// answerRoute answers a request that writes its own answer. Its context has no deadline.
func (d *Dashboard) answerRoute(w http.ResponseWriter, r *http.Request, s route) {
	q := d.begin(w, r)
	if q == nil {
		return
	}
	err := q.checkQueue()
	if err == nil {
		err = s.serve(q)
	}
	if err != nil {
		d.fail(w, r, q, err)
	}
}

// answerAction makes a change, and sends the viewer back to a page, which shows the notice.
func (d *Dashboard) answerAction(w http.ResponseWriter, r *http.Request, a action) {
	q := d.begin(w, r)
	if q == nil {
		return
	}
	leave, err := q.takeForm(a)
	if err != nil {
		d.fail(w, r, q, err)
		return
	}
	defer leave()
	if err := q.readFormOf(a); err != nil {
		d.fail(w, r, q, err)
		return
	}
	defer q.limit()() // starts here, so that a slow upload does not use it up
	result, err := q.act(a)
	if err != nil {
		result = done{} // a change that failed has nothing to show
	}
	if result.shown != nil {
		q.query = url.Values{} // the typed values were used
		q.showsOnce = true
	}
	if preview := cmp.Or(result.preview, result.shown); err != nil || preview != nil {
		answered, failed := q.showForm(a, preview, err)
		switch {
		case answered:
			return
		case err == nil && result.shown != nil:
			err = fmt.Errorf("%w: %w", errUnseen, failed)
		case err == nil:
			err = failed
		}
	}
	if err != nil {
		d.fail(w, r, q, err)
		return
	}
	q.notify(result.notice)
	if result.page == "" {
		result.page = safeNext(q.query.Get("back"))
	}
	redirect(w, result.page)
}

const (
	maxActionBytes = 4 << 20     // of a form without a payload
	formTimeout    = time.Minute // of sending a form: it uses memory, and may have a turn in the line of large forms

	smallForm = 16 << 10 // bytes; such a form uses little memory, and must be sent in less time
	formBytes = 64 << 20 // that all larger forms use at the same time, besides those in the line of large forms
)

// errManyForms: the forms that are being read use all memory that the token may have for them.
var errManyForms = errors.New("too many large forms are being sent at the same time: try again in a minute")

// formTime returns the time in which a form must be sent.
func formTime(size int64) time.Duration {
	if size < 0 { // not known
		return formTimeout
	}
	return min(formTimeout, readTime(size))
}

// readForm reads the form of a request, of at most some bytes, into q.query.
func (q *request) readForm(most int64) error {
	within := formTime(q.r.ContentLength)
	if err := parseForm(q.w, q.r, most, within); err != nil {
		return fmt.Errorf("%w: %w", errUnread,
			lua.Invalid("form", "", "must be a form of at most %d bytes, sent within %s", most, within))
	}
	q.query = q.r.Form
	if most <= maxActionBytes {
		q.query = detached(q.query)
		q.r.Form, q.r.PostForm = q.query, nil
	}
	return nil
}

// detached returns copies of the values of a form. The values that net/http returns are parts of the whole body, so a
// job that keeps one of them would keep all of it.
func detached(form url.Values) url.Values {
	own := make(url.Values, len(form))
	for name, values := range form {
		for _, value := range values {
			own[strings.Clone(name)] = append(own[name], strings.Clone(value))
		}
	}
	return own
}

// parseForm reads the form of a request, of at most some bytes, within a time. It reads a body that is no form, too.
// After an error the deadline stays: net/http reads the rest of the body before it answers, and would wait for ever for
// a client that sends nothing more.
func parseForm(w http.ResponseWriter, r *http.Request, most int64, within time.Duration) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(within))
	r.Body = http.MaxBytesReader(w, r.Body, most)
	err := r.ParseForm()
	if _, unread := io.Copy(io.Discard, r.Body); unread != nil {
		return errors.Join(err, unread)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return err
}

// readFormOf reads the form of an action. A viewer who may never do it sends none.
func (q *request) readFormOf(a action) error {
	if !q.mayEver(a) {
		return errForbidden
	}
	most := int64(maxActionBytes)
	if a.payload {
		most = 2 * lua.MaxPayloadBytes
	}
	return q.readForm(most)
}

// mayEver reports whether the viewer's token allows an action on some queue.
func (q *request) mayEver(a action) bool { return slices.ContainsFunc(a.verbs, q.grant.MayAnywhere) }

// takeForm takes the memory for the form of an action. For a very large form it waits until the memory may be used. The
// caller calls the function that it returns.
func (q *request) takeForm(a action) (leave func(), err error) {
	size := q.r.ContentLength
	switch {
	case !q.mayEver(a): // the form is not read
		return func() {}, nil
	case a.payload && (size < 0 || size > maxActionBytes):
		q.inLine = true
		return q.takeTurn(q.forms)
	}
	return q.takeFormBytes()
}

// takeFormBytes takes the memory for a form of at most maxActionBytes. The caller calls the function that it returns.
func (q *request) takeFormBytes() (leave func(), err error) {
	size := int(min(q.r.ContentLength, maxActionBytes))
	if size < 0 {
		size = maxActionBytes
	}
	if size <= smallForm {
		return func() {}, nil
	}
	token := q.grant.Name()
	if !q.formMemory.take(token, size) {
		return nil, errManyForms
	}
	return func() { q.formMemory.giveBack(token, size) }, nil
}

// takeTurn waits for a turn in a line, for at most Config.Timeout. The caller calls the function that it returns.
func (q *request) takeTurn(l *line) (leave func(), err error) {
	t, err := l.join(q.token())
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithTimeout(q.ctx, q.cfg.Timeout)
	defer end()
	before := 0
	if err := l.wait(ctx, t, func(n int) { before = n }); err != nil {
		l.leave(t)
		return nil, tooMany{l.what, before + 1}
	}
	return func() { l.leave(t) }, nil
}

// act checks the form of an action, and makes the change.
func (q *request) act(a action) (done, error) {
	if q.cfg.ReadOnly && !slices.Contains(a.verbs, access.Inspect) {
		return done{}, errReadOnly
	}
	queue := q.queue()
	if !a.allQueues && !a.manyQueues {
		if err := lua.CheckQueue(queue); err != nil {
			return done{}, err
		}
	}
	verb, ok := q.allowed(a, queue)
	if !ok {
		return done{}, errForbidden
	}
	wait, err := q.cfg.Access.Take(q.ctx, q.grant, verb, 1)
	switch {
	case err != nil: // the request's context has ended
		return done{}, err
	case wait > 0:
		return done{}, tooFast{wait}
	}
	if !q.beginChange() {
		return done{}, errStops
	}
	defer q.inProgress.Done()
	if a.allQueues || a.manyQueues {
		queue = "" // a field of that name has not been checked
	}
	var result done
	err = errPanicked // unless do returns
	defer func() { q.changed(a, queue, result, err) }()
	result, err = a.do(q)
	return result, err
}

// errPanicked: a change panicked, and may have changed something.
var errPanicked = errors.New("the change panicked")

// changed writes the audit line of a change, and makes the samples of its queue stale. Watched pages look again at
// once, unless the error means that nothing was changed.
func (q *request) changed(a action, queue string, result done, err error) {
	if err == nil && result.preview != nil {
		return
	}
	isChanged := err == nil || newFailure(err).Status >= http.StatusInternalServerError
	q.hub.outdate(queue, isChanged)
	if q.w != nil {
		http.SetCookie(q.w, newCookie(q.r, changedCookie, "1", changedFor))
	}
	q.cfg.Access.Audit(q.grant, "dashboard."+a.path, queue, q.subject(slog.Bool("done", err == nil))...)
}

// maxSubject is how many bytes of a field the audit log keeps: a form may name 500 dead letters.
const maxSubject = 16 << 10

// subjectFields are the fields of forms that name the subject of a change, with their attributes in the audit log.
// There, "token" is the viewer's own token.
var subjectFields = []struct {
	field string
	attr  func(value string) slog.Attr
}{
	{"id", func(value string) slog.Attr { return slog.String("id", value) }},
	{"group", func(value string) slog.Attr { return slog.String("group", value) }},
	{"letter", func(value string) slog.Attr { return slog.String("letter", value) }},
	{"name", func(value string) slog.Attr { return slog.String("name", value) }},
	{"token", func(value string) slog.Attr { return slog.String("token_name", value) }},
	{"job", func(value string) slog.Attr { return slog.String("job", value) }},
}

// about adds to the subject of the audit line. It is for a subject that the form does not name.
func (q *request) about(attrs ...slog.Attr) { q.subjects = append(q.subjects, attrs...) }

// subject adds the subject of a change to the attributes of its audit line.
func (q *request) subject(attrs ...slog.Attr) []slog.Attr {
	attrs = append(attrs, q.subjects...)
	for _, one := range subjectFields {
		value := strings.Join(q.query[one.field], " ")
		if strings.Contains(value, access.SecretPrefix) { // typed or filled into the wrong field
			value = "(a secret)"
		}
		attr := one.attr(cut(value, maxSubject))
		isKnown := slices.ContainsFunc(q.subjects, func(a slog.Attr) bool { return a.Key == attr.Key })
		if value != "" && !isKnown {
			attrs = append(attrs, attr)
		}
	}
	if u, err := url.Parse(q.query.Get("url")); err == nil && u.Host != "" { // the rest of a URL may be secret
		attrs = append(attrs, slog.String("target_host", cut(u.Host, 500)))
	}
	return attrs
}

// allowed returns the first verb of an action that the token allows. Of an action with many queues, it returns the
// first verb, whose rate is charged.
func (q *request) allowed(a action, queue string) (access.Verb, bool) {
	if a.manyQueues {
		ok := !slices.ContainsFunc(q.query["queue"], func(queue string) bool { return !q.mayOneOf(a.verbs, queue) })
		return a.verbs[0], ok
	}
	if a.allQueues {
		queue = ""
	}
	for _, verb := range a.verbs {
		if q.may(verb, queue) {
			return verb, true
		}
	}
	return "", false
}

// mayOneOf reports whether the viewer's token allows one of the verbs on a queue.
func (q *request) mayOneOf(verbs []access.Verb, queue string) bool {
	return slices.ContainsFunc(verbs, func(v access.Verb) bool { return q.may(v, queue) })
}

// failure is the data of the page that shows an error.
type failure struct {
	Status int
	Text   string
	Hint   string
	Away   bool   // Redis does not answer
	Retry  bool   // the page loads itself again
	Back   string // a page where to go on; "" = the overview

	cause error
}

// notFound are the errors about something that does not exist.
var notFound = []error{
	errNoPage, admin.ErrNotFound, admin.ErrNoQueue, admin.ErrNoGroup, bridge.ErrNoRecurrence, admin.ErrNoToken,
	admin.ErrNoTarget,
}

// conflicts are the errors about a state that does not allow the change, or that somebody else has changed.
var conflicts = []error{
	bridge.ErrDuplicate, bridge.ErrOldBridge, bridge.ErrChanged, admin.ErrNotEmpty, admin.ErrKeyed, admin.ErrShrink,
	admin.ErrOneKey, admin.ErrTokenExists, admin.ErrTargetChanged, admin.ErrPolicyChanged,
}

// newFailure returns the status and text for an error.
func newFailure(err error) failure {
	f := failure{Status: http.StatusInternalServerError, Text: errorText(err), cause: err, Hint: admin.Hint(err)}
	var late tooFast
	var moved changedMeanwhile
	var busy tooManyJobs
	var unknown jobElsewhere
	var full tooMany
	var crowded noRoom
	switch {
	case errors.Is(err, errUnseen): // the change must not be repeated
	case errors.Is(err, errMethod):
		f.Status = http.StatusMethodNotAllowed
	case errors.Is(err, errForbidden), errors.Is(err, errReadOnly):
		f.Status = http.StatusForbidden
	case errors.Is(err, errConflict), errors.Is(err, bridge.ErrNotScheduled), errors.Is(err, bridge.ErrOldBridge):
		f.Status = http.StatusConflict
	case errors.Is(err, errStops):
		f.Status = http.StatusServiceUnavailable
	case errors.As(err, &unknown):
		f.Status, f.Back = http.StatusNotFound, safeNext(unknown.back)
	case errors.As(err, &late), errors.As(err, &busy), errors.As(err, &full), errors.As(err, &crowded),
		errors.Is(err, errManyForms), errors.Is(err, errManyAnswers), errors.Is(err, errBusyToken):
		f.Status = http.StatusTooManyRequests
	case errors.Is(err, bridge.ErrInvalid):
		f.Status = http.StatusBadRequest
	case slices.ContainsFunc(notFound, func(one error) bool { return errors.Is(err, one) }):
		f.Status = http.StatusNotFound
	case errors.As(err, &moved), slices.ContainsFunc(conflicts, func(one error) bool { return errors.Is(err, one) }):
		f.Status = http.StatusConflict
	case lua.Temporary(err), errors.Is(err, context.DeadlineExceeded):
		f.Status, f.Away = http.StatusServiceUnavailable, true
	}
	return f
}

const failureTemplate = "failure" // of the page of an error

// fail answers a request with the page of an error. q is nil if the viewer is not known.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, q *request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil { // the viewer has left
		return
	}
	f := newFailure(err)
	f.Retry = f.Away && r.Method == http.MethodGet // to load the answer to a form again would repeat the change
	if f.Status == http.StatusInternalServerError {
		d.log.Error("a request of the dashboard failed", slog.String("path", r.URL.Path), slog.Any("error", err))
	}
	if q == nil {
		q = &request{Dashboard: d, w: w, r: r, ctx: r.Context(), query: r.URL.Query()}
		if g, err := d.grant(r); err == nil && (errors.Is(f.cause, errNoPage) || errors.Is(f.cause, errMethod)) {
			// the page has the navigation
			q.grant = g
		}
	}
	q.render(f.Status, page{path: failureTemplate, title: http.StatusText(f.Status), template: failureTemplate}, f)
}

// cut returns at most n bytes of a text, at a boundary of characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:n]), nil)) + "…"
}
