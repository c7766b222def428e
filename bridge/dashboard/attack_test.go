package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// An error about a queue that does not exist must not name a queue that the token may not see.
func TestErrorsSuggestNoForeignQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"b.orders", "b.refunds"} {
		if err := r.op.Register(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	v := r.viewer(operate, "a.*", "b.refunds")
	for _, page := range []string{"queue?", "dead?", "dead-letters?", "dead-redrive?", "recurrences?", "search?",
		"message?id=x&"} {
		status, text := v.get(page + "queue=a.orders")
		lacks(t, text, "b.orders")
		if status < 400 && !strings.HasPrefix(page, "message") {
			t.Errorf("%s: status %d", page, status)
		}
	}
	_, text := v.post("do-queue-delete", url.Values{"queue": {"a.orders"}, "confirm": {"a.orders"}})
	lacks(t, text, "b.orders")
	_, text = v.get("queue?queue=a.refunds")
	contains(t, text, "did you mean &#34;b.refunds&#34;?")
}

// A form without a payload must be small, whatever it is for.
func TestLargeFormsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	large := strings.Repeat("a", maxActionBytes)
	for _, a := range actions {
		if a.payload {
			continue
		}
		status, text := v.post(a.path, url.Values{"queue": {r.Queue}, "query": {large}})
		redistest.Want(t, "status of "+a.path, status, http.StatusBadRequest)
		contains(t, text, "must be a form of at most")
		if len(text) > 1<<20 {
			t.Errorf("%s answers with %d bytes", a.path, len(text))
		}
	}
	status, _ := v.post("search-export", url.Values{"query": {large}})
	redistest.Want(t, "status of an export", status, http.StatusBadRequest)
	inspector := r.viewer([]access.Verb{access.Inspect}, "*")
	status, _ = inspector.post("do-queue-create", url.Values{"queue": {r.Queue}, "payload": {large + large}})
	redistest.Want(t, "status of a form that the token never may send", status, http.StatusForbidden)
}

// Only a few large forms may use memory at the same time.
func TestLargeFormsWaitInALine(t *testing.T) {
	t.Parallel()
	// The last form must be accepted within the timeout, even on a busy machine.
	r := newRig(t, redistest.Shared(t), func(cfg *Config) { cfg.Timeout = 5 * time.Second })
	v := r.viewer(access.Verbs(), "*")
	name := r.request(v).grant.Name()
	first := redistest.Must(r.dashboard.forms.join(name))
	redistest.Must(r.dashboard.forms.join(name))
	form := url.Values{"queue": {r.Queue}, "id": {"large"}, "payload": {strings.Repeat("a", maxActionBytes)}}
	status, _ := v.post("do-queue-create", form)
	redistest.Want(t, "status while two others are in work", status, http.StatusTooManyRequests)
	small := url.Values{"queue": {r.Queue}, "id": {"small"}, "payload": {"a"}}
	status, _ = v.post("do-queue-create", small)
	redistest.Want(t, "status of a small form", status, http.StatusOK)
	r.dashboard.forms.leave(first)
	status, _ = v.post("do-queue-create", form)
	redistest.Want(t, "status after one has ended", status, http.StatusOK)
}

// Forms that are never sent to their end must not fill the memory. Regression: one token that may only inspect sent 200
// forms of 4 MiB without their last byte, and the process held 1.1 GiB.
func TestFormsUseABoundedMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v, other := r.viewer(access.Verbs(), "*"), r.viewer(access.Verbs(), "*")
	name := r.request(v).grant.Name()
	memory := &r.dashboard.formMemory
	if !memory.take(name, formBytes/2) || memory.take(name, 1) {
		t.Fatal("a token may not take half of the memory, or may take more")
	}
	large := url.Values{"queue": {r.Queue}, "id": {"a"}, "payload": {strings.Repeat("a", smallForm)}}
	for _, path := range []string{"do-queue-create", "do-message-cancel", "do-examine", "search-export"} {
		status, text := v.post(path, large)
		redistest.Want(t, "status of "+path, status, http.StatusTooManyRequests)
		contains(t, text, "Too many large forms are being sent at the same time")
	}
	small := url.Values{"queue": {r.Queue}, "id": {"a"}, "payload": {"a"}}
	status, _ := v.post("do-queue-create", small)
	redistest.Want(t, "status of a small form", status, http.StatusOK)
	large.Set("id", "b")
	status, _ = other.post("do-queue-create", large)
	redistest.Want(t, "status for another token", status, http.StatusOK)
	memory.giveBack(name, formBytes/2)
	large.Set("id", "c")
	status, _ = v.post("do-queue-create", large)
	redistest.Want(t, "status after the memory was given back", status, http.StatusOK)
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.taken == 0 && len(memory.by) == 0, fmt.Sprint("taken: ", memory.by)
	})
	redistest.Want(t, "time for a small form", formTime(100), streamTimeout)
	redistest.Want(t, "time for a form of an unknown size", formTime(-1), formTimeout)
}

// One token must not fill the line of searches, so that other viewers cannot search.
func TestOneTokenDoesNotFillTheLine(t *testing.T) {
	t.Parallel()
	l := &line{what: "searches", running: map[*turn]bool{}}
	for range maxSearches/2 + maxWaitingOfToken {
		redistest.Must(l.join("greedy"))
	}
	if _, err := l.join("greedy"); newFailure(err).Status != http.StatusTooManyRequests {
		t.Error(err)
	}
	// Two tokens could hold all places.
	for range 3 {
		redistest.Must(l.join("also greedy"))
	}
	third := redistest.Must(l.join("third"))
	select {
	case <-third.begun:
	default:
		t.Error("two tokens take all places")
	}
	redistest.Want(t, "running", len(l.running), maxSearches)
}

// A search must not choose a queue once for each of a million patterns.
func TestASearchTakesFewPatterns(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	status, _ := v.get("search?queues=" + strings.Repeat("*+", 1000))
	redistest.Want(t, "status of one pattern, many times", status, http.StatusOK)
	var patterns []string
	for i := range maxNamedQueues + 1 {
		patterns = append(patterns, fmt.Sprintf("*%d*", i))
	}
	status, text := v.get("search?queues=" + url.QueryEscape(strings.Join(patterns, " ")))
	redistest.Want(t, "status of too many patterns", status, http.StatusBadRequest)
	contains(t, text, "must be at most 500 names and patterns")
}

// A token that is added under the name of a removed one must not get what was rendered or done for the other.
func TestATokenDoesNotInheritByItsName(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"mine", "secret-queue"} {
		if _, err := r.client.Schedule(t.Context(), queue, []byte("p"), bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	login := func(queues ...string) *viewer {
		secret := redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: "ana", Verbs: operate, Queues: queues}))
		v := r.stranger()
		status, _ := v.post("login", url.Values{"token": {secret}})
		redistest.Want(t, "status of the login", status, http.StatusOK)
		return v
	}
	before := login("*")
	job := redistest.Must(r.request(before).startJob(newSteps().spec(operate, "secret-queue")))
	var page *page
	for i := range pages {
		if pages[i].path == "" {
			page = &pages[i]
		}
	}
	part := func(v *viewer) string {
		q := r.request(v)
		l := redistest.Must(page.live(q))
		topic := r.dashboard.hub.topicOf(l)
		redistest.Must(q.sample(l))
		return string(redistest.Must(q.cachedPart(*page, l, topic, topic.result())).update)
	}
	contains(t, part(before), "secret-queue")
	if err := r.op.RemoveToken(t.Context(), "ana"); err != nil {
		t.Fatal(err)
	}
	after := login("mine")
	lacks(t, part(after), "secret-queue")
	status, text := after.get(job)
	redistest.Want(t, "status of the job of the other token", status, http.StatusForbidden)
	lacks(t, text, "secret-queue")
}

// The queues that a job leaves out must be known only to the viewer who started it.
func TestJobsNameNoForeignQueueToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	owner, other := r.viewer(operate, "*"), r.viewer(operate, "mine")
	s := newSteps()
	close(s.next)
	spec := s.spec(operate, "mine")
	spec.notes = []string{"left out: secret-queue"}
	spec.next = &jobNext{Path: "do-search", Fields: []jobField{{"query", "queue=secret-queue"}}}
	job := redistest.Must(r.request(owner).startJob(spec))
	contains(t, owner.eventuallyShows(job, "Done:"), "secret-queue")
	for _, page := range []string{job, "search"} {
		status, text := other.get(page)
		redistest.Want(t, "status for another viewer", status, http.StatusOK)
		contains(t, text, "Cancel what matches")
		lacks(t, text, "secret-queue")
	}
}

// Jobs must not keep large forms for long.
func TestEndedJobsKeepLittle(t *testing.T) {
	t.Parallel()
	all := &jobs{all: map[string]*job{}}
	const each = maxEndedBytes/4 - 10
	for i := range 20 {
		j := &job{id: fmt.Sprint(i), ended: time.Now().Add(time.Duration(i) * time.Millisecond)}
		j.next = &jobNext{Fields: []jobField{{"query", strings.Repeat("a", each)}}}
		all.all[j.id] = j
	}
	all.forget()
	var left []string
	for id := range all.all {
		left = append(left, id)
	}
	slices.Sort(left)
	redistest.Want(t, "kept jobs", strings.Join(left, " "), "16 17 18 19")
}

// A login over plain HTTP must come from this machine, also if a proxy on it tells nothing about the browser.
func TestALoginNeedsAPrivateConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host, peer, proto, by string
		private               bool
	}{
		{"127.0.0.1:7778", "127.0.0.1:5", "", "", true}, {"localhost:7778", "[::1]:5", "", "", true},
		{"[::1]:7778", "[::1]:5", "", "", true}, {"a.localhost", "127.0.0.1:5", "", "", true},
		{"queues.example.com", "127.0.0.1:5", "", "", false}, {"127.0.0.1.example.com", "127.0.0.1:5", "", "", false},
		{"", "127.0.0.1:5", "", "", false}, {"localhost", "10.0.0.1:5", "", "", false},
		{"localhost", "127.0.0.1:5", "", "10.0.0.1", false}, {"queues.example.com", "127.0.0.1:5", "https", "10.0.0.1", true},
		{"queues.example.com", "127.0.0.1:5", "http", "", false}, {"localhost", "127.0.0.1:5", "http", "", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.Host, r.RemoteAddr = c.host, c.peer
		for name, value := range map[string]string{"X-Forwarded-Proto": c.proto, "X-Forwarded-For": c.by} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		redistest.Want(t, fmt.Sprint(c), isPrivate(r), c.private)
	}
}

// A proxy on this machine may hide that the browser is elsewhere and speaks without TLS. The headers of the browser
// then show it: the login page has no form, and a login is refused. A proxy may also hide TLS: the cookie must still be
// limited to TLS.
func TestTheBrowserTellsWhetherOthersCanRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		origin, site, agent string
		private, secure     bool
	}{
		{"", "none", "Mozilla/5.0", true, false}, {"", "", "Mozilla/5.0", false, false}, {"", "", "curl/8", true, false},
		{"http://queues.example.com", "", "Mozilla/5.0", false, false}, {"http://queues.example.com", "", "", false, false},
		{"http://localhost:7778", "same-origin", "Mozilla/5.0", true, false},
		{"https://queues.example.com", "same-origin", "Mozilla/5.0", true, true},
	} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.Host, r.RemoteAddr = "127.0.0.1:7778", "127.0.0.1:5"
		r.Header.Set("User-Agent", c.agent)
		for name, value := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		redistest.Want(t, fmt.Sprint("private with ", c), isPrivate(r), c.private)
		redistest.Want(t, fmt.Sprint("secure with ", c), newSession(r, "s").Secure, c.secure)
	}
}

// A link of another site must not log a viewer in with the token behind #, unless the dashboard is that of "duestream
// dev" and the viewer is not logged in.
func TestALinkLogsNobodyIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	_, text := r.stranger().get("login")
	lacks(t, text, "data-by-address")
	dev := newRig(t, redistest.Shared(t), func(cfg *Config) { cfg.LoginByAddress = true })
	_, text = dev.stranger().get("login")
	contains(t, text, "data-by-address")
	_, text = dev.viewer(inspect, "*").get("login")
	lacks(t, text, "data-by-address")
}

// A change that changed nothing must not make the pages of others look at Redis.
func TestAFailedChangeWakesNoPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(operate, "*"))
	q.query.Set("queue", "orders")
	woken := &topic{key: "t", queue: "orders", viewers: 1, wake: make(chan struct{}, 1)}
	r.dashboard.hub.topics["t"] = woken
	for _, c := range []struct {
		err  error
		want int
	}{{fmt.Errorf("cancel: %w", bridge.ErrNotScheduled), 0}, {conflict("held"), 0}, {errors.New("broken"), 1}, {nil, 1}} {
		_, err := q.act(action{path: "do-x", verbs: operate, do: func(*request) (done, error) { return done{}, c.err }})
		redistest.Want(t, "error", err, c.err)
		redistest.Want(t, fmt.Sprintf("woken after %v", c.err), len(woken.wake), c.want)
		select {
		case <-woken.wake:
		default:
		}
	}
	delete(r.dashboard.hub.topics, "t")
}

// A token that ends must not make a token that lasts longer.
func TestATokenMakesNoneThatOutlivesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret := redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: "short", Verbs: operate, Queues: []string{"*"},
		Expires: time.Now().Add(36 * time.Hour)}))
	v := r.stranger()
	v.post("login", url.Values{"token": {secret}})
	for days, want := range map[string]int{"": http.StatusBadRequest, "2": http.StatusBadRequest, "1": http.StatusOK} {
		form := url.Values{"token": {"made" + days}, "verb": {"inspect"}, "queue": {"*"}, "days": {days}}
		status, text := v.post("do-add-token", form)
		redistest.Want(t, "status with days "+days, status, want)
		if want != http.StatusOK {
			contains(t, text, "no later than your own")
		}
	}
	redistest.Want(t, "tokens", len(redistest.Must(r.op.Tokens(t.Context()))), 2)
}

// A short payload that is nested deeply must not fill the memory when its difference is shown.
func TestJSONIsNotIndentedWithoutBounds(t *testing.T) {
	t.Parallel()
	const depth, elements = 5000, 2000
	text := strings.Repeat("[", depth) + strings.Repeat("0,", elements) + "0" + strings.Repeat("]", depth)
	if n := len(forDifference(text)); n > len(text)+maxIndentation {
		t.Errorf("%d bytes became %d", len(text), n)
	}
	redistest.Want(t, "a shallow text", forDifference(`{"a":[1,2]}`), "{\n  \"a\": [\n    1,\n    2\n  ]\n}")
}
