package dashboard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// topicOf returns the topic of a name, and starts its loop if there is none.
func (h *hub) topicOf(l *live) *topic {
	t := redistest.Must(h.hold(l, "test"))
	h.release(t)
	return t
}

// watched is a stream of updates of a page.
type watched struct {
	t      *testing.T
	events *bufio.Scanner
	end    context.CancelFunc
}

// watch opens the stream of updates of a page.
func (v *viewer) watch(address string) *watched {
	v.t.Helper()
	ctx, end := context.WithTimeout(v.t.Context(), 5*time.Minute)
	v.t.Cleanup(end)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+address, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	res, err := v.http.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = res.Body.Close() })
	redistest.Want(v.t, "type of the stream", res.Header.Get("Content-Type"), "text/event-stream")
	events := bufio.NewScanner(res.Body)
	events.Buffer(nil, 16<<20)
	return &watched{v.t, events, end}
}

// next returns the name and the data of the next event.
func (w *watched) next() (name, data string) {
	w.t.Helper()
	var lines []string
	for w.events.Scan() {
		line := w.events.Text()
		switch field, value, _ := strings.Cut(line, ": "); {
		case field == "event":
			name = value
		case field == "data" || field == "data:":
			lines = append(lines, value)
		case line == "" && name != "":
			return name, strings.Join(lines, "\n")
		}
	}
	w.t.Fatalf("the stream ended: %v", w.events.Err())
	return "", ""
}

// After the first update, which holds the whole part, an update must hold only the elements that look different.
func TestAnUpdateHoldsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"busy", "quiet"} {
		if _, err := r.client.Schedule(t.Context(), queue, []byte("p"), bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	stream := r.viewer([]access.Verb{access.Inspect}, "*").watch("live-overview")
	if _, whole := stream.next(); !strings.Contains(whole, `id="overview-live"`) ||
		!strings.Contains(whole, `id="queue-quiet"`) {
		t.Fatalf("the first update lacks a part of the page:\n%s", whole)
	}
	for {
		if _, err := r.client.Schedule(t.Context(), "busy", []byte("p"), bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
		name, update := stream.next()
		redistest.Want(t, "event", name, "update")
		if strings.Contains(update, `id="overview-live"`) {
			t.Fatalf("an update holds elements that did not change:\n%s", update)
		}
		// The second look is the first one that knows rates, so it changes both rows.
		if strings.Contains(update, `id="queue-busy"`) && !strings.Contains(update, `id="queue-quiet"`) {
			return
		}
	}
}

// A page that shows the last result must not get it again: its first update must hold what changed since.
func TestAFreshPageGetsNoUpdateOfWhatItShows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	schedule := func(queue string) {
		t.Helper()
		if _, err := r.client.Schedule(t.Context(), queue, []byte("p"), bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	schedule("busy")
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	// A look between the page and its stream makes the page old, so the test tries again.
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		_, text := v.get("")
		found := regexp.MustCompile(`data-live="([^"]+)"`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("the page has no stream:\n%s", text)
		}
		stream := v.watch(html.UnescapeString(found[1]))
		defer stream.end()
		schedule("busy")
		_, update := stream.next()
		return !strings.Contains(update, `id="overview-live"`) && strings.Contains(update, `id="queue-busy"`), update
	})
}

// A page that is loaded, and not watched, must cause one look. Else somebody who loads many pages would cause several
// looks for each.
func TestAPageThatNobodyWatchesCausesOneLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		h := newHub(stopping, 100, time.Minute)
		looks := 0
		one := &live{topic: "t", look: func(context.Context) (sample, error) {
			looks++
			return sample{value: looks}, nil
		}}
		h.topicOf(one)
		pass := func(d time.Duration) { // by the clock of the bubble, so it takes no time
			<-time.After(d)
			synctest.Wait()
		}
		pass(keepLoopFor - time.Second)
		redistest.Want(t, "looks for a page that nobody watches", looks, 1)
		topic := redistest.Must(h.watch(one, "token"))
		pass(3 * busyInterval)
		if looks < 3 {
			t.Errorf("%d looks for a page that somebody watches", looks)
		}
		h.leave(topic, "token")
		pass(2 * keepLoopFor)
		redistest.Want(t, "topics", len(h.topics), 0)
		stop()
		h.wait()
	})
}

// Any number of viewers must cause one look at a time, and the next look must begin after the answer of the last one.
func TestViewersShareOneLook(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	h := newHub(stopping, 100, time.Minute)
	d := &Dashboard{hub: h, stopping: stopping}
	var looks, running atomic.Int64
	answer := make(chan struct{})
	one := &live{topic: "t", look: func(context.Context) (sample, error) {
		if running.Add(1) > 1 {
			t.Error("two looks run at the same time")
		}
		defer running.Add(-1)
		<-answer
		return sample{value: looks.Add(1)}, nil
	}}
	var viewers sync.WaitGroup
	for range 100 {
		viewers.Go(func() {
			q := &request{Dashboard: d, ctx: t.Context()}
			if value, err := q.sample(one); err != nil || value != int64(1) {
				t.Errorf("the sample of a viewer is %v, %v", value, err)
			}
		})
	}
	answer <- struct{}{}
	viewers.Wait()
	redistest.Want(t, "looks", looks.Load(), int64(1))
	stop()
	close(answer)
	h.wait()
}

// A page must not show a sample from before a change that its viewer made.
func TestAPageShowsTheStateAfterTheChange(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	h := newHub(stopping, 1, time.Minute)
	q := &request{Dashboard: &Dashboard{hub: h, stopping: stopping}, ctx: t.Context()}
	var state atomic.Int64
	one := &live{topic: "t", queue: "q"}
	one.look = func(context.Context) (sample, error) { return sample{value: state.Load()}, nil }
	for i := range int64(10) {
		state.Store(i)
		h.changed("")
		value, err := q.sample(one)
		if err != nil || value != i {
			t.Fatalf("the sample is %v, %v; want %d", value, err, i)
		}
	}
	stop()
	h.wait()
}

// A failed look must tell the viewers, and the next successful look must send the page again.
func TestViewersAreToldThatRedisIsAway(t *testing.T) {
	t.Parallel()
	topic := &topic{looked: make(chan struct{}), changed: make(chan struct{})}
	var err error
	topic.look = func(context.Context) (sample, error) { return sample{value: "v", mark: "m"}, err }
	versions := func() int {
		topic.update(t.Context(), time.Second)
		return topic.result().version
	}
	redistest.Want(t, "first look", versions(), 1)
	redistest.Want(t, "the same mark", versions(), 1)
	err = errors.New("away")
	redistest.Want(t, "failed", versions(), 2)
	redistest.Want(t, "still failed", versions(), 2)
	err = nil
	redistest.Want(t, "recovered", versions(), 3)
}

// A topic that is found must not be forgotten before its finder uses it. Regression: the loop ended in between, and the
// stream never got an update.
func TestATopicThatIsFoundIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		h := newHub(stopping, 100, time.Minute)
		one := &live{topic: "t", look: func(context.Context) (sample, error) { return sample{}, nil }}
		found := h.topicOf(one)
		<-time.After(keepLoopFor - time.Second) // by the clock of the bubble
		if h.topicOf(one) != found {
			t.Error("the topic was forgotten too early")
		}
		redistest.Want(t, "whether the found topic is forgotten", h.forget(found), false)
		<-time.After(3 * time.Second)
		synctest.Wait()
		if h.topicOf(one) != found {
			t.Error("the topic was forgotten after somebody found it")
		}
		stop()
		h.wait()
	})
}

// A viewer for whom there is no room must start no loop, and topics that nobody watches any more must have a limit.
func TestThereAreNoMoreTopicsThanAllowed(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	h := newHub(stopping, 1, time.Minute)
	one := func(name string) *live {
		return &live{topic: name, look: func(context.Context) (sample, error) { return sample{}, nil }}
	}
	first := redistest.Must(h.watch(one("a"), "token"))
	if _, err := h.watch(one("b"), "other"); !errors.As(err, &noRoom{}) {
		t.Errorf("a second viewer: got %v", err)
	}
	redistest.Want(t, "topics", len(h.topics), 1)
	h.leave(first, "token")
	for i := range 10 * leastTopics {
		h.leave(redistest.Must(h.watch(one(fmt.Sprint(i)), "token")), "token")
	}
	redistest.Want(t, "topics after many viewers, one after the other", len(h.topics), leastTopics/2)
	redistest.Want(t, "counted topics of the token", h.topicsOf["token"], leastTopics/2)
	redistest.Want(t, "tokens with viewers", len(h.viewersOf), 0)
	stop()
	h.wait()
}

// Two looks at a topic must not follow each other at once, however often viewers change something.
func TestChangesCauseNoLooksWithoutAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		h := newHub(stopping, 100, time.Minute)
		looks := 0
		one := &live{topic: "t", queue: "q", look: func(context.Context) (sample, error) {
			looks++
			return sample{value: looks}, nil
		}}
		h.topicOf(one)
		synctest.Wait()
		changes := func() {
			for range 1000 {
				h.changed("q")
				<-time.After(time.Millisecond) // by the clock of the bubble
			}
			synctest.Wait()
		}
		changes()
		redistest.Want(t, "looks that nobody waits for", looks, 1)
		redistest.Must(h.watch(one, "token"))
		changes()
		if most := int(time.Second/leastInterval) + 2; looks < 3 || looks > most {
			t.Errorf("%d looks in a second, want at most %d", looks, most)
		}
		stop()
		h.wait()
	})
}

// The parts that viewers share must have a limit, although each viewer may vary the address.
func TestSharedPartsAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	i := slices.IndexFunc(pages, func(p page) bool { return p.path == "" })
	q := r.request(v)
	l := redistest.Must(pages[i].live(q))
	redistest.Must(q.sample(l))
	topic := r.dashboard.hub.topicOf(l)
	last := topic.result()
	for n := range 2 * maxCachedParts {
		q.r.URL.RawQuery = fmt.Sprint("x=", n)
		redistest.Must(q.cachedPart(pages[i], l, topic, last))
	}
	topic.mu.Lock()
	defer topic.mu.Unlock()
	if len(topic.parts) > maxCachedParts {
		t.Errorf("%d parts are kept", len(topic.parts))
	}
}

// A viewer for whom there is no room must be told so: a browser asks again for a stream that is refused.
func TestOneViewerTooManyIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.MaxViewers = 1 })
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	first := v.watch("live-overview")
	first.next()
	name, _ := v.watch("live-overview").next()
	redistest.Want(t, "event", name, "stop")
	res, err := v.http.Head(v.base + "session")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	redistest.Want(t, "status of the session", res.StatusCode, http.StatusNoContent)
}

// An update that cannot be rendered must end the stream, and not make the page load itself again and again.
func TestABrokenUpdateDoesNotReloadThePage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer([]access.Verb{access.Inspect}, "*"))
	l := &live{topic: "t", part: "overview-live", look: func(context.Context) (sample, error) { return sample{}, nil },
		data: func(any) (any, error) { return nil, errors.New("broken") }}
	topic := &topic{parts: map[partKey]*cachedPart{}}
	text, _, ended := q.event(page{template: "overview"}, l, topic, topic.result(), nil)
	contains(t, string(text), "event: stop\n", "because of a defect")
	redistest.Want(t, "whether the stream ends", ended, true)
}

// After a change, a stream must not bring back the state before it. Regression: the page of a message that was
// cancelled showed it as scheduled again.
func TestAStreamShowsNoStateFromBeforeTheChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, id := range []string{"a", "b"} {
		r.send(r.Queue, id, "p", bridge.In(time.Hour))
	}
	v := r.viewer(access.Verbs(), "*")
	address, _ := strings.CutPrefix(messageAddress(r.Queue, "a"), "message")
	first := v.watch("live-message" + address)
	if _, update := first.next(); !strings.Contains(words(update), "waits for its time") {
		t.Fatal(update)
	}
	first.end()
	r.dashboard.messageTurns.mu.Lock()
	r.dashboard.messageTurns.last = time.Now().Add(time.Hour) // it is never the turn of this message
	r.dashboard.messageTurns.mu.Unlock()
	v.wantAct("cancel", r.Queue, "a", nil)
	if _, update := v.watch("live-message" + address).next(); strings.Contains(words(update), "waits for its time") {
		t.Errorf("the stream brings back the state before the change:\n%s", words(update))
	}
}

// The streams of the same part must share the text of an update. Regression: each built its own, and held it until its
// viewer had read it.
func TestStreamsShareTheTextOfAnUpdate(t *testing.T) {
	t.Parallel()
	part := &rendered{update: []byte(event("update", "the whole")), seenPart: &seenPart{digest: 100}}
	part.add("a", "piece a")
	part.add("b", "piece b")
	same := func(one, other []byte) bool { return &one[0] == &other[0] }
	seen := func(digest uint64) *seenPart {
		return &seenPart{digest: digest, ids: part.ids, digests: []uint64{part.digests[0], 0}}
	}
	redistest.Want(t, "the whole is shared", same(part.since(nil), part.since(nil)), true)
	changes := part.since(seen(1))
	redistest.Want(t, "changes", string(changes), event("update", "piece b"))
	redistest.Want(t, "changes are shared", same(changes, part.since(seen(1))), true)
	for digest := range uint64(50) {
		part.since(seen(digest))
	}
	redistest.Want(t, "texts of changes", len(part.changes), maxChangeEvents)
	redistest.Want(t, "the whole for further ones", same(part.since(seen(49)), part.update), true)
	redistest.Want(t, "no change", part.since(&seenPart{digest: 100}) == nil, true)
}
