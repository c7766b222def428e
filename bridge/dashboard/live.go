package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
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
	leastOfAll    = time.Second            // the same, of a topic about several queues, which costs more
)

// looksOfToken limits the looks per second that one token causes at topics about one queue. The more topics a token
// has, the less often each is looked at.
const looksOfToken = 25

// maxCachedParts limits the rendered parts of a topic that its viewers share. Viewers with further tokens and addresses
// each render their own.
const maxCachedParts = 64

// maxCachedBytes limits the bytes of HTML of these parts. The first part is kept whatever its size.
const maxCachedBytes = 4 << 20

// maxRenders is the number of parts that are rendered at the same time. Each takes up to a megabyte of memory.
const maxRenders = 8

// maxWaitingPages is the number of pages of a token that may wait to be rendered. Each holds what it shows.
const maxWaitingPages = 10

// After a part was rendered for a token, the token's next rendering waits restOfPart times as long, at most mostRest.
// So all viewers of one token use about a quarter of a core, even if each watches another address. A page has a shorter
// rest, because somebody waits for it.
const (
	restOfPart = 3
	restOfPage = 1
	mostRest   = time.Second
)

// maxChanges is the number of queues whose last change the hub knows.
const maxChanges = 1000

// seenParameter is the parameter of a stream that holds the mark of the result that the page shows.
const seenParameter = "seen"

// noChange is a comment in a stream, which browsers ignore.
const noChange = ": no change\n\n"

// live is the part of a page that is kept up to date.
type live struct {
	// topic names the sample. All viewers of a topic share one loop of looks at Redis, so look must not depend on the
	// viewer.
	topic string
	queue string // that the topic is about; "" = several
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
	rests bool   // nothing has happened since the last look, although the mark may differ: the next look may come later
}

// hub runs the loops of all topics.
type hub struct {
	stopping   context.Context
	timeout    time.Duration
	maxViewers int
	maxTopics  int
	started    time.Time
	log        *slog.Logger
	renders    chan struct{} // has one element for each part or page that is being rendered
	partTime   shares        // of rendering parts
	pageTime   shares        // of rendering pages

	mu        sync.Mutex
	topics    map[string]*topic
	topicsOf  map[string]int // by the name of the token that started the loop
	viewers   int
	viewersOf map[string]int       // by the name of the token
	changedAt time.Time            // when a viewer of this process last changed something
	changes   map[string]time.Time // by queue, the last change; "" = a change of several queues
	loops     sync.WaitGroup
}

// leastTopics is the number of topics that a hub may have, however few viewers it may have.
const leastTopics = 16

func newHub(stopping context.Context, maxViewers int, timeout time.Duration) *hub {
	return &hub{stopping: stopping, maxViewers: maxViewers, maxTopics: max(leastTopics, maxViewers/2), timeout: timeout,
		started: time.Now(), log: slog.New(slog.DiscardHandler), renders: make(chan struct{}, maxRenders),
		topics: map[string]*topic{}, topicsOf: map[string]int{}, viewersOf: map[string]int{},
		changes: map[string]time.Time{}, pageTime: shares{mostWaiting: maxWaitingPages}}
}

// wait waits for the loops, after stopping was cancelled.
func (h *hub) wait() {
	h.mu.Lock()
	//lint:ignore SA2001 a request that holds the lock and saw the hub running starts its loop before wait goes on
	h.mu.Unlock()
	h.loops.Wait()
}

// nextBeat returns the time until the next beat. All streams beat together, so that one look at a token serves all
// viewers with this token.
func (h *hub) nextBeat() time.Duration { return beat - time.Since(h.started)%beat }

// noRoom: there are too many pages that are kept up to date, or too many different ones.
type noRoom struct {
	who  string // "your token" or "this dashboard"
	n    int
	what string // "page" or "different view"
}

func (e noRoom) Error() string {
	return fmt.Sprintf("%s keeps %s up to date, and has no place for another", e.who, plural(e.n, e.what, e.what+"s"))
}

// topic is a loop of looks, and its last result.
type topic struct {
	look  func(context.Context) (sample, error)
	name  string        // unique among the topics of all processes
	key   string        // in the hub
	queue string        // that the topic is about; "" = several
	owner string        // name of the token that started the loop
	wake  chan struct{} // has one element when somebody wants a look now

	mu      sync.Mutex
	version int // of the last result; 0 = no look has ended
	last    sample
	err     error         // of the last look
	begun   time.Time     // beginning of the last look
	looked  chan struct{} // closed at the end of the next look
	changed chan struct{} // closed when there is another result
	used    time.Time     // when a viewer last asked
	holders int           // requests that use the topic: pages that wait for a look, and viewers
	viewers int
	parts   map[partKey]*cachedPart // parts of this version

	partBytes int // approximate bytes of HTML of parts
}

// hold returns the topic of a name, and starts its loop if there is none. The loop goes on until the caller calls
// release. Errors: noRoom, errStops.
func (h *hub) hold(l *live, token string) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.find(l, token)
}

// find is hold for a caller that holds mu.
func (h *hub) find(l *live, token string) (*topic, error) {
	t := h.topics[l.topic]
	if t == nil {
		if h.stopping.Err() != nil {
			return nil, errStops
		}
		if err := h.makeRoom(token); err != nil {
			return nil, err
		}
		t = &topic{name: rand.Text(), key: l.topic, queue: l.queue, owner: token, look: l.look,
			wake: make(chan struct{}, 1), looked: make(chan struct{}), changed: make(chan struct{})}
		h.topics[l.topic] = t
		h.topicsOf[token]++
		h.loops.Go(func() { h.run(t) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holders++
	t.used = time.Now()
	return t, nil
}

// release is called once after hold.
func (h *hub) release(t *topic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holders--
	t.used = time.Now()
}

// makeRoom makes room for another topic of a token. If there are too many topics, it removes one that no request uses:
// one of the same token, or of any token if this token has no topic. It returns noRoom if it finds none. The caller
// holds mu.
func (h *hub) makeRoom(token string) error {
	own := h.topicsOf[token]
	if hasRoom(own, len(h.topics), h.maxTopics) {
		return nil
	}
	var idlest *topic
	for _, t := range h.topics {
		if (own == 0 || t.owner == token) && t.isIdle() && (idlest == nil || t.usedAt().Before(idlest.usedAt())) {
			idlest = t
		}
	}
	switch {
	case idlest != nil:
		h.remove(idlest)
		idlest.wakeUp() // so that its loop ends
		return nil
	case own == 0:
		return noRoom{"this dashboard", len(h.topics), "different view"}
	}
	return noRoom{"your token", own, "different view"}
}

// remove removes a topic. The caller holds mu.
func (h *hub) remove(t *topic) {
	delete(h.topics, t.key)
	countDown(h.topicsOf, t.owner)
}

// countDown subtracts one from a count, and forgets a count of zero.
func countDown(counts map[string]int, name string) {
	if counts[name]--; counts[name] <= 0 {
		delete(counts, name)
	}
}

// isIdle reports whether no request uses the topic.
func (t *topic) isIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holders == 0
}

func (t *topic) usedAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// run looks until nobody watches the topic any more, or the hub stops.
func (h *hub) run(t *topic) {
	interval := busyInterval
	for h.stopping.Err() == nil {
		began := time.Now()
		if t.update(h.stopping, h.timeout) {
			interval = busyInterval
			h.logDefect(t)
		} else {
			interval = min(interval*3/2, idleInterval)
		}
		if !h.awaitLook(t, max(interval, h.share(t))) {
			return
		}
		select {
		case <-time.After(t.leastInterval() - time.Since(began)):
		case <-h.stopping.Done():
		}
		select {
		case <-t.wake: // somebody wanted the look that begins now
		default:
		}
	}
}

// leastInterval returns the least time between the beginnings of two looks.
func (t *topic) leastInterval() time.Duration {
	if t.queue == "" {
		return leastOfAll
	}
	return leastInterval
}

// share returns the least time between two looks that no viewer asks for. It keeps all topics of a token together
// within looksOfToken. Topics about several queues do not wait, because viewers of other tokens share them.
func (h *hub) share(t *topic) time.Duration {
	if t.queue == "" {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Duration(h.topicsOf[t.owner]) * time.Second / looksOfToken
}

// logDefect logs a look that panicked.
func (h *hub) logDefect(t *topic) {
	var d *defect
	if errors.As(t.result().err, &d) {
		h.log.Error("a look of the dashboard panicked", slog.String("path", t.key), slog.Any("error", d),
			slog.String("stack", d.stack))
	}
}

// awaitLook waits for the time of the next look: after the interval if somebody watches the topic, or when somebody
// wants a look now. It returns false if the topic was removed.
func (h *hub) awaitLook(t *topic, interval time.Duration) bool {
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
		if h.forget(t) {
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

// changed makes the samples of a queue stale, because a viewer changed something in it; "" = in several queues.
func (h *hub) changed(queue string) { h.outdate(queue, true) }

// outdate makes the samples of a queue stale. If look is true, the watched topics about the queue look at once.
// Otherwise only new pages cause a look.
func (h *hub) outdate(queue string, look bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changedAt = time.Now()
	if _, known := h.changes[queue]; !known && len(h.changes) >= maxChanges {
		clear(h.changes)
		h.changes[""] = h.changedAt // so that no page shows the state before a change that was dropped
	}
	h.changes[queue] = h.changedAt
	if !look {
		return
	}
	for _, t := range h.topics {
		isAbout := queue == "" || t.queue == "" || t.queue == queue
		if isAbout && t.isWatched() { // a page that is loaded later asks for a look itself
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

// changedAt returns the time of the last change that a page about a queue must show; "" = about several queues.
func (q *request) changedAt(queue string) time.Time {
	if q.r != nil {
		if _, err := q.r.Cookie(changedCookie); err == nil {
			return time.Now()
		}
	}
	return q.hub.lastChange(queue)
}

// staleBefore returns the earliest beginning of a look whose sample a new page may show.
func (q *request) staleBefore(queue string) time.Time {
	earliest, changed := time.Now().Add(-freshFor), q.changedAt(queue)
	if changed.After(earliest) {
		return changed
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

// forget removes a topic that nobody uses any more, and reports whether it is removed.
func (h *hub) forget(t *topic) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.topics[t.key] != t: // makeRoom has removed it
		return true
	case !t.isIdle() || time.Since(t.usedAt()) < keepLoopFor:
		return false
	}
	h.remove(t)
	return true
}

// update looks once, and reports whether something has happened since the last look.
func (t *topic) update(stopping context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(stopping, timeout)
	defer cancel()
	begun := time.Now()
	var s sample
	err := guarded(func() (err error) {
		s, err = t.look(ctx)
		return err
	})
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
	t.parts, t.partBytes = map[partKey]*cachedPart{}, 0
	close(t.changed)
	t.changed = make(chan struct{})
	return !s.rests
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

// sample returns a sample of the page's topic. If the last one is too old, it waits for the next look. Errors: that of
// the look, noRoom, errStops, and that of the request's context.
func (q *request) sample(l *live) (any, error) {
	t, err := q.hub.hold(l, q.token())
	if err != nil {
		return nil, err
	}
	defer q.hub.release(t)
	earliest := q.staleBefore(l.queue)
	for {
		last := t.result()
		if !last.begun.Before(earliest) {
			q.seen = last.mark
			return last.sample.value, q.hide(last.err)
		}
		if !last.begun.IsZero() { // else the first look is running
			t.wakeUp()
		}
		select {
		case <-last.looked:
		case <-q.ctx.Done():
			return nil, q.ctx.Err()
		case <-q.stopping.Done():
			return nil, errStops
		}
	}
}

// mark returns a text that stands for the last result. The caller holds mu.
func (t *topic) mark() string { return fmt.Sprintf("%s-%d", t.name, t.version) }

// token returns the name of the viewer's token; "" = there is none, as in a test.
func (q *request) token() string {
	if q.grant == nil {
		return ""
	}
	return q.grant.Name()
}

// hidden is an error of a look at queues that the viewer may not know. Its text names none of them.
type hidden struct{ err error }

func (hidden) Error() string {
	return "the queues cannot be read: somebody with a token for all queues sees the reason"
}
func (e hidden) Unwrap() error { return e.err }

// hide returns the error of a look without names that the viewer may not know.
func (q *request) hide(err error) error {
	if err == nil || q.grant == nil || q.queue() != "" || q.may(access.Inspect, "") {
		return err
	}
	return hidden{err}
}

// watch adds a viewer with a token to the topic of a name, and starts its loop if there is none. The caller calls
// leave. Errors: noRoom, errStops.
func (h *hub) watch(l *live, token string) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.viewersOf[token]
	switch {
	case h.viewers >= h.maxViewers:
		return nil, noRoom{"this dashboard", h.viewers, "page"}
	case !hasRoom(own, h.viewers, h.maxViewers):
		return nil, noRoom{"your token", own, "page"}
	}
	t, err := h.find(l, token)
	if err != nil {
		return nil, err
	}
	h.viewers++
	h.viewersOf[token]++
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers++
	return t, nil
}

// leave removes a viewer.
func (h *hub) leave(t *topic, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers--
	countDown(h.viewersOf, token)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers--
	t.holders--
	t.used = time.Now()
}

// answerLive sends the updates of a page as Server-Sent Events until the viewer leaves: "update" with HTML, "away" with
// a sentence while the page cannot be read, and "gone" when the token no longer allows the page. The event "stop", with
// a sentence, ends a stream that the browser should not ask for again soon.
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
	token := q.token()                        // of the beginning, also if the secret gets another token
	t, err := d.hub.watch(l, token)
	if errors.Is(err, errStops) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil { // a browser shows no text of a stream that is refused
		q.sender()([]byte(event("stop", "This page is not kept up to date: "+err.Error()+".")))
		return
	}
	defer d.hub.leave(t, token)
	q.stream(p, l, t, seen)
}

// sender returns a function that writes to a stream of events, and reports whether the viewer still reads.
func (q *request) sender() func(text []byte) bool {
	rc := http.NewResponseController(q.w)
	_ = rc.SetReadDeadline(time.Time{})
	return func(text []byte) bool {
		return writeInTime(rc, func() error {
			_, err := q.w.Write(text)
			return errors.Join(err, rc.Flush())
		}) == nil
	}
}

// writeInTime writes to a viewer, for at most streamTimeout.
func writeInTime(rc *http.ResponseController, write func() error) error {
	return writeWithin(rc, streamTimeout, write)
}

// writeWithin writes to a viewer, for at most the given time. It then removes the deadline: with HTTP/2, a deadline
// that passes between two writes ends the stream.
func writeWithin(rc *http.ResponseController, most time.Duration, write func() error) error {
	_ = rc.SetWriteDeadline(time.Now().Add(most))
	err := write()
	_ = rc.SetWriteDeadline(time.Time{})
	return err
}

// stream writes the updates to the viewer, whose page shows the result with the mark seen.
func (q *request) stream(p page, l *live, t *topic, seen string) {
	send := q.sender()
	beats := time.NewTimer(q.hub.nextBeat())
	defer beats.Stop()
	if !send([]byte(": the stream of updates begins\n\n")) {
		return
	}
	sentVersion, sentPart := 0, (*seenPart)(nil)
	if last := t.result(); seen == last.mark && last.err == nil { // the page shows this result already
		if part, err := q.cachedPart(p, l, t, last); err == nil {
			sentVersion, sentPart = last.version, part.seenPart
		}
	}
	shownAfter := q.changedAt(q.queue()) // older samples may lack a change that the page shows
	if !strings.HasPrefix(seen, t.name+"-") {
		shownAfter = time.Now() // another process may have rendered the page from a newer sample
	}
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
			beats.Reset(q.hub.nextBeat())
			text, gone := noChange, q.expired()
			if gone {
				text = event("gone", "")
			}
			if !send([]byte(text)) || gone {
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
// it is not known whether the token is still valid. If ended is true, the stream ends with the event. Other streams may
// share the text.
func (q *request) event(p page, l *live, t *topic, last result, seen *seenPart) (text []byte, _ *seenPart, ended bool) {
	if q.expired() || q.checkQueue() != nil {
		return []byte(event("gone", "")), nil, true
	}
	if last.err != nil {
		return []byte(event("away", awayText(q.hide(last.err)))), nil, false
	}
	if err := q.checkGrace(); err != nil {
		return []byte(event("away", "Redis does not answer (your token cannot be checked).")), nil, false
	}
	part, err := q.cachedPart(p, l, t, last)
	if errors.Is(err, errBusyToken) { // the dashboard stops
		return []byte(noChange), nil, true
	}
	if err != nil {
		q.log.Error("an update of the dashboard cannot be rendered", slog.String("page", p.template),
			slog.Any("error", err))
		text := event("stop", "This page cannot be kept up to date, because of a defect of this program.")
		return []byte(text), nil, true
	}
	if update := part.since(seen); update != nil {
		return update, part.seenPart, false
	}
	return []byte(noChange), part.seenPart, false
}

// awayText returns a sentence about a look that failed.
func awayText(err error) string {
	if newFailure(err).Away {
		return fmt.Sprintf("Redis does not answer (%s).", err)
	}
	return fmt.Sprintf("This page cannot be read: %s.", err)
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
	cached.once.Do(func() {
		cached.err = q.hub.render(q.hub.stopping, &q.hub.partTime, q.token(), restOfPart, func() error {
			return guarded(func() (err error) {
				cached.part, err = q.part(p, l, last.sample.value)
				return err
			})
		})
		if cached.err == nil {
			t.limitParts(key, cached)
		}
	})
	return cached.part, cached.err
}

// limitParts removes a part that was rendered just now, if the parts take too much memory.
func (t *topic) limitParts(key partKey, cached *cachedPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts[key] != cached {
		return
	}
	size := 2 * len(cached.part.update) // with the pieces
	if t.partBytes > 0 && t.partBytes+size > maxCachedBytes {
		delete(t.parts, key)
		return
	}
	t.partBytes += size
}

// render waits for the turn of the token and for a free place, and then calls work to render a part or a page. The
// error is that of work or of shares.do.
func (h *hub) render(ctx context.Context, times *shares, token string, rest float64, work func() error) error {
	return times.do(ctx, token, rest, mostRest, func() error {
		h.renders <- struct{}{}
		defer func() { <-h.renders }()
		return work()
	})
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

// rendered is a part of a page as HTML. It holds the events that bring it, because each stream holds its event until
// the viewer has read it, and a thousand streams may wait for slow viewers.
type rendered struct {
	update    []byte   // the event with the whole part
	pieces    []string // HTML
	*seenPart          // allocated separately: streams keep it, and nothing else of the part

	mu      sync.Mutex
	changes map[uint64][]byte // events with the changed pieces, by the digest of the part that the viewer sees
}

// maxChangeEvents limits the events with pieces of a part. Viewers who see still other parts get the whole one.
const maxChangeEvents = 4

// seenPart tells what a viewer sees, without the HTML: each stream keeps it until the next update.
type seenPart struct {
	digest  uint64   // of the whole part
	ids     []string // of the pieces
	digests []uint64 // of the pieces
}

// digestSeed is the seed of all digests of HTML.
var digestSeed = maphash.MakeSeed()

// part renders the part of a page for a sample.
func (q *request) part(p page, l *live, value any) (*rendered, error) {
	view, err := l.data(value)
	if err != nil {
		return nil, err
	}
	f := q.frame(p, view)
	whole, err := element(p.template, l.part, l.part, f)
	if err != nil {
		return nil, err
	}
	running, err := element(p.template, runningJobs, runningJobs, f)
	if err != nil {
		return nil, err
	}
	whole += running
	part := newRendered(whole)
	if l.pieces == nil {
		return part, nil
	}
	for _, one := range l.pieces(view) {
		text, err := element(p.template, one.template, one.id, f.With(one.data))
		if err != nil {
			return nil, err
		}
		part.add(one.id, text)
	}
	part.add(runningJobs, running)
	return part, nil
}

// newRendered returns a part with its HTML, and without pieces.
func newRendered(whole string) *rendered {
	seen := &seenPart{digest: maphash.String(digestSeed, whole)}
	return &rendered{update: []byte(event("update", whole)), seenPart: seen}
}

// runningJobs is the template, and the element, that tells how many jobs run. Each update brings it, too.
const runningJobs = "running-jobs"

// add adds a piece.
func (r *rendered) add(id, text string) {
	r.ids, r.pieces = append(r.ids, id), append(r.pieces, text)
	r.digests = append(r.digests, maphash.String(digestSeed, text))
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

// since returns the event that changes a page that shows the part seen into this one; nil = the page needs no change.
// seen may be nil. All streams that need the same event share it.
func (r *rendered) since(seen *seenPart) []byte {
	switch {
	case seen != nil && r.digest == seen.digest:
		return nil
	case seen == nil || len(r.ids) == 0 || !slices.Equal(r.ids, seen.ids):
		return r.update
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if update, known := r.changes[seen.digest]; known {
		return update
	}
	if len(r.changes) >= maxChangeEvents {
		return r.update
	}
	var changed strings.Builder
	for i, text := range r.pieces {
		if r.digests[i] != seen.digests[i] {
			changed.WriteString(text)
		}
	}
	var update []byte
	if changed.Len() > 0 {
		update = []byte(event("update", changed.String()))
	}
	if r.changes == nil {
		r.changes = map[uint64][]byte{}
	}
	r.changes[seen.digest] = update
	return update
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
