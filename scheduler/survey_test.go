package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// foreign returns the name of a queue that the other of two live schedulers owns.
func foreign(me, other string) string {
	for i := 0; ; i++ {
		if queue := fmt.Sprint("queue-", i); owner([]string{me, other}, queue) == other {
			return queue
		}
	}
}

// An owner may be alive but unable to drain: without permission, cut off from one node, or stuck. Then any scheduler
// must drain the queue once it is overdue, but not before, and must not take it over.
func TestOverdueQueueIsDrainedByAnyone(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	b := start(t, s, prefix, func(c *Config) { c.SurveyInterval, c.Overdue = 100*time.Millisecond, 500*time.Millisecond })
	other := "01ZZZZZZZZZZZZZZZZZZZZZZZZ"
	queue := foreign(b.Status().Bridge, other)
	beatForOther := func() {
		queuetest.Do(t, c, "ZADD", lua.NewGlobals(prefix).Bridges, fmt.Sprint(queuetest.Now(t, c).UnixMilli()), other)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		beatForOther()
		return len(b.Status().Live) == 2, "the other is not seen"
	})
	due := time.UnixMilli(queuetest.Now(t, c).UnixMilli())
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, fmt.Sprint(due.UnixMilli()), "a")
	if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), []string{queue}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		beatForOther()
		return len(queuetest.Entries(t, c, prefix, queue)) == 1, "not drained"
	})
	if late := lua.EntryTime(queuetest.Entries(t, c, prefix, queue)[0].EntryID).Sub(due); late < 500*time.Millisecond {
		t.Errorf("drained by another than the owner only %v after the due time", late)
	}
	if b.owns(queue) {
		t.Error("the queue moved although its owner lives")
	}
}

// A producer that only runs ZADD adds no token, so a survey must find its message and poke the loop. A survey must also
// give notice of a queue that has work for a keeper, but not again and again of entries that nobody reads.
func TestSurveyPokesLoopsThatSleepPastTheirHead(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	other := queue + "-2"
	noticed := make(chan string, 1000)
	b := start(t, s, prefix, func(c *Config) {
		c.SurveyInterval, c.Notice = 200*time.Millisecond, func(q string) {
			select {
			case noticed <- q:
			default:
			}
		}
	})
	if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), []string{queue, other}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		l := b.owners.drainer(queue)
		return l != nil && l.sleepsBeyond(time.Hour), "not asleep"
	})
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, "1", "a")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, queue)) == 1,
			"not drained"
	})
	waitForNotice := func() {
		t.Helper()
		select {
		case q := <-noticed:
			if q != queue {
				t.Errorf("a notice of %s", q)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no notice of a queue with an entry")
		}
	}
	waitForNotice() // of the drain
	waitForNotice() // of the first survey that finds the entry
	queuetest.Do(t, c, "XADD", lua.NewKeys(prefix, queue).Stream, "*", "id", "b")
	waitForNotice()
	queuetest.Do(t, c, "XGROUP", "CREATE", lua.NewKeys(prefix, queue).Stream, "g", "0")
	waitForNotice()
	more := lua.NewKeys(prefix, other).Stream
	for range 3 { // each survey finds a new entry in the other queue, and this queue unchanged
		queuetest.Do(t, c, "XADD", more, "*", "id", "c")
		select {
		case q := <-noticed:
			if q == queue {
				t.Fatal("a notice of a queue that has not changed, and that nobody reads")
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no notice of a queue with another entry")
		}
	}
	queuetest.Do(t, c, "XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", lua.NewKeys(prefix, queue).Stream, ">")
	for range 3 { // while a group holds an entry, each survey gives notice
		waitForNotice()
	}
}

// If the key of a queue's tokens is of another type, nothing wakes the loop of the queue. Its messages must then be
// late by the survey interval at most, and the failure must be logged once.
func TestQueueWithoutTokensIsDrained(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	var book queuetest.LogBook
	start(t, s, prefix, func(c *Config) { c.SurveyInterval, c.Logger = 200*time.Millisecond, book.Logger() })
	keys := lua.NewKeys(prefix, queue)
	queuetest.Do(t, c, "SET", keys.Wake, "no stream")
	for i := range 3 {
		items := []lua.Item{{ID: fmt.Sprint("m", i), When: lua.After(100 * time.Millisecond)}}
		if _, err := lua.Enqueue(t.Context(), c, keys, lua.Token{}, items, lua.Durability{}); err != nil {
			t.Fatal(err)
		}
		if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), []string{queue}); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return len(queuetest.Entries(t, c, prefix, queue)) == i+1, "not drained"
		})
	}
	if n := book.Count("survey is failing"); n != 1 || book.Count("key "+keys.Wake+" holds a string") == 0 {
		t.Errorf("%d times failing: %v", n, book.Turns())
	}
	queuetest.Do(t, c, "DEL", keys.Wake)
	redistest.Eventually(t, 10*time.Second,
		func() (bool, string) { return book.Count("survey works again") == 1, "not logged" })
}

// The scan of all keys must find a queue that is not registered, and must register and drain it. It must leave out keys
// of other types and of invalid names.
func TestUnregisteredQueueIsFound(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, shared *redistest.Server) {
		s := shared
		if shared == redistest.Shared(t) {
			s = redistest.Own(t) // the shared server holds keys of many tests, which the scan would read
		}
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, "1", "a")
		queuetest.Do(t, c, "SET", lua.NewKeys(prefix, "string").Due, "not a schedule")
		queuetest.Do(t, c, "ZADD", prefix+":{bad/name}:due", "1", "a")
		start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return len(queuetest.Entries(t, c, prefix, queue)) == 1,
				"not drained"
		})
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			names, err := Queues(t.Context(), c, prefix)
			return err == nil && fmt.Sprint(names) == fmt.Sprint([]string{queue}), fmt.Sprint("registered: ", names, err)
		})
	})
}

// A step of the scan must read a limited number of keys, and all steps together must find each queue.
func TestDiscoveryWalksInBoundedSteps(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	cmds := make(rueidis.Commands, 0, 6000)
	for i := range 5000 {
		cmds = append(cmds, c.B().Set().Key(fmt.Sprint("other-", i)).Value("x").Build())
	}
	const queues = 300
	for i := range queues {
		cmds = append(cmds, c.B().Zadd().Key(lua.NewKeys(prefix, fmt.Sprint("queue-", i)).Due).ScoreMember().ScoreMember(1e13,
			"a").Build())
	}
	for _, reply := range c.DoMulti(t.Context(), cmds...) {
		if err := reply.Error(); err != nil {
			t.Fatal(err)
		}
	}
	d := discoverer{client: c, prefix: prefix}
	found, steps := map[string]bool{}, 0
	for ; steps == 0 || d.cursor != 0; steps++ {
		names, err := d.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			found[name] = true
		}
	}
	if len(found) != queues || steps < 4 || steps > 10 {
		t.Errorf("%d queues in %d steps, want %d in about 6", len(found), steps, queues)
	}
}

// nextName must return the name after the given one, and the first name after the last, so that each has its turn.
func TestFollowingNodeComesRound(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "b", "b": "d", "c": "d", "d": "f", "f": "b", "z": "b"} {
		if got := nextName([]string{"b", "d", "f"}, name); got != want {
			t.Errorf("after %q comes %q, want %q", name, got, want)
		}
	}
	if got := nextName(nil, "a"); got != "" {
		t.Errorf("of none: %q", got)
	}
}

// A survey looks at no more than lua.MaxSurvey partitions. Those that the scheduler owns must have their turn within
// few surveys, and the partitions of others in the end. With many owned partitions the interval must become shorter.
func TestSurveyTakesTurns(t *testing.T) {
	t.Parallel()
	const interval = 4500 * time.Millisecond
	for _, c := range []struct {
		known, owned int
		own, all     int           // surveys until each of them was looked at
		least        time.Duration // between two surveys; zero = as configured
	}{
		{known: 0, owned: 0},
		{known: 1, owned: 0, all: 1},
		{known: lua.MaxSurvey, owned: 10, own: 1, all: 1},
		{known: lua.MaxSurvey + 1, owned: 250, own: 2, all: 2, least: 4050 * time.Millisecond},
		{known: 1000, owned: 100, own: 1, all: 6},
		{known: 1000, owned: 225, own: 1, all: 31},
		{known: 1000, owned: 250, own: 2, all: 30, least: 4050 * time.Millisecond},
		{known: 1000, owned: 1000, own: 4, all: 4, least: interval / 2},
		{known: 600, owned: 500, own: 3, all: 4, least: interval / 2},
	} {
		s := &Scheduler{cfg: Config{SurveyInterval: interval}, owners: ownership{owned: map[string]*drainer{}}}
		for i := range c.known {
			name := fmt.Sprintf("queue-%04d", i*7919%10000)
			s.owners.known = append(s.owners.known, name)
			if i < c.owned {
				s.owners.owned[name] = &drainer{}
			}
		}
		seen, own := map[string]bool{}, 0
		for pass := 1; pass <= c.all; pass++ {
			turn := s.nextToSurvey()
			if len(turn) > lua.MaxSurvey {
				t.Errorf("%+v: %d in one pass", c, len(turn))
			}
			for _, name := range turn {
				if !seen[name] && s.owners.owned[name] != nil {
					own++
				}
				seen[name] = true
			}
			if pass == c.own && own != c.owned {
				t.Errorf("%+v: %d of the own ones in %d passes", c, own, pass)
			}
		}
		if len(seen) != c.known {
			t.Errorf("%+v: %d of all in %d passes", c, len(seen), c.all)
		}
		if got, want := s.surveyInterval(), cmp.Or(c.least, interval); got != want {
			t.Errorf("%+v: every %v, want %v", c, got, want)
		}
	}
}

// newTestWaker returns a waker that sends the queues of its tokens to woken.
func newTestWaker(t *testing.T, d dialer, prefix string, woken chan string) *waker {
	cfg := Config{Blocking: d.Client(t, queuetest.WithoutPings, forBlocking), Prefix: prefix,
		WakeBlock: time.Second}.withDefaults()
	return newWaker(cfg, func(queue string) { woken <- queue }, func(err error) { t.Log(err) })
}

// A waker must read each token once, from more streams than one read takes, also from before the read began. After a
// change of its queues it must go on, and after Reset it must read all tokens again.
func TestWakerReadsTokensOnceAndInAnyNumberOfStreams(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	woken := make(chan string, 100)
	w := newTestWaker(t, s, prefix, woken)
	queues := make([]string, 2010)
	for i := range queues {
		queues[i] = fmt.Sprintf("queue-%04d", i)
	}
	wake := func(queue string) {
		queuetest.Do(t, c, "XADD", lua.NewKeys(prefix, queue).Wake, "MAXLEN", "1", "*", "k", "v")
	}
	wake(queues[5]) // before the read begins
	w.watch(queues)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-woken:
			if got != want {
				t.Errorf("woken %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q was not woken", want)
		}
	}
	expect(queues[5])
	wake(queues[5])
	expect(queues[5])
	wake(queues[len(queues)-1])
	expect(queues[len(queues)-1])
	queuetest.Do(t, c, "XADD", lua.NewGlobals(prefix).Wake, "MAXLEN", "1", "*", "k", "v")
	expect("")
	w.watch(queues[:10]) // interrupts the reads, but not the positions in the streams
	wake(queues[9])
	expect(queues[9])
	w.Reset()
	got := []string{<-woken, <-woken, <-woken}
	slices.Sort(got)
	if want := []string{"", queues[5], queues[9]}; !slices.Equal(got, want) {
		t.Errorf("from the beginning: %q, want %q", got, want)
	}
	asked := time.Now()
	cancel()
	<-done
	if took := time.Since(asked); took > time.Second {
		t.Errorf("a blocked read ended %v after its context", took)
	}
	if len(woken) != 0 {
		t.Errorf("%d tokens were read twice", len(woken))
	}
}

// clustered makes a scheduler believe that it talks to a cluster, with queues in different slots.
type clustered struct{ *redistest.Server }

type clusterClient struct{ rueidis.Client }

func (clusterClient) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }

func (s clustered) Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client {
	return clusterClient{s.Server.Client(t, opts...)}
}

// On a cluster one request cannot have keys of several queues. With a request for each queue, a broken queue must be
// logged alone, and all others must be drained and woken.
func TestOnAClusterEachQueueHasItsOwnRequests(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	queues := make([]string, 40)
	for i := range queues {
		queues[i] = fmt.Sprintf("queue-%02d", i)
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queues[i]).Due, "1", "a")
	}
	queuetest.Do(t, c, "SET", lua.NewKeys(prefix, queues[7]).Seen, "x")
	if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), queues); err != nil {
		t.Fatal(err)
	}
	b := start(t, clustered{s}, prefix, func(c *Config) { c.SurveyInterval = 100 * time.Millisecond })
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := 0
		for _, queue := range queues {
			n += len(queuetest.Entries(t, c, prefix, queue))
		}
		return n == len(queues), fmt.Sprint(n, " of ", len(queues), " drained")
	})
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		keys := b.waker.Keys()
		return len(keys) == len(queues), fmt.Sprint(len(keys), " wake streams")
	})
	if n := b.log.count(`msg="survey is failing" queue=` + queues[7]); n != 1 || b.log.count("is failing") != 1 {
		t.Errorf("log:\n%s", b.log)
	}
	if _, err := newProducer(t, c, prefix).Schedule(t.Context(), queues[3],
		producer.Message{Delay: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, queues[3])) == 2,
			"not woken"
	})
}
