package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// listening is an open stream of events from /v1/events/stats.
type listening struct {
	t      *testing.T
	events chan event // closed at the end of the stream
	hangUp context.CancelFunc
	status int
	header http.Header
}

type event struct{ name, data string }

// listens opens a stream of events with a token. A comment in the stream becomes the zero event.
func (r *rig) listens(token, query string) *listening {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.base+"/v1/events/stats"+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	l := &listening{t: r.t, events: make(chan event, 100), hangUp: cancel, status: res.StatusCode, header: res.Header}
	var reads sync.WaitGroup
	reads.Go(func() {
		defer close(l.events)
		defer res.Body.Close()
		var one event
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			switch name, value, _ := strings.Cut(lines.Text(), ":"); name {
			case "event":
				one.name = strings.TrimSpace(value)
			case "data":
				one.data = strings.TrimSpace(value)
			case "":
				if lines.Text() == "" && one.name == "" {
					continue // the empty line after a field that is no event
				}
				l.events <- one
				one = event{}
			}
		}
	})
	r.t.Cleanup(func() {
		cancel()
		for range l.events { //nolint:revive // what is left
		}
		reads.Wait()
	})
	return l
}

// next returns the next event, or the zero event when the stream has ended.
func (l *listening) next() event {
	l.t.Helper()
	select {
	case e := <-l.events:
		return e
	case <-time.After(time.Minute):
		l.t.Fatal("no event within a minute")
		return event{}
	}
}

// queues returns the queues in the next event, which must be stats, as NAME=SCHEDULED.
func (l *listening) queues() string {
	l.t.Helper()
	e := l.next()
	var seen struct {
		At     time.Time
		Queues []admin.QueueSample
	}
	if err := json.Unmarshal([]byte(e.data), &seen); err != nil || e.name != "stats" || time.Since(seen.At).Abs() > time.Minute {
		l.t.Fatalf("%+v: %v", e, err)
	}
	var names []string
	for _, one := range seen.Queues {
		names = append(names, fmt.Sprint(one.Queue, "=", one.Scheduled))
	}
	return strings.Join(names, " ")
}

// A listener gets events about the queues that its token allows, until the token is revoked.
func TestLiveStatsAreThoseOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, queue := range []string{"a", "b", "shop.x"} {
		r.do("POST", "/v1/queues/"+queue+"/messages?in_ms=600000", "x").want(http.StatusCreated)
	}
	narrow := r.allow(access.Token{Name: "narrow", Verbs: []access.Verb{access.Operate}, Queues: []string{"shop.*"}})
	consumer := r.allow(access.Token{Name: "consumer", Verbs: []access.Verb{access.Consume}, Queues: []string{"*"}})
	all, some, chosen := r.listens(r.token, "?interval_ms=1000"), r.listens(narrow, "?interval_ms=1000"),
		r.listens(r.token, "?interval_ms=1000&queues=b")
	none := r.listens(consumer, "?interval_ms=1000")
	if all.status != http.StatusOK || all.header.Get("Content-Type") != "text/event-stream" ||
		all.header.Get("X-Request-Id") == "" {
		t.Errorf("%d, %v", all.status, all.header)
	}
	for _, c := range []struct {
		l    *listening
		want string
	}{{all, "a=1 b=1 shop.x=1"}, {some, "shop.x=1"}, {chosen, "b=1"}, {none, ""}} {
		redistest.Eventually(t, time.Minute, func() (bool, string) { // a client registers a queue after its answer
			got := c.l.queues()
			return got == c.want, got + ", want " + c.want
		})
	}
	r.do("POST", "/v1/queues/shop.x/messages?in_ms=600000", "x").want(http.StatusCreated)
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		got := some.queues()
		return got == "shop.x=2", got
	})
	if r.listens(narrow, "?queues=shop.x,a").status != http.StatusForbidden {
		t.Error("the token may listen to a queue that it does not allow")
	}
	if err := r.op.RemoveToken(t.Context(), "narrow"); err != nil {
		t.Fatal(err)
	}
	e := some.next()
	for ; e.name == "stats"; e = some.next() { //nolint:revive // stats from before the token was revoked
	}
	if e.name != "problem" || !strings.Contains(e.data, typeToken) || some.next() != (event{}) {
		t.Errorf("the last event is %+v", e)
	}
}

// Listeners count against MaxPolls together with waiting callers. They get a comment after a silence. Their streams
// end when the gateway stops or the listener hangs up. Their parameters have limits.
func TestLiveStatsEndAndAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPolls, c.MaxRequests = 1, 1 })
	r.g.shared.heartbeat = time.Second
	for _, query := range []string{"?interval_ms=999", "?interval_ms=60001", "?interval_ms=x", "?queues=", "?queues=a,,b"} {
		r.do("GET", "/v1/events/stats"+query, "").refused(http.StatusUnprocessableEntity, typeInvalid)
	}
	head, err := http.NewRequestWithContext(t.Context(), http.MethodHead, r.base+"/v1/events/stats", nil)
	if err != nil {
		t.Fatal(err)
	}
	head.Header.Set("Authorization", "Bearer "+r.token)
	res, err := http.DefaultTransport.RoundTrip(head)
	if err != nil || res.StatusCode != http.StatusOK || res.Body.Close() != nil {
		t.Errorf("HEAD: %v, %v", res, err)
	}
	first := r.listens(r.token, "?interval_ms=60000")
	first.queues()
	if e := first.next(); e != (event{}) {
		t.Errorf("%+v, want a comment", e)
	}
	r.do("GET", "/v1/events/stats", "").refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", "/v1/queues", "").want(http.StatusOK) // a listener does not count against MaxRequests
	first.hangUp()
	var second *listening
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		second = r.listens(r.token, "")
		return second.status == http.StatusOK, "the place of the first listener is not free"
	})
	second.queues()
	ended := make(chan error, 1)
	go func() { ended <- r.g.Close() }()
	for range second.events { //nolint:revive // until the end
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// All listeners share one read of Redis. An error of this read is sent to a listener once, not at every interval.
func TestListenersShareALook(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes") // so that the token is there after the restart
	r := newRigAt(t, server.URL(), server.Prefix(t))
	seen := make(chan *snapshot, 100)
	for range cap(seen) {
		go func() { seen <- r.g.shared.read() }()
	}
	different := map[*snapshot]bool{}
	for range cap(seen) {
		different[<-seen] = true
	}
	if len(different) > 10 { // the calls may take so long that the shared read is repeated a few times
		t.Errorf("%d reads for %d listeners", len(different), cap(seen))
	}
	l := r.listens(r.token, "?interval_ms=1000")
	l.queues()
	server.Stop()
	e := l.next()
	for ; e.name == "stats"; e = l.next() { //nolint:revive // stats from before the server stopped
	}
	if e.name != "problem" || !strings.Contains(e.data, typeUnavailable) {
		t.Errorf("%+v", e)
	}
	server.Start()
	l.queues() // the next event is stats again: the problem was sent once
}

// The gateway reads only queues that a listener wants and may see. Regression: a listener to one of 430 queues made the
// gateway read all of them, with 4,849 commands a second.
func TestOnlyQueuesThatAreWantedAreLookedAt(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRigAt(t, server.URL(), server.Prefix(t))
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("q", i))
	}
	if _, err := lua.Register(t.Context(), r.r.Client, lua.NewGlobals(r.prefix), names); err != nil {
		t.Fatal(err)
	}
	one := r.listens(r.token, "?interval_ms=1000&queues=q7")
	redistest.Want(t, "queues", one.queues(), "q7=0")
	narrow := r.listens(r.allow(access.Token{Name: "narrow", Verbs: []access.Verb{access.Operate}, Queues: []string{"q8*"}}),
		"?interval_ms=1000")
	redistest.Want(t, "queues of a token", len(strings.Fields(narrow.queues())), 11) // q8 and q80 to q89
	before := server.Calls(t)
	const looks = 3
	for range looks {
		redistest.Want(t, "queues", one.queues(), "q7=0")
	}
	asked := 0
	for command, n := range server.Calls(t) {
		asked += n - before[command]
	}
	if most := looks * 2 * 12 * 20; asked > most { // 20 commands for each of 1+11 queues, at two reads a second
		t.Errorf("%d commands for %d events about 12 queues, want at most %d", asked, looks, most)
	}
}
