package dashboard

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// One token must not take all places of viewers, and the page must say why it is not kept up to date. Regression: one
// token could open all 2,000 streams.
func TestOneTokenLeavesRoomForViewersOfOthers(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	h := newHub(stopping, 8, time.Minute)
	one := &live{topic: "t", look: func(context.Context) (sample, error) { return sample{}, nil }}
	for token, most := range []int{4, 2, 1, 1} {
		name := fmt.Sprint("token-", token)
		for range most {
			redistest.Must(h.watch(one, name))
		}
		var full noRoom
		if _, err := h.watch(one, name); !errors.As(err, &full) {
			t.Errorf("one viewer of %s too many: got %v", name, err)
		}
	}
	stop()
	h.wait()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.MaxViewers = 2 })
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	v.watch("live-overview").next()
	name, text := v.watch("live-overview").next()
	redistest.Want(t, "event", name, "stop")
	contains(t, text, "This page is not kept up to date: your token keeps 1 page up to date, and has no place for another")
	name, _ = r.viewer([]access.Verb{access.Inspect}, "*").watch("live-overview").next()
	redistest.Want(t, "event for another token", name, "update")
}

// However many different pages a viewer asks for, they must not start thousands of loops, and a page that nobody uses
// must make room for another one.
func TestAViewerDoesNotStartLoopsWithoutBound(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	h := newHub(stopping, 40, time.Minute) // 20 topics
	page := func(token, topic string) error {
		held, err := h.hold(&live{topic: topic, look: func(context.Context) (sample, error) { return sample{}, nil }}, token)
		if err == nil {
			h.release(held)
		}
		return err
	}
	for i := range 1000 {
		if err := page("greedy", fmt.Sprint("greedy ", i)); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Want(t, "loops of one token", h.topicsOf["greedy"], 10)
	for i := range 1000 {
		if err := page(fmt.Sprint("token ", i), fmt.Sprint("other ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.topics); n > 20 {
		t.Errorf("%d loops of all tokens", n)
	}
	var full noRoom
	for i := range 20 {
		_, _ = h.hold(&live{topic: fmt.Sprint("held ", i), look: func(context.Context) (sample, error) {
			return sample{}, nil
		}}, fmt.Sprint("token ", i))
	}
	if err := page("late", "late"); !errors.As(err, &full) || newFailure(err).Status != http.StatusTooManyRequests {
		t.Errorf("a page while all loops are in use: got %v", err)
	}
	stop()
	h.wait() // also for the loops of removed topics
}

// A page that waits for a look must keep its topic, however long the look takes. Regression: while the page waited, the
// loop decided that nobody had asked for 15 s, and ended; the page waited until its time was over.
func TestAPageThatWaitsKeepsItsTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		h := newHub(stopping, 100, time.Minute)
		q := &request{Dashboard: &Dashboard{hub: h, stopping: stopping}}
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		q.ctx = ctx
		looks := 0
		one := &live{topic: "t", look: func(context.Context) (sample, error) {
			looks++
			n := looks
			<-time.After(20 * time.Second) // by the clock of the bubble
			return sample{value: n}, nil
		}}
		h.topicOf(one)
		<-time.After(20*time.Second - keepLoopFor)
		h.changed("")
		value, err := q.sample(one)
		if err != nil || value != 2 {
			t.Errorf("the page got %v, %v", value, err)
		}
		stop()
		h.wait()
	})
}

// Changes of very many queues must take little memory, and no page may show the state before a change.
func TestTheHubRemembersFewChanges(t *testing.T) {
	t.Parallel()
	h := newHub(t.Context(), 10, time.Minute)
	begun := time.Now()
	for i := range 3 * maxChanges {
		h.changed(fmt.Sprint("queue-", i))
	}
	if n := len(h.changes); n > maxChanges+1 {
		t.Errorf("%d changes are kept", n)
	}
	for _, queue := range []string{"queue-0", "queue-1", fmt.Sprint("queue-", 3*maxChanges-1)} {
		if h.lastChange(queue).Before(begun) {
			t.Errorf("the change of %s is forgotten", queue)
		}
	}
}

// A change of one queue must not make the pages of other queues look at Redis.
func TestAChangeOfAQueueWakesItsPages(t *testing.T) {
	t.Parallel()
	h := newHub(t.Context(), 10, time.Minute)
	isWoken := map[string]bool{}
	for _, queue := range []string{"", "a", "b"} {
		h.topics[queue] = &topic{key: queue, queue: queue, viewers: 1, wake: make(chan struct{}, 1)}
	}
	h.changed("a")
	for queue, topic := range h.topics {
		isWoken[queue] = len(topic.wake) > 0
	}
	redistest.Want(t, "woken topics", fmt.Sprint(isWoken), "map[:true a:true b:false]")
	h.changed("")
	redistest.Want(t, "woken by a change of several queues", len(h.topics["b"].wake), 1)
}

// A panic while a page is read or rendered, or in a job, must not end the process. The viewer sees an error, and the
// log names the defect.
func TestAPanicDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	q := r.request(v)
	l := &live{topic: "broken", part: "overview-live",
		look: func(context.Context) (sample, error) { panic("a look") },
		data: func(any) (any, error) { panic("a part") }}
	var broken *defect
	if _, err := q.sample(l); !errors.As(err, &broken) {
		t.Errorf("the sample: %v", err)
	}
	topic := redistest.Must(r.dashboard.hub.hold(l, "token"))
	for range 2 { // the second viewer shares what the first one got
		if _, err := q.cachedPart(page{template: "overview"}, l, topic, topic.result()); !errors.As(err, &broken) {
			t.Errorf("the part: %v", err)
		}
	}
	spec := newSteps().spec(operate, "a")
	spec.run = func(context.Context, func(jobCounts)) error { panic("a job") }
	v.eventuallyShows(redistest.Must(q.startJob(spec)), "Failed: a defect of this program: a job")
	r.dashboard.handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a request") })
	if res, err := v.http.Get(v.base + "x"); err == nil {
		_ = res.Body.Close()
		t.Error("a request that panicked was answered")
	}
	for _, what := range []string{"a look of the dashboard panicked", "a job of the dashboard panicked",
		"a request of the dashboard panicked"} {
		if r.log.Count(what) == 0 {
			t.Errorf("the log lacks: %s", what)
		}
	}
}

// slowWriter is a viewer who needs some time for each write. It is used within a bubble.
type slowWriter struct {
	*httptest.ResponseRecorder
	takes    time.Duration
	deadline time.Time
}

func (w *slowWriter) SetWriteDeadline(at time.Time) error { w.deadline = at; return nil }
func (w *slowWriter) SetReadDeadline(time.Time) error     { return nil }
func (w *slowWriter) Write(b []byte) (int, error) {
	select {
	case <-time.After(w.takes):
		return len(b), nil
	case <-time.After(time.Until(w.deadline)):
		return 0, errors.New("the deadline has passed")
	}
}

// A viewer who reads the stream of a search slowly must lose it, because the search holds a turn in the line. This
// holds even if each single write ends in time.
func TestASlowReaderLosesItsSearch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		slow := newPacedWriter(&slowWriter{ResponseRecorder: httptest.NewRecorder(), takes: streamTimeout - time.Second})
		redistest.Want(t, "first text", slow.send("text"), true)
		redistest.Want(t, "second text", slow.send("text"), false)
		redistest.Want(t, "third text", slow.send("text"), false)
		redistest.Want(t, "time that the reader got", time.Since(begun), streamTimeout)
		ok := newPacedWriter(&slowWriter{ResponseRecorder: httptest.NewRecorder(), takes: time.Second})
		for range 100 { // of leastRate
			if _, err := ok.Write(make([]byte, leastRate)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Viewers of one token who each watch an address of their own must not take the processor from all others. Regression:
// each address was rendered at once, and 1,000 viewers of one token took all cores.
func TestATokenRendersOnePartAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		defer stop()
		h := newHub(stopping, 8, time.Minute)
		one := &live{topic: "t", look: func(context.Context) (sample, error) { return sample{}, nil }}
		for _, token := range []string{"greedy", "other"} {
			watched := redistest.Must(h.watch(one, token))
			defer h.leave(watched, token)
		}
		begun := time.Now()
		render := func(token string, takes time.Duration) {
			t.Helper()
			err := h.render(t.Context(), &h.partTime, token, restOfPart, func() error {
				<-time.After(takes)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		render("greedy", 100*time.Millisecond)
		render("other", 0)
		redistest.Want(t, "time of another token", time.Since(begun), 100*time.Millisecond)
		render("greedy", time.Hour)
		redistest.Want(t, "time with a rest", time.Since(begun), time.Hour+400*time.Millisecond)
		render("greedy", 0)
		redistest.Want(t, "time with the longest rest", time.Since(begun), time.Hour+400*time.Millisecond+mostRest)
		synctest.Wait()
		redistest.Want(t, "tokens that are remembered", len(h.partTime.by), 0)
	})
}

// Pages of one token must be rendered one after the other, and a viewer who waits too long must get an answer.
// Regression: a viewer who loaded the overview of 2,000 queues 40 times at once took all cores for seconds. Meanwhile a
// small page of another token took 2.9 s.
func TestATokenRendersOnePageAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.Timeout = 300 * time.Millisecond })
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	greedy, other := r.viewer(operate, "*"), r.viewer(operate, "*")
	name := r.request(greedy).grant.Name()
	rendering, end := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	go func() {
		h := r.dashboard.hub
		ended <- h.render(t.Context(), &h.pageTime, name, restOfPage, func() error {
			close(rendering)
			<-end
			return nil
		})
	}()
	<-rendering
	status, text := greedy.get("search")
	redistest.Want(t, "status while another page is rendered", status, http.StatusTooManyRequests)
	contains(t, text, "Your token asks for too much at once", `aria-label="Pages"`)
	form := url.Values{"token": {"new"}, "verb": {"inspect"}, "queue": {"*"}}
	status, text = greedy.post("do-add-token", form)
	redistest.Want(t, "status of a page with a secret", status, http.StatusOK)
	contains(t, text, access.SecretPrefix)
	status, _ = other.get("search")
	redistest.Want(t, "status for another token", status, http.StatusOK)
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		status, _ := greedy.get("search")
		return status == http.StatusOK, fmt.Sprint("status ", status)
	})
}

// Few pages of a token may wait to be rendered, because each holds what it shows. Further ones must be refused at once.
// Regression: pages that waited for ten seconds each held a payload of 16 MiB, and one token held all requests that the
// dashboard may have in flight.
func TestFewPagesOfATokenWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		defer stop()
		h := newHub(stopping, 8, time.Minute)
		end := make(chan struct{})
		results := make(chan error, 2*maxWaitingPages)
		render := func(token string) {
			results <- h.render(t.Context(), &h.pageTime, token, restOfPage, func() error {
				<-end
				return nil
			})
		}
		for range 1 + maxWaitingPages + 5 {
			go render("greedy")
		}
		synctest.Wait()
		redistest.Want(t, "pages that are refused at once", len(results), 5)
		for range 5 {
			redistest.Want(t, "error of a page", <-results, errBusyToken)
		}
		go render("other")
		synctest.Wait()
		redistest.Want(t, "pages of another token that are refused", len(results), 0)
		close(end)
		for range 1 + maxWaitingPages + 1 {
			redistest.Want(t, "error of a page that waits", <-results, error(nil))
		}
		<-time.After(mostRest)
		synctest.Wait()
		redistest.Want(t, "tokens that are remembered", len(h.pageTime.by), 0)
	})
}

// The data of a page must not have a whole payload, because the page may wait to be rendered.
func TestThePageOfALargePayloadHoldsLittle(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	payload := `{"a":"` + strings.Repeat("b", maxEdited) + `"}`
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", "dead", "payload", payload, "group", "g", "reason", "dead_letter",
		"attempt", "1", "dead_ms", "1700000000000")
	r.schedule(r.Queue, "scheduled", payload)
	q := r.request(r.viewer(operate, r.Queue))
	q.r.Method = http.MethodGet
	q.query = url.Values{"queue": {r.Queue}, "letter": {"1700000000000-1"}, "id": {"scheduled"}}
	letter := redistest.Must(showLetter(q)).(letterView)
	redistest.Want(t, "payload of a letter", len(letter.Letter.Payload), 0)
	redistest.Want(t, "size of the payload", letter.Payload.Size, int64(len(payload)))
	redistest.Want(t, "the payload is lost", letter.Lost, false)
	edit := redistest.Must(showEdit(q)).(editView)
	redistest.Want(t, "payload of an edited letter", len(edit.Letter.Payload), 0)
	message := redistest.Must(showMessage(q)).(messageView)
	redistest.Want(t, "places of the message", len(message.finding.Places), 1)
	redistest.Want(t, "payload of a message", len(message.finding.Places[0].Payload), 0)
	redistest.Want(t, "views of payloads", len(message.Payloads), 1)
}

// What looks at all of a large payload before a page is rendered must be in the share of the token, too. Regression: 40
// connections of one token that asked for the view of a payload, or for a difference, took all cores.
func TestWorkOnALargePayloadIsInTheShareOfItsToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	payload := `{"a":"` + strings.Repeat("b", maxEdited/2) + `"}`
	for i, text := range []string{payload, "{}"} {
		r.Do("XADD", r.Keys.Dead, fmt.Sprintf("1700000000000-%d", i+1), "id", "dead", "payload", text, "group", "g",
			"reason", "dead_letter", "attempt", "1", "dead_ms", "1700000000000")
	}
	r.schedule(r.Queue, "scheduled", payload)
	spec := bridge.Recurrence{Name: "daily", Queue: r.Queue, Cron: "0 9 * * *", Payload: []byte(payload)}
	redistest.Must(r.op.Recur(t.Context(), spec))
	v := r.viewer(operate, r.Queue)
	do := func(letter string, work func(q *request) error) error {
		q := r.request(v)
		q.r.Method = http.MethodGet
		q.w = httptest.NewRecorder()
		q.query = url.Values{"queue": {r.Queue}, "letter": {letter}, "id": {"scheduled"}, "name": {"daily"},
			"cron": {"0 9 * * *"}, "payload": {"{}"}, "encoding": {editText}, "missed": {"once"}, "overlap": {"allow"}}
		return work(q)
	}
	show := func(page func(q *request) (any, error)) func(q *request) error {
		return func(q *request) error { _, err := page(q); return err }
	}
	save := func(q *request) error {
		before := redistest.Must(r.op.Recurrence(t.Context(), r.Queue, "daily"))
		q.query.Set("edit", "daily")
		q.query.Set("version", before.Version)
		_, err := saveRecurrence(q)
		return err
	}
	edit := func(q *request) error { _, err := redriveEdited(q); return err }
	all := map[string]func(q *request) error{"letter": show(showLetter), "message": show(showMessage), "edit": edit,
		"recurrence": show(showRecurrence), "save": save, "JSON": serveMessageJSON}
	for name, work := range all {
		redistest.Want(t, "error of "+name, do("1700000000000-1", work), error(nil))
	}
	pages, token := &r.dashboard.hub.pageTime, r.request(v).grant.Name()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		pages.mu.Lock()
		defer pages.mu.Unlock()
		return len(pages.by) == 0, "the token rests"
	})
	for range 1 + maxWaitingPages { // as many as may wait
		pages.hold(token)
	}
	for name, work := range all {
		redistest.Want(t, "error of "+name+" while others wait", do("1700000000000-1", work), errBusyToken)
	}
	redistest.Want(t, "error of a small letter", do("1700000000000-2", show(showLetter)), error(nil))
}

// measuringWriter tells how much memory of answers is in use during a write.
type measuringWriter struct {
	*httptest.ResponseRecorder
	of   *budget
	held int
}

func (w *measuringWriter) Write(b []byte) (int, error) {
	w.held = w.of.taken
	return w.ResponseRecorder.Write(b)
}

// The pages and downloads that viewers read slowly must not fill the memory. Regression: 2,000 connections that did not
// read held pages of 5 MiB for 90 s each.
func TestAnswersThatAreWrittenUseBoundedMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	r.Do("XADD", r.Keys.Dead, "1700000000000-1", "id", "m", "payload", strings.Repeat(`"`, maxEdited), "group", "g",
		"reason", "dead_letter", "attempt", "1", "dead_ms", "1700000000000")
	greedy, other := r.viewer(operate, r.Queue), r.viewer(operate, r.Queue)
	name := r.request(greedy).grant.Name()
	memory := &r.dashboard.answerMemory
	address := "?letter=1700000000000-1&queue=" + r.Queue
	large := []string{"dead-edit" + address, "dead-letter" + address, "dead-payload" + address,
		"dead-payload" + address + "&as=base64"}
	redistest.Want(t, "half of the memory can be taken", memory.take(name, answerBytes/2), true)
	for _, page := range large {
		status, text := greedy.get(page)
		redistest.Want(t, "status of "+page+" while the memory is in use", status, http.StatusTooManyRequests)
		contains(t, text, "oo many large answers")
		status, _ = other.get(page)
		redistest.Want(t, "status of "+page+" for another token", status, http.StatusOK)
	}
	status, _ := greedy.get("search")
	redistest.Want(t, "status of a small page", status, http.StatusOK)
	memory.giveBack(name, answerBytes/2)
	for _, page := range large {
		status, _ := greedy.get(page)
		redistest.Want(t, "status of "+page+" while the memory is free", status, http.StatusOK)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.taken == 0 && len(memory.by) == 0, fmt.Sprint(memory.taken, " bytes are taken")
	})
	w := &measuringWriter{httptest.NewRecorder(), memory, 0}
	q := r.request(greedy)
	q.w, q.query = w, url.Values{"as": {"base64"}}
	if err := q.writePayload(make([]byte, answerPiece/2), "a"); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "memory while a download is written", w.held, answerPiece/2+w.Body.Len())
	q.fail(q.w, q.r, q, errors.New(strings.Repeat("e", 2*smallAnswer)))
	if w.held < 2*smallAnswer {
		t.Errorf("memory while a page is written: %d", w.held)
	}
	redistest.Want(t, "memory after it", memory.taken, 0)
}

// A dashboard must bound the requests in flight, because a connection with HTTP/2 carries hundreds of them.
func TestADashboardBoundsItsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.MaxViewers = 1 })
	v := r.stranger()
	r.dashboard.requests.Add(1 + spareRequests)
	status, text := v.get("login")
	redistest.Want(t, "status of one request too many", status, http.StatusServiceUnavailable)
	contains(t, text, "too many requests at the same time")
	r.dashboard.requests.Add(-1)
	status, _ = v.get("login")
	redistest.Want(t, "status of the last request", status, http.StatusOK)
}

// brokenWriter is a viewer who has stopped reading.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("the deadline has passed") }

// When a viewer does not read, the search must end, and its turn must be free.
func TestASearchThatNobodyReadsFreesItsTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for i := range 2 * rowsAtOnce {
		r.schedule(r.Queue, fmt.Sprint("m-", i), "needle")
	}
	q := r.request(r.viewer(inspect, "*"))
	q.query, q.w = url.Values{"q": {"needle"}}, brokenWriter{httptest.NewRecorder()}
	q.r.Method = http.MethodGet
	if err := q.streamSearch(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "searches that run", len(r.dashboard.searches.running), 0)
}

// A form must be read within a time, because it uses memory, and large ones have a turn in a line.
func TestAFormHasADeadline(t *testing.T) {
	t.Parallel()
	w := &readDeadlines{ResponseRecorder: httptest.NewRecorder()}
	body := func() string {
		if len(w.set) != 1 || w.set[0].IsZero() {
			t.Errorf("deadlines while the form is read: %v", w.set)
		}
		return "a=b"
	}
	r := httptest.NewRequest(http.MethodPost, "/", lazyReader(body))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if err := parseForm(w, r, 100, formTimeout); err != nil || r.PostForm.Get("a") != "b" {
		t.Errorf("the form is %v, %v", r.PostForm, err)
	}
	if len(w.set) != 2 || !w.set[1].IsZero() {
		t.Errorf("deadlines after the form was read: %v", w.set)
	}
}

// A client that does not send the rest of its body must get an answer, whatever the type of the body. Regression: the
// deadline was removed, and the connection stayed open for ever, also without a token.
func TestAnUnfinishedFormDoesNotHoldItsConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := parseForm(w, r, 100, 10*time.Millisecond); err == nil {
			t.Error("an unfinished form was read")
		}
	}))
	defer server.Close()
	for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=a"} {
		conn := redistest.Must(net.Dial("tcp", server.Listener.Addr().String()))
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: 50\r\n\r\na", kind)
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("%s: the connection does not end: %v", kind, err)
			conn.Close()
		}
	}
}

// The values of a form must not be parts of its body. Regression: a job that kept one word of a form kept 4 MiB for an
// hour.
func TestTheValuesOfAFormDoNotHoldItsBody(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("v", 1000)
	read := func(most int64) (distance uintptr) {
		q := &request{w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodPost, "/",
			strings.NewReader("a="+value+"&b="+value))}
		q.r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if err := q.readForm(most); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "value", q.query.Get("b"), value)
		place := func(name string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(q.query.Get(name)))) }
		return place("b") - place("a")
	}
	const inBody = 1000 + uintptr(len("&b="))
	redistest.Want(t, "distance of the values of a form with a payload", read(maxActionBytes+1), inBody)
	if read(maxActionBytes) == inBody {
		t.Error("the values are parts of the body")
	}
}

// readDeadlines records the read deadlines.
type readDeadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (w *readDeadlines) SetReadDeadline(at time.Time) error { w.set = append(w.set, at); return nil }

// lazyReader returns a reader of the text that the function returns at the first read.
func lazyReader(text func() string) *lazy { return &lazy{text: text} }

type lazy struct {
	text func() string
	from *strings.Reader
}

func (l *lazy) Read(b []byte) (int, error) {
	if l.from == nil {
		l.from = strings.NewReader(l.text())
	}
	return l.from.Read(b)
}

// Viewers who may not know of bridges must not read about them. But they learn that nothing moves their messages.
func TestBridgesAreForViewersOfAllQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), "mine", nil, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	scoped, all := r.viewer(inspect, "mine"), r.viewer(inspect, "*")
	for _, page := range []string{"", "queue?queue=mine"} {
		_, text := scoped.get(page)
		contains(t, text, "Messages do not become ready", "Tell an operator")
		lacks(t, text, "o bridge", "duestream serve")
		_, text = all.get(page)
		contains(t, text, "o bridge is alive", "duestream serve")
	}
}

// The error of a look that several viewers share must not name queues that one of them may not know.
func TestASharedErrorNamesNoForeignQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	failed := errors.New("look at queue secret-queue: it is broken")
	l := &live{topic: "t", look: func(context.Context) (sample, error) { return sample{}, failed }}
	for queue, want := range map[string]bool{"mine": false, "*": true} {
		q := r.request(r.viewer(inspect, queue))
		_, err := q.sample(l)
		if !errors.Is(err, failed) || strings.Contains(err.Error(), "secret-queue") != want {
			t.Errorf("the error for a viewer of %s: %v", queue, err)
		}
		text, _, _ := q.event(page{template: "overview"}, l, nil, result{err: failed}, nil)
		redistest.Want(t, "the stream names the queue", strings.Contains(string(text), "secret-queue"), want)
		contains(t, string(text), "event: away", "This page cannot be read")
	}
	text, _, _ := r.request(r.viewer(inspect, "*")).event(page{}, l, nil, result{err: admin.ErrNotFound}, nil)
	lacks(t, string(text), "Redis does not answer")
}

// The more topics a token has, the less often each must be looked at. Topics that all viewers share must not wait.
func TestManyTopicsAreLookedAtLessOften(t *testing.T) {
	t.Parallel()
	h := newHub(t.Context(), 1000, time.Minute)
	h.topicsOf["greedy"], h.topicsOf["other"] = 10*looksOfToken, 1
	for topic, want := range map[*topic]time.Duration{
		{owner: "greedy", queue: "q"}: 10 * time.Second, {owner: "greedy"}: 0,
		{owner: "other", queue: "q"}: time.Second / looksOfToken,
	} {
		redistest.Want(t, "least interval of a topic of "+topic.owner+topic.queue, h.share(topic), want)
	}
}

// The navigation must tell how many changes run, also when the last one has ended while the page is open.
func TestAnUpdateTellsHowManyChangesRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	s := newSteps()
	page := redistest.Must(r.request(v).startJob(s.spec(operate, "a")))
	_, text := v.get(page)
	contains(t, text, `<a id="running-jobs" href="search#jobs">1 change is running</a>`)
	stream := v.watch("live-" + page)
	close(s.next)
	for {
		name, update := stream.next()
		redistest.Want(t, "event", name, "update")
		if strings.Contains(update, "data-rest") {
			contains(t, update, `<hx-partial hx-target="[id='running-jobs']"`, `href="search#jobs" hidden>`)
			return
		}
	}
}

// An address of a change, in the address bar after its form was shown again, must lead to a page.
func TestAnAddressOfAChangeLeadsToAPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	for path, want := range map[string]string{
		"do-add-token": "<h1>Tokens</h1>", "do-message-cancel": "<h1>Overview</h1>",
	} {
		status, text := v.get(path)
		redistest.Want(t, "status of "+path, status, http.StatusOK)
		contains(t, text, want)
	}
	status, text := v.get("do-remove-token")
	redistest.Want(t, "status of a change without a form", status, http.StatusMethodNotAllowed)
	contains(t, text, "is not a page that can be opened", `aria-label="Pages"`)
}

// A secret that was typed into another field must not reach the log, and refused logins must.
func TestTheLogHasNoSecretsAndHasRefusedLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	secret := access.SecretPrefix + strings.Repeat("a", 52)
	for _, action := range []string{"do-add-token", "do-remove-token"} {
		v.post(action, url.Values{"token": {secret}, "verb": {"inspect"}, "queue": {"*"}})
		v.post(action, url.Values{"id": {secret}, "letter": {"1-1", secret}})
	}
	redistest.Want(t, "lines with the secret", r.log.Count(secret), 0)
	if r.log.Count("(a secret)") == 0 {
		t.Error("no line tells that there was a secret")
	}
	for range 3 {
		r.stranger().post("login", url.Values{"token": {secret}})
	}
	if n := r.log.Count("a login to the dashboard was refused"); n == 0 {
		t.Error("no line tells of the refused logins")
	}
	redistest.Want(t, "lines with the secret of a login", r.log.Count(secret), 0)
}

// Tokens that are guessed in a cookie must leave a line in the log, as those of a login do.
func TestTheLogHasRefusedCookies(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	ask := func(value string) {
		req := httptest.NewRequest(http.MethodGet, "/servers", nil)
		req.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		r.dashboard.ServeHTTP(httptest.NewRecorder(), req)
	}
	guess := access.SecretPrefix + strings.Repeat("a", 52)
	ask(sessionValue(guess, time.Now().Add(-sessionLength)))
	ask("x")
	redistest.Want(t, "lines about logins that are over", r.log.Count("a login to the dashboard was refused"), 0)
	ask(sessionValue(guess, time.Now()))
	redistest.Want(t, "lines about a guess", r.log.Count("a login to the dashboard was refused"), 1)
	redistest.Want(t, "lines with the guess", r.log.Count(guess), 0)
}

// A stream must keep only digests of a part, and a topic must keep few bytes of parts. Regression: a thousand streams
// of one token, each with another address, kept a part of a megabyte each.
func TestStreamsKeepLittleOfAPart(t *testing.T) {
	t.Parallel()
	topic := &topic{parts: map[partKey]*cachedPart{}}
	add := func(address string, size int) {
		key, cached := partKey{nil, address}, &cachedPart{part: &rendered{update: make([]byte, size), seenPart: &seenPart{}}}
		topic.parts[key] = cached
		topic.limitParts(key, cached)
	}
	for i := range 20 {
		add(fmt.Sprint("small ", i), 1000)
	}
	redistest.Want(t, "small parts", len(topic.parts), 20)
	add("large", maxCachedBytes/2)
	redistest.Want(t, "parts after a large one", len(topic.parts), 20)
	topic.parts, topic.partBytes = map[partKey]*cachedPart{}, 0
	add("first", maxCachedBytes)
	redistest.Want(t, "parts after a large first one", len(topic.parts), 1)

	whole := strings.Repeat("a", maxCachedBytes)
	part := newRendered(whole)
	kept, seen := weak.Make(part), part.seenPart
	part = nil
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		runtime.GC()
		return kept.Value() == nil, "the part stays in memory"
	})
	redistest.Want(t, "digest that the stream knows", seen.digest, maphash.String(digestSeed, whole))
}

// The audit line of changed settings must have the values before and after the change.
func TestTheAuditHasSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Policy(map[string]string{"max_attempts": "9"})
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, "*")
	form := url.Values{"queue": {r.Queue}, "rate": {"5/s"}, "was.rate": {""}, "max_attempts": {""},
		"was.max_attempts": {"9"}}
	if status, text := v.post("do-queue-settings", form); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	lines := r.log.Lines("dashboard.do-queue-settings")
	if len(lines) != 1 {
		t.Fatal(lines)
	}
	contains(t, lines[0], "rate: none to 5/s", "max_attempts: 9 to none")
}
