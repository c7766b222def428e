package push

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// isFirstAttempt reports whether a request is the first one for its message.
func isFirstAttempt(r request) bool { return r.Get(HeaderAttempt) == "1" }

// Each kind of answer ends its message as it should: success acknowledges, 410 and the statuses in DeadStatus make a
// dead letter at once, and all others cause retries. The payload of each message tells the target how to answer.
func TestEveryAnswerHasItsOutcome(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	v := newReceiver(t, func(_ int, r request, w http.ResponseWriter) {
		switch string(r.body) {
		case "ok":
			w.WriteHeader(http.StatusNoContent)
		case "gone":
			http.Error(w, "no such \x01 customer\nany more", http.StatusGone)
		case "chosen":
			http.Error(w, strings.Repeat("ü", 400), http.StatusUnprocessableEntity)
		case "once", "slow down":
			if !isFirstAttempt(r) {
				return
			}
			if string(r.body) == "slow down" {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			w.WriteHeader(http.StatusInternalServerError)
		case "never":
			http.Error(w, "bad", http.StatusBadRequest)
		case "elsewhere":
			w.Header().Set("Location", "https://example.com/x")
			w.WriteHeader(http.StatusFound)
		}
	})
	target := to(v.URL)
	target.DeadStatus = []int{422}
	g.set(target)
	queuetest.Do(t, g.r.Client, "HSET", lua.NewKeys(g.prefix, "q").Policy, "history", "1000", "history_ms", "3600000")
	g.run()
	scheduled := time.Now()
	for _, what := range []string{"ok", "gone", "chosen", "once", "slow down", "never", "elsewhere"} {
		g.schedule("q", bridge.NewMessage{ID: what, Payload: []byte(what)})
	}
	g.awaitDone("q")
	dead := g.dead("q")
	for id, want := range map[string]struct {
		reason, says string
		attempt      int
	}{
		"gone":      {lua.ReasonDeadLetter, "answered 410 Gone: no such   customer any more", 1},
		"chosen":    {lua.ReasonDeadLetter, "answered 422 Unprocessable Entity: üü", 1},
		"never":     {lua.ReasonMaxAttempts, "answered 400 Bad Request: bad", 3},
		"elsewhere": {lua.ReasonMaxAttempts, "answered 302 Found, and redirects are not followed (to https://example.com)", 3},
	} {
		got := dead[id]
		if got.Reason != want.reason || !strings.Contains(got.Error, want.says) || got.Attempt != want.attempt {
			t.Errorf("%s: reason %s, attempt %d, error %q", id, got.Reason, got.Attempt, got.Error)
		}
	}
	redistest.Want(t, "dead letters", len(dead), 4)
	key := lua.NewKeys(g.prefix, "q").History
	story, err := g.r.Client.Do(t.Context(), g.r.Client.B().Xrange().Key(key).Start("-").End("+").Build()).AsXRangeSlices()
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"answered 422 Unprocessable", "answered 500 Internal", "answered 429 Too Many"} {
		isIn := func(e rueidis.XRangeSlice) bool { return strings.Contains(fmt.Sprint(e), says) }
		redistest.Want(t, "in the history: "+says, slices.ContainsFunc(story, isIn), true)
	}
	var times []time.Time
	for _, r := range v.requests() {
		if r.Get(HeaderID) == "q:slow%20down" {
			at, err := time.Parse(dueLayout, r.Get(HeaderDue))
			if err != nil {
				t.Error(err)
			}
			times = append(times, at)
		}
		redistest.Want(t, "queue", r.Get(HeaderQueue), "q")
		redistest.Want(t, "group", r.Get(HeaderGroup), "g")
	}
	if len(times) != 2 || times[1].Before(scheduled.Add(time.Second-100*time.Millisecond)) {
		t.Errorf("Retry-After: 1 led to attempts that were due at %v, scheduled at %v", times, scheduled)
	}
}

// A target that is down uses up no attempts, even of messages that have only a few: the circuit opens, and rounds of
// probes are sent. When a probe arrives, the circuit closes and all messages are posted.
func TestCircuitOpensUsesNoAttemptsAndCloses(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const all, slots = 60, 4
	var down, probes atomic.Int64 // down: 1 = the target is down
	var busy, most atomic.Int64   // probes at the target now, and at most at one time
	down.Store(1)
	v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) {
		if down.Load() == 1 {
			// A request that was in flight when the circuit opened is no probe.
			if g.log.Count("its circuit is open") > 0 && probes.Add(1) > slots {
				n := busy.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				<-time.After(10 * time.Millisecond) // time for a concurrent probe to arrive
				busy.Add(-1)
			}
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	target := to(v.URL)
	target.Concurrency, target.Failures, target.Interval, target.MaxInterval = slots, 5, 20*time.Millisecond, 40*time.Millisecond
	g.set(target)
	var batch []bridge.NewMessage
	for i := range all {
		batch = append(batch, bridge.NewMessage{ID: fmt.Sprint("m", i)})
	}
	g.schedule("q", batch...)
	g.run()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return probes.Load() >= slots+8, fmt.Sprint(probes.Load(), " probes: ", g.log.Lines("circuit"))
	})
	redistest.Want(t, "dead letters while it is down", len(g.dead("q")), 0)
	redistest.Want(t, "messages that are left", g.left("q"), int64(all))
	before := len(v.requests())
	down.Store(0)
	g.awaitDone("q")
	redistest.Want(t, "dead letters", len(g.dead("q")), 0)
	redistest.Want(t, "more probes at a time than requests", most.Load() > slots, false)
	used, arrived := map[string]int{}, map[string]bool{}
	for i, r := range v.requests() {
		if i >= before {
			arrived[r.Get(HeaderID)] = true
		}
		used[r.Get(HeaderAttempt)]++
	}
	redistest.Want(t, "messages that arrived", len(arrived), all)
	if used["3"] > 0 || used["2"] > 2*target.Failures {
		t.Errorf("attempts by number: %v", used)
	}
	redistest.Want(t, "lines that the circuit opened", g.log.Count("its circuit is open"), 1)
	redistest.Want(t, "lines that the circuit closed", g.log.Count("its circuit is closed"), 1)
}

// Messages that a target refuses, as poison, open no circuit and delay no others. If the circuit opened, the others
// would wait for a probe in an hour. The refused messages become dead letters.
func TestRefusedMessagesDelayNoOthers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusInternalServerError, http.StatusUnprocessableEntity, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			v := newReceiver(t, func(_ int, r request, w http.ResponseWriter) {
				if strings.HasPrefix(string(r.body), "poison") {
					w.WriteHeader(status)
				}
			})
			target := to(v.URL)
			target.Failures, target.Interval, target.MaxInterval = 2, time.Hour, time.Hour
			g.set(target)
			g.schedulePoison("q", 20, 200)
			g.run()
			g.awaitDone("q")
			dead := g.dead("q")
			redistest.Want(t, "dead letters", len(dead), 20)
			for id, letter := range dead {
				redistest.Want(t, "attempts of "+id, letter.Attempt, 3)
			}
			redistest.Want(t, "lines of the circuit", len(g.log.Lines("circuit")), 0)
			redistest.Want(t, "requests", len(v.requests()), 180+3*20) // 20 messages have three attempts each
		})
	}
}

// Messages to which a target answers as if it were down open its circuit. All other messages arrive after a few
// rounds of probes, not only after one probe for each bad message.
func TestMessagesThatLookLikeAnOutageDelayOthersBriefly(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	served := map[string]bool{}
	var mu sync.Mutex
	v := newReceiver(t, func(_ int, r request, w http.ResponseWriter) {
		if strings.HasPrefix(string(r.body), "poison") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		served[r.Get(HeaderID)] = true
	})
	target := to(v.URL)
	// The interval doubles with each round of probes, so one probe for each bad message would take hours.
	target.Failures, target.Interval, target.MaxInterval = 2, minInterval, time.Hour
	target.Concurrency = 16
	g.set(target)
	g.schedulePoison("q", 60, 200)
	g.run()
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return len(served) == 140, fmt.Sprint(len(served), " of 140 are served")
	})
}

// Refusals of single messages, and other answers that show that the target works, leave the circuit closed.
func TestCircuitCountsWhatSaysThatTheTargetIsDown(t *testing.T) {
	t.Parallel()
	var book queuetest.LogBook
	ended := 0
	c := newCircuit(Target{Failures: 3}.WithDefaults(), book.Logger())
	c.begin(func() { ended++ })
	failed := errors.New("x")
	for _, down := range []bool{true, true, false, true, true, false} { // never three in a row
		redistest.Want(t, "given back", c.record(false, down, failed), false)
	}
	redistest.Want(t, "workers ended", ended, 0)
	for range 3 {
		redistest.Want(t, "given back", c.record(false, true, failed), false)
	}
	redistest.Want(t, "workers ended", ended, 1)
	redistest.Want(t, "given back by a request that was in flight", c.record(false, true, failed), true)
	c.record(false, false, nil) // a request from before the circuit opened: only a probe closes it
	wait := c.wait()
	if wait > DefaultInterval || wait < DefaultInterval*3/4 {
		t.Error("the first wait: ", wait)
	}
	for i := range 20 {
		redistest.Want(t, "probes", c.begin(func() { ended++ }), min(1<<i, MaxConcurrency))
		for range 2 {
			redistest.Want(t, "given back by a probe", c.record(true, true, failed), true)
		}
	}
	redistest.Want(t, "rounds that ended", ended, 21) // the first workers, and 20 rounds of probes
	if wait := c.wait(); wait > DefaultMaxInterval || wait < DefaultMaxInterval*3/4 {
		t.Error("the longest wait: ", wait)
	}
	c.begin(func() { ended++ })
	redistest.Want(t, "given back", c.record(true, false, failed), false) // a refusal is an answer
	redistest.Want(t, "wait of a closed circuit", c.wait(), time.Duration(0))
	redistest.Want(t, "lines about the circuit", len(book.Lines("circuit")), 2) // opened, closed
	never := newCircuit(Target{Failures: -1}.WithDefaults(), book.Logger())
	never.begin(func() { t.Error("a circuit that is switched off opened") })
	for range 1000 {
		never.record(false, true, failed)
	}
}

// A runner follows targets that are set, changed and removed. An invalid target beside them is logged once.
func TestRunnerFollowsTheTargets(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first, second := newReceiver(t, nil), newReceiver(t, nil)
	g.set(to(first.URL))
	broken := lua.NewKeys(g.prefix, "broken").Push
	g.set(Target{Queue: "broken", Group: "other", URL: "https://example.com"})
	queuetest.Do(t, g.r.Client, "HSET", broken, "g", `{"url":"https://example.com/?secret"}`)
	queuetest.Do(t, g.r.Client, "SET", lua.NewKeys(g.prefix, "typed").Push, "x")
	if _, err := lua.Register(t.Context(), g.r.Client, lua.NewGlobals(g.prefix), []string{"typed"}); err != nil {
		t.Fatal(err)
	}
	g.run()
	// arrives schedules a message, and waits until it arrives at a receiver.
	arrives := func(v *receiver, id string) {
		t.Helper()
		g.schedule("q", bridge.NewMessage{ID: id})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			is := func(r request) bool { return r.Get(HeaderID) == "q:"+id }
			return slices.ContainsFunc(v.requests(), is), id + " does not arrive"
		})
	}
	arrives(first, "a")
	change := g.set(to(second.URL))
	redistest.Want(t, "change", change, Change{Changed: true})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { // the worker of the first URL still takes some
		g.schedule("q", bridge.NewMessage{})
		return len(second.requests()) > 0, "the change is not taken up"
	})
	g.awaitDone("q")
	arrives(second, "b")
	if err := g.store.Remove(t.Context(), "q", "g"); err != nil {
		t.Fatal(err)
	}
	consumers := func() int64 { return int64(len(groupConsumers(t, g, "q", "g"))) }
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return consumers() == 0, "the worker does not end" })
	g.schedule("q", bridge.NewMessage{ID: "kept"})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return queuetest.Integer(t, g.r.Client, "XLEN", lua.NewKeys(g.prefix, "q").Stream) == 1, "the message is not kept"
	})
	redistest.Want(t, "lines of wrong targets", g.log.Count("a target of callbacks is wrong"), 2)
	redistest.Want(t, "lines of a key of another type", g.log.Count("push: "+lua.ErrWrongType.Error()), 1)
	redistest.Want(t, "secrets in the log", g.log.Count("secret"), 0)
	if err := g.store.Remove(t.Context(), "q", "g"); !errors.Is(err, ErrNoTarget) {
		t.Error(err)
	}
}

func groupConsumers(t *testing.T, g *rig, queue, group string) []string {
	t.Helper()
	c := g.r.Client
	list, err := c.Do(t.Context(), c.B().XinfoConsumers().Key(lua.NewKeys(g.prefix, queue).Stream).Group(group).Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(list))
	for i, one := range list {
		names[i] = fmt.Sprint(one)
	}
	return names
}

// Runners share the messages of a target's group, as workers do: each message is posted by one of them.
func TestRunnersShareTheWork(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	var gate sync.WaitGroup
	gate.Add(2) // no request is answered before two are in flight; each Runner has one slot, so both must post
	var once [2]sync.Once
	v := newReceiver(t, func(n int, _ request, _ http.ResponseWriter) {
		if n <= 2 {
			once[n-1].Do(gate.Done)
		}
		gate.Wait()
	})
	target := to(v.URL)
	target.Concurrency = 1
	g.set(target)
	g.run()
	g.run()
	var batch []bridge.NewMessage
	for i := range 200 {
		batch = append(batch, bridge.NewMessage{ID: fmt.Sprint("m", i)})
	}
	g.schedule("q", batch...)
	g.awaitDone("q")
	seen := map[string]int{}
	for _, r := range v.requests() {
		seen[r.Get(HeaderID)]++
	}
	redistest.Want(t, "messages", len(seen), 200)
	redistest.Want(t, "requests", len(v.requests()), 200)
}

// A runner that is stopped during a request lets the request end if it has time for that. Otherwise it releases the
// message, and no attempt is counted.
func TestAStopLosesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	arrived, until := make(chan struct{}, 10), make(chan struct{})
	v := newReceiver(t, func(int, request, http.ResponseWriter) { arrived <- struct{}{}; <-until })
	g.set(to(v.URL))
	r, err := NewRunner(Config{Redis: g.r, Prefix: g.prefix, ShutdownTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	stop := g.start(r.Run)
	g.schedule("q", bridge.NewMessage{ID: "m"})
	<-arrived
	stop()
	stop = g.run()
	<-arrived
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	close(until)
	<-ended
	g.awaitDone("q")
	for _, r := range v.requests() {
		redistest.Want(t, "attempt", r.Get(HeaderAttempt), "1")
	}
	redistest.Want(t, "requests", len(v.requests()), 2)
}

// With thousands of queues without targets, reading the targets costs two requests, and a few more when a queue gets
// its first target.
func TestALookAtManyQueuesIsCheap(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	queues := make([]string, 1200)
	for i := range queues {
		queues[i] = fmt.Sprint("queue-", i)
	}
	if _, err := lua.Register(t.Context(), g.r.Client, lua.NewGlobals(g.prefix), queues); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"queue-0", "queue-7", "queue-1199"} {
		queuetest.Do(t, g.r.Client, "HSET", lua.NewKeys(g.prefix, queue).Push, "g", "x")
	}
	c := &counter{Client: g.r.Client}
	store := NewStore(c, g.prefix)
	// look reads all targets. had says which queues had targets at the last look.
	look := func(had map[string]bool) {
		t.Helper()
		queues, err := store.queues(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := store.all(t.Context(), queues, had)
		redistest.Want(t, "found", fmt.Sprint(len(found.texts), found.err()), "3 <nil>")
	}
	look(nil)
	if c.n.Load() > 60 {
		t.Errorf("the first look took %d commands", c.n.Load())
	}
	had := map[string]bool{"queue-0": true, "queue-7": true, "queue-1199": true}
	c.n.Store(0)
	look(had)
	if c.n.Load() != 1+3+3 { // the registry, 1,197 queues, and the queues with targets
		t.Errorf("a look took %d commands", c.n.Load())
	}
}

// counter counts commands.
type counter struct {
	rueidis.Client
	n atomic.Int64
}

func (c *counter) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c.n.Add(1)
	return c.Client.Do(ctx, cmd)
}

func (c *counter) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	c.n.Add(int64(len(cmds)))
	return c.Client.DoMulti(ctx, cmds...)
}
