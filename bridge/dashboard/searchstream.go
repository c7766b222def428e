package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// Limits of the searches of this process. A search may use admin.DefaultLoad of the server's time.
const (
	maxSearches        = 4 // that run at the same time; hasRoom divides them among tokens
	maxWaitingSearches = 50
	maxWaitingOfToken  = 10 // of the waiting ones, those of one token
)

// tooMany: no further search, or form, may wait.
type tooMany struct {
	what string
	n    int
}

func (e tooMany) Error() string {
	return fmt.Sprintf("%d %s are waiting already: try again in a minute", e.n, e.what)
}

// line lets a few searches run, and the others wait in the order in which they came. A search whose token has its share
// of the places lets later ones pass. Large forms wait in a line of their own.
type line struct {
	what string // "searches"

	mu      sync.Mutex
	running map[*turn]bool
	waiting []*turn
}

// turn is a place in the line.
type turn struct {
	token string
	begun chan struct{} // closed when the search may begin
}

// join adds a search to the line.
func (l *line) join(token string) (*turn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := 0
	for _, other := range l.waiting {
		if other.token == token {
			own++
		}
	}
	switch {
	case own >= maxWaitingOfToken:
		return nil, tooMany{l.what + " of your token", own}
	case len(l.waiting) >= maxWaitingSearches:
		return nil, tooMany{l.what, len(l.waiting)}
	}
	t := &turn{token, make(chan struct{})}
	l.waiting = append(l.waiting, t)
	l.admit()
	return t, nil
}

// leave removes a search that has ended, or that does not wait any longer.
func (l *line) leave(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, t)
	l.waiting = slices.DeleteFunc(l.waiting, func(other *turn) bool { return other == t })
	l.admit()
}

// admit lets waiting searches begin. The caller holds the lock.
func (l *line) admit() {
	for i := 0; i < len(l.waiting) && len(l.running) < maxSearches; {
		t, own := l.waiting[i], 0
		for other := range l.running {
			if other.token == t.token {
				own++
			}
		}
		if !hasRoom(own, len(l.running), maxSearches) {
			i++
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.running[t] = true
		close(t.begun)
	}
}

// before returns how many searches wait before one.
func (l *line) before(t *turn) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(slices.Index(l.waiting, t), 0)
}

// wait waits for the turn of a search, and tells at the beginning and each second how many wait before it. The error is
// that of ctx.
func (l *line) wait(ctx context.Context, t *turn, tell func(before int)) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-t.begun:
			return nil
		default:
		}
		tell(l.before(t))
		select {
		case <-t.begun:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// foundView tells how far a search is.
type foundView struct {
	Query   query
	Phase   string // the meaning of the text of the box
	Queue   string // that is being searched
	Looked  int64
	Total   int64
	Found   int64
	Running bool
	Waits   bool // in the line, after Before other searches
	Before  int
	Outcome string // of a search that has ended: complete, limit, away or failed
	Problem string
	Hint    string
}

// otherSearch is a search that gives the text of the box another meaning.
type otherSearch struct{ What, Page string }

// OtherSearches returns the searches for other meanings of the text of the box. They did not run, because this search
// found something.
func (v foundView) OtherSearches() (list []otherSearch) {
	phases := v.Query.phases()
	if v.Query.Q == "" || len(phases) == 1 {
		return nil
	}
	for _, phase := range phases[slices.Index(phases, v.Phase)+1:] {
		what := map[string]string{asText: "payloads", asError: "errors"}[phase]
		list = append(list, otherSearch{what, "search?" + v.Query.as(phase)})
	}
	return list
}

// As returns the meaning of the text of the box; "" = the box is empty.
func (v foundView) As() string {
	return map[string]string{asID: "the beginning of an ID", asText: "a part of a payload",
		asError: "a part of an error"}[v.Phase]
}

// Nothing tells in which texts a quick search found nothing. For a search with conditions it is empty.
func (v foundView) Nothing() string {
	switch {
	case v.Query.Q == "":
		return ""
	case v.Query.values.Get("as") == asID:
		return "No ID begins with the text."
	case v.Query.values.Get("as") == asText:
		return "No payload contains the text."
	case v.Query.values.Get("as") == asError:
		return "No error contains the text."
	case slices.Contains(v.Query.phases(), asID):
		return "No ID begins with the text, and no payload or error contains it."
	}
	return "No payload or error contains the text."
}

// Exact returns the address of the message whose ID is the text of the box; "" = the text is not taken as an ID.
func (v foundView) Exact() (string, error) {
	if !slices.Contains(v.Query.phases(), asID) {
		return "", nil
	}
	return href("message", "id", v.Query.Q)
}

// searchStream sends the hits of a search to a viewer.
type searchStream struct {
	q    *request
	send func(text string) bool // false: the viewer has left
	end  context.CancelFunc     // ends the search

	view    foundView
	before  int64 // hits that the page shows already
	rows    bytes.Buffer
	exact   bytes.Buffer // rows of the message whose ID is the text of the box, which come first
	told    time.Time    // when the viewer was last told
	checked time.Time    // when the token was last checked
}

const (
	tellSearchEvery = 200 * time.Millisecond
	rowsAtOnce      = 50
)

// streamSearch runs a search, and sends what it finds as Server-Sent Events until it ends or the viewer leaves:
// "update" and at last "end" with HTML, or "gone" when the token no longer allows the search. After an interruption the
// page asks with begin to search from a queue on, and tells with shown how many hits it shows already.
func (q *request) streamSearch() error {
	s, err := q.readQuery(q.r.Context(), q.query)
	if err != nil {
		return err
	}
	shown, err := readShown(q.query.Get("shown"))
	if err != nil {
		return err
	}
	begin := q.query.Get("begin")
	s.filter.Queues = slices.DeleteFunc(s.filter.Queues, func(queue string) bool { return queue < begin })
	ctx, end := context.WithCancel(q.r.Context())
	defer end()
	defer context.AfterFunc(q.stopping, end)()
	q.w.Header().Set("Content-Type", "text/event-stream")
	q.w.Header().Set("X-Accel-Buffering", "no") // a proxy must pass each hit on at once
	w := newPacedWriter(q.w)
	_ = w.rc.SetReadDeadline(time.Time{})
	st := &searchStream{q: q, send: w.send, end: end, before: int64(shown), checked: time.Now(),
		view: foundView{Query: s, Running: true, Found: int64(shown), Phase: s.phases()[0]}}
	t, err := q.searches.join(q.grant.Name())
	if err != nil {
		st.finish(err)
		return nil
	}
	defer q.searches.leave(t)
	err = q.searches.wait(ctx, t, func(before int) {
		st.view.Waits, st.view.Before = true, before
		st.tell("update")
	})
	st.view.Waits = false
	if err == nil {
		err = st.search(ctx, s)
	}
	st.finish(err)
	return nil
}

// readShown reads the number of hits that a page shows.
func readShown(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxShown {
		return 0, lua.Invalid("shown", text, "must be between 0 and %d", maxShown)
	}
	return n, nil
}

// leastRate is how many bytes a second a viewer must read on average.
const leastRate = 64 << 10

// errSlowReader: a viewer reads too slowly.
var errSlowReader = errors.New("the viewer reads too slowly")

// pacedWriter writes long answers. A viewer may keep it waiting for streamTimeout in total, and for a second more per
// leastRate bytes. Then it fails, because a waiting search or download holds a turn in a line, or memory.
type pacedWriter struct {
	http.ResponseWriter
	rc     *http.ResponseController
	bytes  int64
	waited time.Duration
}

func newPacedWriter(w http.ResponseWriter) *pacedWriter {
	return &pacedWriter{ResponseWriter: w, rc: http.NewResponseController(w)}
}

// readTime returns the time in which a viewer must read n bytes.
func readTime(n int64) time.Duration { return streamTimeout + time.Duration(n/leastRate)*time.Second }

// within calls write, which writes n bytes, for the time that is left.
func (p *pacedWriter) within(n int, write func() error) error {
	p.bytes += int64(n)
	left := readTime(p.bytes) - p.waited
	if left <= 0 {
		return errSlowReader
	}
	begun := time.Now()
	err := writeWithin(p.rc, left, write)
	p.waited += time.Since(begun)
	return err
}

// Write writes without sending at once.
func (p *pacedWriter) Write(b []byte) (n int, err error) {
	err = p.within(len(b), func() (err error) {
		n, err = p.ResponseWriter.Write(b)
		return err
	})
	return n, err
}

// Unwrap returns the writer below, for http.ResponseController.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// send sends a text, and reports whether the viewer still reads.
func (p *pacedWriter) send(text string) bool {
	return p.within(len(text), func() error {
		_, err := p.ResponseWriter.Write([]byte(text))
		return errors.Join(err, p.rc.Flush())
	}) == nil
}

// errSearchLimit ends a search that has found more than the page shows.
var errSearchLimit = errors.New("more match than are shown")

// search runs the phases of a search, until one finds something.
func (st *searchStream) search(ctx context.Context, s query) error {
	if len(s.filter.Queues) == 0 {
		return nil
	}
	for _, phase := range s.phases() {
		st.view.Phase, st.view.Found = phase, st.before
		o := admin.SearchOptions{Progress: st.progress}
		if _, err := st.q.op.Search(ctx, s.filterAs(phase), o, st.found); err != nil {
			return err
		}
		if st.view.Found > st.before {
			return nil
		}
	}
	return nil
}

// found adds a hit to what the viewer gets next.
func (st *searchStream) found(h admin.Hit) error {
	if st.view.Found >= maxShown {
		return errSearchLimit
	}
	st.view.Found++
	f := st.q.frame(page{path: "search", template: "search"}, foundRow{h})
	rows := &st.rows
	if h.ID == st.view.Query.Q {
		rows = &st.exact
	}
	if err := templates["search"].ExecuteTemplate(rows, "search-row", f); err != nil {
		return err
	}
	if st.view.Found%rowsAtOnce == 0 {
		st.tell("update")
	}
	return nil
}

// progress tells the viewer now and then how far the search is.
func (st *searchStream) progress(p admin.SearchProgress) {
	st.view.Looked, st.view.Total, st.view.Queue = p.Looked, p.Total, p.Queue
	if time.Since(st.told) >= tellSearchEvery {
		st.tell("update")
	}
}

// tell sends the new hits and the progress. It ends the search if nobody reads, or the token does not allow it.
func (st *searchStream) tell(name string) {
	st.told = time.Now()
	if time.Since(st.checked) >= checkTokenEvery {
		st.checked = time.Now()
		if st.q.refusesSearch(st.view.Query.filter) {
			st.send(event("gone", ""))
			st.end()
			return
		}
	}
	var text string
	if st.rows.Len() > 0 {
		text = `<hx-partial hx-target="#hits" hx-swap="beforeend">` + st.rows.String() + `</hx-partial>`
		st.rows.Reset()
	}
	if st.exact.Len() > 0 {
		text += `<hx-partial hx-target="#hits" hx-swap="afterbegin">` + st.exact.String() + `</hx-partial>`
		st.exact.Reset()
	}
	progress, err := element("search", "search-progress", "search-progress",
		st.q.frame(page{path: "search", template: "search"}, st.view))
	if err != nil {
		st.q.log.Error("the progress of a search cannot be rendered", slog.Any("error", err))
		st.end()
		return
	}
	if !st.send(event(name, text+progress)) {
		st.end()
	}
}

// refusesSearch reports whether the viewer's token was revoked, or does not allow a search any more.
func (q *request) refusesSearch(f admin.SearchFilter) bool {
	return q.expired() || q.checkGrace() != nil || slices.ContainsFunc(f.Queues, func(queue string) bool {
		return !q.may(access.Inspect, queue)
	})
}

// finish tells the viewer how the search ended.
func (st *searchStream) finish(err error) {
	st.view.Running = false
	var full tooMany
	switch {
	case err == nil:
		st.view.Outcome = "complete"
	case errors.Is(err, errSearchLimit):
		st.view.Outcome = "limit"
	case errors.Is(err, context.Canceled): // the viewer has left, or this process ends
		return
	case errors.As(err, &full):
		st.view.Outcome, st.view.Problem = "failed", err.Error()
	case newFailure(err).Away:
		st.view.Outcome, st.view.Problem = "away", err.Error()
	default:
		st.view.Outcome, st.view.Problem, st.view.Hint = "failed", err.Error(), admin.Hint(err)
		st.q.log.Error("a search failed", slog.Any("error", err))
	}
	st.tell("end")
}
