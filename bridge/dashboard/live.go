package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
)

// Intervals of looks at Redis. A look begins this long after the answer of the one before it.
const (
	busyInterval  = 2 * time.Second        // after a look that showed a change
	idleInterval  = 10 * time.Second       // after several looks without a change; each one lengthens the interval
	freshFor      = time.Second            // a new page shows a sample whose look began at most this long ago
	keepLoopFor   = 15 * time.Second       // a loop without viewers ends after this time
	beat          = 15 * time.Second       // a stream without an update writes this often, so that proxies keep it open
	streamTimeout = 10 * time.Second       // of a write to a viewer
	leastInterval = 200 * time.Millisecond // between the beginnings of two looks, however much viewers change
)

// maxCachedParts limits the rendered parts of a topic that its viewers share. Viewers with further tokens and addresses
// each render their own.
const maxCachedParts = 64

// seenParameter is the parameter of a stream that holds the mark of the result that the page shows.
const seenParameter = "seen"

// noChange is a comment in a stream, which browsers ignore.
const noChange = ": no change\n\n"

// live is the part of a page that is kept up to date.
type live struct {
	// topic names the sample. All viewers of a topic share one loop of looks at Redis, so look must not depend on the
	// viewer.
	topic string
	look  func(context.Context) (sample, error)

	part string                                 // name of the template, which defines an element with this ID
	data func(sample any) (view any, err error) // for this viewer

	// pieces returns the elements inside the part that change. If all elements are the same as in the last update, and
	// only some look different, the update holds only those. nil = each update holds the whole part.
	pieces func(view any) []piece
}

// piece is an element of a page.
type piece struct {
	id       string // of the element
	template string
	data     any // of the frame of the template
}

// sample is the result of a look.
type sample struct {
	value any
	mark  string // two samples with the same mark look the same; "" = unlike any other
}

// hub runs the loops of all topics.
type hub struct {
	stopping   context.Context
	timeout    time.Duration
	maxViewers int

	mu        sync.Mutex
	topics    map[string]*topic
	viewers   int
	changedAt time.Time            // when a viewer of this process last changed something
	changes   map[string]time.Time // by queue, the last change; "" = a change of several queues
	loops     sync.WaitGroup
}

func newHub(stopping context.Context, maxViewers int, timeout time.Duration) *hub {
	return &hub{stopping: stopping, maxViewers: maxViewers, timeout: timeout, topics: map[string]*topic{},
		changes: map[string]time.Time{}}
}

// wait waits for the loops, after stopping was cancelled.
func (h *hub) wait() { h.loops.Wait() }

// topic is a loop of looks, and its last result.
type topic struct {
	look func(context.Context) (sample, error)
	name string        // unlike that of any other topic of any process
	wake chan struct{} // has one element when a viewer came

	mu      sync.Mutex
	version int // of the last result; 0 = no look has ended
	last    sample
	err     error         // of the last look
	begun   time.Time     // beginning of the last look
	looked  chan struct{} // closed at the end of the next look
	changed chan struct{} // closed when there is another result
	used    time.Time     // when a viewer last asked
	viewers int
	parts   map[partKey]*cachedPart // parts of this version
}

// topicOf returns the topic of a name, and starts its loop if there is none.
func (h *hub) topicOf(l *live) *topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.find(l)
}

// find returns the topic of a name, and starts its loop if there is none. The caller holds mu.
func (h *hub) find(l *live) *topic {
	t := h.topics[l.topic]
	if t == nil {
		t = &topic{name: rand.Text(), look: l.look, wake: make(chan struct{}, 1), looked: make(chan struct{}),
			changed: make(chan struct{}), used: time.Now()}
		h.topics[l.topic] = t
		h.loops.Go(func() { h.run(l.topic, t) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = time.Now() // so that the loop does not forget the topic before the caller uses it
	return t
}

// run looks until nobody watches the topic any more, or the hub stops.
func (h *hub) run(name string, t *topic) {
	interval := busyInterval
	for h.stopping.Err() == nil {
		began := time.Now()
		if t.update(h.stopping, h.timeout) {
			interval = busyInterval
		} else {
			interval = min(interval*3/2, idleInterval)
		}
		if !h.awaitLook(name, t, interval) {
			return
		}
		select {
		case <-time.After(leastInterval - time.Since(began)):
		case <-h.stopping.Done():
		}
		select {
		case <-t.wake: // somebody wanted the look that begins now
		default:
		}
	}
}

// awaitLook waits for the time of the next look: after the interval if somebody watches the topic, or when somebody
// wants a look now. It returns false if it has forgotten the topic.
func (h *hub) awaitLook(name string, t *topic, interval time.Duration) bool {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		wanted := false
		select {
		case <-h.stopping.Done():
			wanted = true
		case <-ticker.C:
		case <-t.wake:
			wanted = true
		}
		if h.forget(name, t) {
			return false
		}
		if wanted || t.isWatched() {
			return true
		}
	}
}

// isWatched reports whether a viewer follows the topic. A page that was only loaded does not.
func (t *topic) isWatched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewers > 0
}

// keepChange is how long the hub knows the time of a change of a queue. Topics look within seconds after a change.
const keepChange = time.Minute

// changed makes all samples stale, because a viewer changed something in a queue; "" = in several queues.
func (h *hub) changed(queue string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changedAt = time.Now()
	if len(h.changes) > 100 {
		maps.DeleteFunc(h.changes, func(_ string, at time.Time) bool { return time.Since(at) > keepChange })
	}
	h.changes[queue] = h.changedAt
	for _, t := range h.topics {
		if t.isWatched() { // a page that is loaded later asks for a look itself
			t.wakeUp()
		}
	}
}

// lastChange returns when a viewer of this process last changed something in a queue; "" = in any.
func (h *hub) lastChange(queue string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if queue == "" {
		return h.changedAt
	}
	one, several := h.changes[queue], h.changes[""]
	if one.After(several) {
		return one
	}
	return several
}

// wake makes a topic look now, if somebody watches it.
func (h *hub) wake(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[name]; t != nil && t.isWatched() {
		t.wakeUp()
	}
}

// staleBefore returns the earliest beginning of a look whose sample a new page may show.
func (h *hub) staleBefore() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	earliest := time.Now().Add(-freshFor)
	if h.changedAt.After(earliest) {
		return h.changedAt
	}
	return earliest
}

// wakeUp makes the loop look now, or at once after the present look.
func (t *topic) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// forget removes a topic that nobody watches, and reports whether it did.
func (h *hub) forget(name string, t *topic) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.viewers > 0 || time.Since(t.used) < keepLoopFor {
		return false
	}
	delete(h.topics, name)
	return true
}

// update looks once, and reports whether the result differs from the last one.
func (t *topic) update(stopping context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(stopping, timeout)
	defer cancel()
	begun := time.Now()
	s, err := t.look(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if stopping.Err() != nil { // viewers must not read that Redis does not answer
		return false
	}
	same := t.version > 0 && t.isLike(s, err)
	t.begun, t.err = begun, err
	close(t.looked)
	t.looked = make(chan struct{})
	if err == nil {
		t.last = s
	}
	if same {
		return false
	}
	t.version++
	t.parts = map[partKey]*cachedPart{}
	close(t.changed)
	t.changed = make(chan struct{})
	return true
}

// isLike reports whether a result looks like the last one. The caller holds mu.
func (t *topic) isLike(s sample, err error) bool {
	if err != nil || t.err != nil {
		return err != nil && t.err != nil && err.Error() == t.err.Error()
	}
	return s.mark != "" && s.mark == t.last.mark
}

// result is the result of a look.
type result struct {
	begun   time.Time // beginning of the look
	version int
	mark    string
	sample  sample
	err     error           // of the look; then sample is that of an earlier look
	changed <-chan struct{} // closed when there is another result
	looked  <-chan struct{} // closed at the end of the next look
}

// result returns the last result.
func (t *topic) result() result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = time.Now()
	return result{begun: t.begun, version: t.version, mark: t.mark(), sample: t.last, err: t.err, changed: t.changed,
		looked: t.looked}
}

// sample returns a sample of the page's topic. If the last one is too old, it waits for the next look. The error is
// that of the look.
func (q *request) sample(l *live) (any, error) {
	t := q.hub.topicOf(l)
	earliest := q.hub.staleBefore()
	for {
		t.mu.Lock()
		begun, value, err, looked, seen := t.begun, t.last.value, t.err, t.looked, t.mark()
		t.used = time.Now()
		t.mu.Unlock()
		if !begun.Before(earliest) {
			q.seen = seen
			return value, err
		}
		if !begun.IsZero() { // the first look is running
			t.wakeUp()
		}
		select {
		case <-looked:
		case <-q.ctx.Done():
			return nil, q.ctx.Err()
		case <-q.stopping.Done():
			return nil, errStops
		}
	}
}

// mark returns a text that stands for the last result. The caller holds mu.
func (t *topic) mark() string { return fmt.Sprintf("%s-%d", t.name, t.version) }

// watch adds a viewer to the topic of a name, and starts its loop if there is none. It reports whether there was room.
// A topic stays for a while after its last viewer has left, so there may be more topics than viewers.
func (h *hub) watch(l *live) (*topic, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers >= h.maxViewers || h.topics[l.topic] == nil && len(h.topics) >= 2*h.maxViewers {
		return nil, false
	}
	t := h.find(l)
	h.viewers++
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers++
	return t, true
}

// leave removes a viewer.
func (h *hub) leave(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers--
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers--
	t.used = time.Now()
}

// answerLive sends the updates of a page as Server-Sent Events until the viewer leaves: "update" with HTML, "away" with
// an error text while Redis does not answer, "gone" when the token no longer allows the page, and "full" when there are
// too many viewers.
func (d *Dashboard) answerLive(w http.ResponseWriter, r *http.Request, p page) {
	q := d.begin(w, r)
	if q == nil {
		return
	}
	seen := q.query.Get(seenParameter)
	q.query.Del(seenParameter)
	q.r.URL.RawQuery = q.query.Encode() // viewers of the same page share the rendered parts
	err := q.checkQueue()
	var l *live
	if err == nil {
		l, err = p.live(q)
	}
	if err != nil {
		http.Error(w, err.Error(), newFailure(err).Status)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must pass each update on at once
	t, ok := d.hub.watch(l)
	if !ok { // a browser shows no text of a stream that is refused, and asks for it again
		q.sender()(event("full", ""))
		return
	}
	defer d.hub.leave(t)
	q.stream(p, l, t, seen)
}

// sender returns a function that writes to a stream of events, and reports whether the viewer still reads.
func (q *request) sender() func(text string) bool {
	rc := http.NewResponseController(q.w)
	_ = rc.SetReadDeadline(time.Time{})
	return func(text string) bool {
		return writeInTime(rc, func() error {
			_, err := q.w.Write([]byte(text))
			return errors.Join(err, rc.Flush())
		}) == nil
	}
}

// writeInTime writes to a viewer, for at most streamTimeout. Between two writes the connection has no deadline: with
// HTTP/2, a deadline that passes then ends the stream.
func writeInTime(rc *http.ResponseController, write func() error) error {
	_ = rc.SetWriteDeadline(time.Now().Add(streamTimeout))
	err := write()
	_ = rc.SetWriteDeadline(time.Time{})
	return err
}

// stream writes the updates to the viewer, whose page shows the result with the mark seen.
func (q *request) stream(p page, l *live, t *topic, seen string) {
	send := q.sender()
	beats := time.NewTicker(beat)
	defer beats.Stop()
	if !send(": the stream of updates begins\n\n") {
		return
	}
	sentVersion, sentPart := 0, (*rendered)(nil)
	if last := t.result(); seen == last.mark && last.err == nil { // the page shows this result already
		if part, err := q.cachedPart(p, l, t, last); err == nil {
			sentVersion, sentPart = last.version, part
		}
	}
	shownAfter := q.hub.lastChange(q.queue()) // the page shows the state after this change, and maybe by a look of its own
	for {
		last := t.result()
		var looked <-chan struct{}
		switch {
		case last.version == sentVersion:
		case last.version > 0 && last.err == nil && last.begun.Before(shownAfter):
			looked = last.looked
			t.wakeUp()
		default:
			text, part, ended := q.event(p, l, t, last, sentPart)
			if !send(text) || ended {
				return
			}
			if part != nil || last.err != nil {
				sentVersion, sentPart = last.version, part
			}
		}
		select {
		case <-last.changed:
		case <-looked:
		case <-beats.C:
			text, gone := noChange, q.expired()
			if gone {
				text = event("gone", "")
			}
			if !send(text) || gone {
				return
			}
		case <-q.ctx.Done():
			return
		case <-q.stopping.Done():
			return
		}
	}
}

// expired reports whether the viewer's token is not valid any more. While Redis does not answer, a token that was valid
// stays valid for access.Grace.
func (q *request) expired() bool {
	g, err := q.Dashboard.grant(q.r)
	if err == nil {
		q.grant, q.known = g, time.Now()
	}
	return errors.Is(err, errLogin)
}

// event returns the event for a result, and the part that the viewer sees then: nil if the look failed, or if
// it is not known whether the token is still valid. If ended is true, the stream ends with the event.
func (q *request) event(p page, l *live, t *topic, last result, seen *rendered) (text string, _ *rendered, ended bool) {
	if q.expired() || q.checkQueue() != nil {
		return event("gone", ""), nil, true
	}
	if last.err != nil {
		return event("away", last.err.Error()), nil, false
	}
	if err := q.checkGrace(); err != nil {
		return event("away", "your token cannot be checked"), nil, false
	}
	part, err := q.cachedPart(p, l, t, last)
	if err != nil {
		q.log.Error("an update of the dashboard cannot be rendered", slog.String("page", p.template),
			slog.Any("error", err))
		return noChange, nil, true // the browser waits before it comes back; a page that loads itself again would not
	}
	changes := part.since(seen)
	if changes == "" {
		return noChange, part, false
	}
	return event("update", changes), part, false
}

// cachedPart returns the part of a page for a result. Viewers with the same token and address share it: the first one
// renders it, and the others wait.
func (q *request) cachedPart(p page, l *live, t *topic, last result) (*rendered, error) {
	key := partKey{q.grant, q.r.URL.RawQuery}
	t.mu.Lock()
	cached := t.parts[key]
	if cached == nil || t.version != last.version {
		cached = &cachedPart{}
		if t.version == last.version && len(t.parts) < maxCachedParts {
			t.parts[key] = cached
		}
	}
	t.mu.Unlock()
	cached.once.Do(func() { cached.part, cached.err = q.part(p, l, last.sample.value) })
	return cached.part, cached.err
}

// partKey identifies the viewers who see the same part. The grant is not known by its name: a token that was removed
// and added again has the name, and may have other rights.
type partKey struct {
	grant   *access.Grant
	address string
}

// cachedPart is a part that is rendered once.
type cachedPart struct {
	once sync.Once
	part *rendered
	err  error
}

// rendered is a part of a page as HTML.
type rendered struct {
	whole  string
	ids    []string // of the pieces
	pieces []string
}

// part renders the part of a page for a sample.
func (q *request) part(p page, l *live, value any) (*rendered, error) {
	view, err := l.data(value)
	if err != nil {
		return nil, err
	}
	f := q.frame(p, view)
	part := &rendered{}
	if part.whole, err = element(p.template, l.part, l.part, f); err != nil {
		return nil, err
	}
	if l.pieces == nil {
		return part, nil
	}
	for _, one := range l.pieces(view) {
		text, err := element(p.template, one.template, one.id, f.With(one.data))
		if err != nil {
			return nil, err
		}
		part.ids, part.pieces = append(part.ids, one.id), append(part.pieces, text)
	}
	return part, nil
}

// element renders a template as an update of the element with an ID.
func element(page, name, id string, f frame) (string, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<hx-partial hx-target="[id='%s']" hx-swap="outerMorph">`, id)
	if err := templates[page].ExecuteTemplate(&out, name, f); err != nil {
		return "", err
	}
	out.WriteString("</hx-partial>")
	return out.String(), nil
}

// since returns the HTML that changes a page that shows the part seen into this one. seen may be nil.
func (r *rendered) since(seen *rendered) string {
	if seen == nil || len(r.ids) == 0 || !slices.Equal(r.ids, seen.ids) {
		return r.whole
	}
	var changed strings.Builder
	for i, text := range r.pieces {
		if text != seen.pieces[i] {
			changed.WriteString(text)
		}
	}
	return changed.String()
}

// event returns a Server-Sent Event.
func event(name, data string) string {
	var text strings.Builder
	text.WriteString("event: " + name + "\n")
	for line := range strings.SplitSeq(strings.ReplaceAll(data, "\r", "\n"), "\n") {
		text.WriteString("data: " + line + "\n")
	}
	text.WriteString("\n")
	return text.String()
}
