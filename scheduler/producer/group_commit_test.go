package producer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Messages of many callers must be stored in few script calls, and the messages of each caller must keep their order.
func TestConcurrentCallersShareCommits(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	const callers, each = 256, 20
	at := queuetest.Now(t, c).Add(time.Hour)
	made := make([][]string, callers)
	before := s.Calls(t)["evalsha"]
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range each {
				m := Message{At: at}
				if j == each/2 {
					m.ID = "the same" // only one caller may store it
				}
				r, err := p.Schedule(context.Background(), queue, m)
				switch {
				case m.ID == "" && err == nil:
					made[i] = append(made[i], r.ID)
				case m.ID == "" || err != nil && !errors.Is(err, ErrDuplicate):
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	calls := s.Calls(t)["evalsha"] - before
	t.Logf("%d messages in %d calls", callers*each, calls)
	if calls > callers*each/10 {
		t.Errorf("%d script calls for %d messages: commits are not shared", calls, callers*each)
	}
	byDue := c.B().Zrange().Key(lua.NewKeys(prefix, queue).Due).Min("0").Max("-1").Build()
	order, err := c.Do(t.Context(), byDue).AsStrSlice()
	if err != nil || len(order) != callers*(each-1)+1 {
		t.Fatalf("%d messages are scheduled, want %d; %v", len(order), callers*(each-1)+1, err)
	}
	place := make(map[string]int, len(order))
	for i, id := range order {
		place[id] = i
	}
	for i, ids := range made {
		if !slices.IsSortedFunc(ids, func(a, b string) int { return place[a] - place[b] }) {
			t.Errorf("the messages of caller %d have equal due times and lost their order", i)
		}
	}
}

// A commit must have at most MaxCommit messages and about MaxCommitBytes, but at least one message.
func TestCommitsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		sizes  []int // of payloads
		want   []int // messages per commit
	}{
		"by count":           {func(c *Config) { c.MaxCommit = 2 }, []int{1, 1, 1, 1, 1}, []int{2, 2, 1}},
		"by bytes":           {func(c *Config) { c.MaxCommitBytes = 1000 }, []int{300, 300, 300, 900, 10}, []int{2, 1, 1, 1}},
		"one is always sent": {func(c *Config) { c.MaxCommitBytes = 10 }, []int{500, 500}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{}.withDefaults()
			c.change(&cfg)
			l := newGroupCommit(newRoute(&Producer{cfg: cfg}, "q"), 0)
			for i, n := range c.sizes {
				w := waiting{call: newBatchCall(t.Context(), 1), item: lua.Item{ID: fmt.Sprint(i), Payload: make([]byte, n)}}
				l.add([]waiting{w})
			}
			l.running = 1
			var got []int
			for batch := l.nextBatch(&committer{}, 0); batch != nil; batch = l.nextBatch(&committer{}, len(batch)) {
				got = append(got, len(batch))
			}
			if !slices.Equal(got, c.want) || l.running != 0 || l.inFlight != 0 {
				t.Errorf("commits of %v, want %v; %d running, %d messages in flight", got, c.want, l.running, l.inFlight)
			}
		})
	}
}

// The messages of a call that fits into a commit must not be split, because the second part would have to wait for the
// first one. Each number is the number of messages of a call, or of a commit; a commit takes at most 10.
func TestCommitCutsNoCallThatFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ calls, want []int }{
		{[]int{3}, []int{3}}, {[]int{10}, []int{10}}, {[]int{23}, []int{10, 10, 3}}, {[]int{4, 4, 4, 4}, []int{8, 8}},
		{[]int{4, 10, 1}, []int{4, 10, 1}}, {[]int{4, 11, 1}, []int{10, 6}}, {[]int{1, 1, 9}, []int{2, 9}},
		{[]int{30, 4, 8}, []int{10, 10, 10, 4, 8}},
	} {
		g := &groupCommit{producer: &Producer{cfg: Config{MaxCommit: 10, MaxCommitBytes: 1 << 20}}}
		for _, n := range c.calls {
			call := newBatchCall(t.Context(), n)
			for range n {
				g.waiting = append(g.waiting, waiting{call: call})
			}
		}
		var got []int
		for len(g.waiting) > 0 {
			n := g.commitSize()
			got, g.waiting = append(got, n), g.waiting[n:]
		}
		redistest.Want(t, fmt.Sprint("commits of ", c.calls), fmt.Sprint(got), fmt.Sprint(c.want))
	}
}

// A second commit must go out beside the first only if enough messages wait, and a third must not. The end of a call
// must not overtake its own messages that are in flight.
func TestCommitsInFlight(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	l := newGroupCommit(newRoute(&Producer{cfg: cfg}, "q"), 0)
	add := func(c *batchCall, n int) {
		t.Helper()
		for i := range n {
			l.add([]waiting{{call: c, item: lua.Item{ID: fmt.Sprint(len(l.waiting), "-", i)}}})
		}
	}
	one := func() *batchCall { return newBatchCall(t.Context(), 1) }
	wantWorth := func(what string, worth bool) {
		t.Helper()
		if l.isWorthACommit() != worth {
			t.Errorf("%s: worth a commit is %t, with %d waiting and %d in flight", what, !worth, len(l.waiting), l.inFlight)
		}
	}
	wantWorth("nothing waits", false)
	add(one(), 1)
	wantWorth("one waits and nothing is in flight", true)
	l.running = 2
	l.nextBatch(&committer{}, 0)
	add(one(), minFurtherCommit-1)
	wantWorth("few wait", false)
	add(one(), 1)
	wantWorth("many wait", true)
	batch := one()
	add(batch, cfg.MaxCommit+minFurtherCommit) // more than fits into a commit
	l.nextBatch(&committer{}, 0)
	wantWorth("the end of a batch waits behind its beginning", false)
	l.nextBatch(&committer{}, 1)
	if l.inFlight != cfg.MaxCommit || len(l.waiting) != 2*minFurtherCommit {
		t.Errorf("%d in flight, %d waiting", l.inFlight, len(l.waiting))
	}
	if n := len(newGroupCommit(newRoute(&Producer{cfg: cfg}, "q"), 0).idle); n != maxInFlight {
		t.Errorf("%d commits at once", n)
	}
}

// If a connection dies after the server has run the script, the caller has no reply. The producer repeats the commit
// under its token: nothing may be stored twice, not even entries of the stream, and each message must get the verdict
// of the first try.
func TestLostReplyIsRepeatedWithoutDuplicates(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
		p, k := newProducer(t, proxy.Client(t), prefix), lua.NewKeys(prefix, queue)
		if _, err := p.Schedule(t.Context(), queue, Message{ID: "known", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		want, ready := 1, 0
		for cuts := 1; cuts <= 3; cuts++ {
			proxy.CutAfterForward(cuts, "EVALSHA", "EVAL")
			results, err := p.ScheduleBatch(t.Context(), queue, []Message{{}, {ID: "known"}, {Delay: time.Hour},
				{ID: fmt.Sprint("own-", cuts), Dedup: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if i == 1 != errors.Is(r.Err, ErrDuplicate) || i != 1 && r.Err != nil {
					t.Errorf("%d cuts, message %d: %v", cuts, i, r.Err)
				}
			}
			want, ready = want+1, ready+2
			if got := queuetest.Integer(t, c, "ZSCORE", k.Due, results[2].ID); got != results[2].Due.UnixMilli() {
				t.Errorf("due at %d, the receipt says %d", got, results[2].Due.UnixMilli())
			}
		}
		if proxy.Cuts() < 6 {
			t.Errorf("only %d connections were cut", proxy.Cuts())
		}
		if n, m := queuetest.Integer(t, c, "ZCARD", k.Due), queuetest.Integer(t, c, "XLEN", k.Stream); n != int64(want) ||
			m != int64(ready) {
			t.Errorf("%d scheduled and %d ready, want %d and %d", n, m, want, ready)
		}
	})
}

// multis is a client that counts requests of several commands.
type multis struct {
	rueidis.Client
	n atomic.Int64
}

func (m *multis) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	m.n.Add(1)
	return m.Client.DoMulti(ctx, cmds...)
}

// losesFirstReplies is a client that loses the replies to its first commit, and runs meanwhile before the commit is
// repeated.
type losesFirstReplies struct {
	rueidis.Client
	due       string // the first key of the script that schedules a single message
	lost      atomic.Bool
	meanwhile func()
}

func (d *losesFirstReplies) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	isCommit := len(words) > 3 && words[0] == "EVALSHA" && words[3] == d.due
	reply := d.Client.Do(ctx, cmd)
	if isCommit && !d.lost.Swap(true) {
		d.meanwhile()
		return rueidis.NewErrorResult(io.EOF)
	}
	return reply
}

func (d *losesFirstReplies) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	replies := d.Client.DoMulti(ctx, cmds...)
	if !d.lost.Swap(true) {
		d.meanwhile()
		for i := range replies {
			replies[i] = rueidis.NewErrorResult(io.EOF)
		}
	}
	return replies
}

// If the reply to a commit is lost, and its message is delivered before the commit is repeated, the message must not be
// stored once more.
func TestLostReplyOfAMessageThatIsDeliveredMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix := s.Client(t), s.Prefix(t)
		for _, size := range []int{1, lua.MostOneBytes + 1} {
			queue := redistest.Queue(t)
			k := lua.NewKeys(prefix, queue)
			queuetest.Do(t, c, "SCRIPT", "LOAD", lua.Source("enqueue_fresh"))
			queuetest.Do(t, c, "SCRIPT", "LOAD", lua.Source("enqueue_one"))
			p := newProducer(t, &losesFirstReplies{Client: c, due: k.Due, meanwhile: func() {
				queuetest.Do(t, c, "EVAL", "return redis.call('ZINCRBY', KEYS[1], -4e12, redis.call('ZRANGE', KEYS[1], 0, 0)[1])",
					"1", k.Due)
				if d, err := lua.Drain(t.Context(), c, k, 10, 1<<20); err != nil || d.Moved != 1 {
					t.Errorf("drained %+v, %v", d, err)
				}
			}}, prefix)
			message := Message{Payload: make([]byte, size), Delay: time.Second}
			if _, err := p.Schedule(t.Context(), queue, message); err != nil {
				t.Fatal(err)
			}
			redistest.Want(t, "messages scheduled once more", queuetest.Integer(t, c, "ZCARD", k.Due), 0)
			redistest.Want(t, "payloads left", queuetest.Integer(t, c, "HLEN", k.Payload), 0)
			redistest.Want(t, "messages delivered", queuetest.Integer(t, c, "XLEN", k.Stream), 1)
		}
	})
}

// If the reply to a commit is lost, the message is found in the schedule, so that it is not scheduled once more. The
// server remembers the repeat, because the first try may come after it.
func TestLostReplyOfAMessageThatIsDueMuchLater(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	k := lua.NewKeys(prefix, queue)
	queuetest.Do(t, c, "SCRIPT", "LOAD", lua.Source("enqueue_one"))
	dueTime := func() int64 {
		const script = "return tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])"
		return queuetest.Integer(t, c, "EVAL", script, "1", k.Due)
	}
	var first int64
	p := newProducer(t, &losesFirstReplies{Client: c, due: k.Due, meanwhile: func() {
		first = dueTime()
	}}, prefix)
	receipt, err := p.Schedule(t.Context(), queue, Message{Payload: []byte("p"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "due time in the receipt", receipt.Due.UnixMilli(), first)
	redistest.Want(t, "due time in the schedule", dueTime(), first)
	redistest.Want(t, "messages", queuetest.Integer(t, c, "ZCARD", k.Due), 1)
	redistest.Want(t, "remembered commits", queuetest.Integer(t, c, "ZCARD", k.Seen), 1)
}

// ones is a client that counts the tries of EnqueueOne.
type ones struct {
	multis
	due string // the first key of the script
	n   atomic.Int64
}

func (o *ones) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if words := cmd.Commands(); len(words) > 3 && words[0] == "EVALSHA" && words[3] == o.due {
		o.n.Add(1)
	}
	return o.multis.Do(ctx, cmd)
}

// A queue that keeps a history is served by the script that writes the history. EnqueueOne is tried only once.
func TestSingleMessageOfAQueueWithAHistory(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	prefix, queue := s.Prefix(t), redistest.Queue(t)
	k := lua.NewKeys(prefix, queue)
	c := &ones{multis: multis{Client: s.Client(t)}, due: k.Due}
	queuetest.Do(t, c, "HSET", k.Policy, "history", "1000")
	p := newProducer(t, c, prefix)
	for range 3 {
		if _, err := p.Schedule(t.Context(), queue, Message{Payload: []byte("p"), Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Want(t, "tries of EnqueueOne", c.n.Load(), 1)
	redistest.Want(t, "calls of EnqueueFresh", c.multis.n.Load(), 3)
	redistest.Want(t, "changes in the history", queuetest.Integer(t, c, "XLEN", k.History), 3)
}

// If the server refuses the cheaper kind of commit, here because the permissions of the user are older than it, this
// commit and the following ones must use the other kind.
func TestCommitIsMadeTheWayThatTheServerAllows(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	admin, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	queuetest.Do(t, admin, "ACL", "SETUSER", "older", "on", ">pw", "~*", "&*", "+@all", "-hexists")
	c := &multis{Client: s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "older", "pw" })}
	p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	large := make([]byte, lua.MostOneBytes+1)
	for i := range 3 {
		if _, err := p.Schedule(t.Context(), queue, Message{Payload: large, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "scheduled", queuetest.Integer(t, admin, "ZCARD", k.Due), int64(i+1))
		redistest.Want(t, "payloads", queuetest.Integer(t, admin, "HLEN", k.Payload), int64(i+1))
		redistest.Want(t, "tries of the cheaper kind", c.n.Load(), 1)
	}
}

// The refusals of a commit are remembered beside its token. The next commit must delete them, even if it has only
// messages with generated IDs.
func TestNextCommitForgetsWhatTheOneBeforeRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	twice := []Message{{ID: "m", Delay: time.Hour}, {ID: "m", Delay: time.Hour}}
	results, err := p.ScheduleBatch(t.Context(), queue, twice)
	if err != nil || !errors.Is(results[1].Err, ErrDuplicate) {
		t.Fatal(err, results)
	}
	if _, err := p.Schedule(t.Context(), queue, Message{Payload: []byte("p"), Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "tokens and marks", queuetest.Integer(t, c, "ZCARD", k.Seen), 1)
}

// A commit that is refused in both kinds leaves its payloads behind, and if the key of the schedule has another type,
// no sweep deletes them. So the cheaper kind must not be tried again before the server has accepted a commit.
func TestRefusedCommitsDoNotFillTheServer(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	admin, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	c, k := &multis{Client: s.Client(t)}, lua.NewKeys(prefix, queue)
	p := newProducer(t, c, prefix)
	large := make([]byte, lua.MostOneBytes+1)
	schedule := func() error {
		_, err := p.Schedule(t.Context(), queue, Message{Payload: large, Delay: time.Hour})
		for _, g := range p.routes[queue].commits {
			if g.freshFrom.Load() != afterNextEnqueue {
				g.freshFrom.Store(0) // simulates the time passing
			}
		}
		return err
	}
	queuetest.Do(t, admin, "SET", k.Due, "no schedule")
	for range 3 {
		if err := schedule(); !errors.Is(err, lua.ErrWrongType) {
			t.Fatal(err)
		}
		redistest.Want(t, "payloads of refused messages", queuetest.Integer(t, admin, "HLEN", k.Payload), 1)
	}
	queuetest.Do(t, admin, "DEL", k.Due)
	for range 2 {
		if err := schedule(); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Want(t, "tries of the cheaper kind, one before and one after", c.n.Load(), 2)
}

// After a lost reply a repeat of Cancel finds nothing, and cannot tell whether the first try cancelled the message: the
// error must be ErrUncertain. A repeat of Reschedule finds the message, so its answer must be definite.
func TestLostReplyLeavesCancelUncertainAndRescheduleDone(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	prefix, queue, proxy := s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p := newProducer(t, proxy.Client(t), prefix)
	for _, id := range []string{"a", "b"} {
		if _, err := p.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := p.Cancel(t.Context(), queue, "nobody"); done || err != nil { // loads the script
		t.Fatal(done, err)
	}
	if _, err := p.Reschedule(t.Context(), queue, "a", time.Hour, time.Time{}); err != nil {
		t.Fatal(err)
	}
	loseReply(p, proxy)
	if due, err := p.Reschedule(t.Context(), queue, "a", time.Minute, time.Time{}); err != nil || due.IsZero() {
		t.Errorf("reschedule: %v, %v", due, err)
	}
	loseReply(p, proxy)
	if done, err := p.Cancel(t.Context(), queue, "a"); done || !errors.Is(err, ErrUncertain) {
		t.Errorf("cancel: %v, %v", done, err)
	}
	if done, err := p.Cancel(t.Context(), queue, "b"); !done || err != nil {
		t.Errorf("cancel without a cut: %v, %v", done, err)
	}
}

// A call must be repeated while the server is away, for RetryTimeout. Without a RetryTimeout (-1) it must fail at once.
func TestServerAwayIsRepeatedForTheRetryTimeout(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	prefix, queue := s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, s.Client(t, queuetest.WithoutPings), prefix)
	if _, err := p.Schedule(t.Context(), queue, Message{}); err != nil {
		t.Fatal(err)
	}
	hasty := newProducer(t, s.Client(t, queuetest.WithoutPings), prefix, func(c *Config) { c.RetryTimeout = -1 })
	if _, err := hasty.Schedule(t.Context(), queue, Message{}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	// A call on a connection that breaks may end with ErrUncertain. Wait until a call fails without a connection.
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		_, err := hasty.Schedule(t.Context(), queue, Message{})
		return errors.Is(err, lua.ErrUnavailable) && !errors.Is(err, ErrUncertain), fmt.Sprint(err)
	})
	answer := make(chan error, 1)
	go func() {
		_, err := p.Schedule(context.Background(), queue, Message{})
		answer <- err
	}()
	s.Start()
	if err := <-answer; err != nil {
		t.Errorf("the server was back within the timeout: %v", err)
	}
}

// Callers share commits. If the context of one caller ends, its message must not be sent later, and the others must not
// notice.
func TestCallersContextEndsAlone(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p, k := newProducer(t, proxy.Client(t), prefix), lua.NewKeys(prefix, queue)
	if _, err := p.Schedule(t.Context(), queue, Message{}); err != nil {
		t.Fatal(err)
	}
	idle := func() (bool, string) {
		l := p.routes[queue].groupCommit(0)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.running == 0, "the committer has not ended"
	}
	redistest.Eventually(t, 5*time.Second, idle)
	proxy.Stall(true)
	schedule := func(ctx context.Context, id string) chan error {
		answer := make(chan error, 1)
		go func() {
			_, err := p.Schedule(ctx, queue, Message{ID: id, Delay: time.Hour})
			answer <- err
		}()
		return answer
	}
	waitUntilWaiting := func(n int) {
		t.Helper()
		l := p.routes[queue].groupCommit(0)
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.running > 0 && len(l.waiting) == n, fmt.Sprint(len(l.waiting), " wait")
		})
	}
	gone, leave := context.WithCancel(t.Context())
	sent := schedule(gone, "sent") // its commit is in flight
	waitUntilWaiting(0)
	unsent := schedule(gone, "unsent")
	waitUntilWaiting(1)
	stays := schedule(t.Context(), "stays")
	waitUntilWaiting(2)
	leave()
	for name, answer := range map[string]chan error{"sent": sent, "unsent": unsent} {
		if err := <-answer; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUncertain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	proxy.Stall(false)
	if err := <-stays; err != nil {
		t.Errorf("the other caller: %v", err)
	}
	if err := c.Do(t.Context(), c.B().Zscore().Key(k.Due).Member("unsent").Build()).Error(); err == nil {
		t.Error("a message was sent after its caller had left")
	}
	if _, err := p.Schedule(gone, queue, Message{}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUncertain) {
		t.Errorf("with a context that has ended before: %v", err)
	}
}

// A producer keeps a limited number of messages that wait for a commit. Further callers must wait until there is room,
// or until their context ends.
func TestFullLineBlocksUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	prefix, queue, proxy := s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p := newProducer(t, proxy.Client(t), prefix, func(c *Config) { c.MaxCommit, c.RetryTimeout = 1, -1 })
	if _, err := p.Schedule(t.Context(), queue, Message{}); err != nil { // reads the partitions
		t.Fatal(err)
	}
	proxy.Stall(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	results, err := p.ScheduleBatch(ctx, queue, make([]Message, 40))
	if err != nil {
		t.Fatal(err)
	}
	uncertain := 0
	for i, r := range results {
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			t.Errorf("message %d: %v", i, r.Err)
		}
		if errors.Is(r.Err, ErrUncertain) {
			uncertain++
		}
	}
	if uncertain != 17 { // one in flight and 16 waiting; there was no room for the others
		t.Errorf("%d messages may have been stored, want 17", uncertain)
	}
	proxy.Stall(false)
}

// BenchmarkSchedule measures one caller, 256 callers that share commits, and large batches.
func BenchmarkSchedule(b *testing.B) {
	s := redistest.Shared(b)
	c, prefix, queue := s.Client(b), s.Prefix(b), redistest.Queue(b)
	p, err := New(Config{Client: c, Prefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	payload := make([]byte, 256)
	b.Run("one caller", func(b *testing.B) {
		for b.Loop() {
			if _, err := p.Schedule(b.Context(), queue, Message{Payload: payload, Delay: time.Hour}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("256 callers", func(b *testing.B) {
		b.SetParallelism(256 / 2)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := p.Schedule(context.Background(), queue, Message{Payload: payload, Delay: time.Hour}); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("batches of 1000", func(b *testing.B) {
		ms := make([]Message, 1000)
		for i := range ms {
			ms[i] = Message{Payload: payload, Delay: time.Hour}
		}
		for b.Loop() {
			if _, err := p.ScheduleBatch(b.Context(), queue, ms); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "messages/s")
	})
}
