package stream

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// queues makes queues with a backlog each, as partners of a rig, and their WorkerQueues.
func (r *rig) queues(backlog map[string]int, names ...string) (rigs map[string]*queuetest.Rig, all []WorkerQueue) {
	r.T.Helper()
	rigs = map[string]*queuetest.Rig{}
	for _, name := range names {
		one := r.On(r.Queue + "-" + name)
		one.Groups("g")
		one.Fill(backlog[name])
		rigs[name] = one
		all = append(all, WorkerQueue{Queue: one.Queue})
	}
	return rigs, all
}

// serve runs a worker of several queues until the test ends or stop is called.
func (r *rig) serve(cfg WorkerConfig) (w *Worker, stop func() error) {
	r.T.Helper()
	cfg.Client, cfg.Blocking, cfg.Prefix, cfg.Group = r.Client, r.Blocking, r.Prefix, "g"
	w, err := NewWorker(cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	r.T.Cleanup(func() { stop() })
	return w, stop
}

// calls lists the queues of the messages that a handler was given, in order.
type calls struct {
	mu   sync.Mutex
	list []string
}

func (c *calls) add(m *Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, m.Queue[strings.LastIndex(m.Queue, "-")+1:])
	return len(c.list)
}

func (c *calls) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.list...)
}

// With a backlog in all queues, the first one is processed before the second one is read, and so on.
func TestStrictOrderUnderABacklog(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for _, slots := range []int{1, 16} {
			r, each := newRig(t, s), 150
			_, all := r.queues(map[string]int{"high": each, "mid": each, "low": each}, "high", "mid", "low")
			var got calls
			_, stop := r.serve(WorkerConfig{Queues: all, Strict: true, Concurrency: slots, Handler: func(_ context.Context,
				m *Message) error {
				got.add(m)
				return nil
			}})
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				return len(got.all()) == 3*each, fmt.Sprint(len(got.all()))
			})
			if err := stop(); err != nil {
				t.Error(err)
			}
			for i, name := range got.all() {
				want := []string{"high", "mid", "low"}[i/each]
				// entries read while handlers of the queue before had still to begin may be a little ahead
				if name != want && i%each >= slots && i%each < each-slots {
					t.Fatalf("%d slots: delivery %d is of %s, want %s", slots, i, name, want)
				}
			}
		}
	})
}

// If a message of the first queue arrives while the last one has a backlog, it is handled next, except for messages
// already being handled or read.
func TestStrictFirstQueueOvertakesABacklog(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const slots = 8
	rigs, all := r.queues(map[string]int{"low": 2000}, "high", "low")
	var got calls
	var after atomic.Int64 // messages begun before the one of high
	sent := make(chan int, 1)
	r.serve(WorkerConfig{Queues: all, Strict: true, Concurrency: slots, Handler: func(ctx context.Context, m *Message) error {
		n := got.add(m)
		if m.Queue == all[0].Queue {
			after.Store(int64(n))
			return nil
		}
		if n == 100 {
			rigs["high"].Ready("urgent")
			got.mu.Lock()
			sent <- len(got.list)
			got.mu.Unlock()
		}
		loop.Sleep(ctx, time.Millisecond)
		return nil
	}})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return after.Load() > 0, "it was not handled" })
	if behind := int(after.Load()) - <-sent; behind > 300 { // 100 ms at most: no machine handles 8 × 100 then
		t.Errorf("%d of the other queue came before it", behind)
	}
}

// While all have a backlog, each queue gets its share of deliveries; none starves.
func TestWeightsAreSharesOfDeliveries(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		const each = 1200
		_, all := r.queues(map[string]int{"six": each, "three": each, "one": each}, "six", "three", "one")
		all[0].Weight, all[1].Weight = 6, 3
		var got calls
		enough := make(chan struct{})
		_, stop := r.serve(WorkerConfig{Queues: all, Concurrency: 12, Handler: func(_ context.Context, m *Message) error {
			if got.add(m) == each {
				close(enough)
			}
			return nil
		}})
		select {
		case <-enough:
		case <-time.After(30 * time.Second):
			t.Fatal(len(got.all()))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		counts := map[string]int{}
		for _, name := range got.all()[:each] {
			counts[name]++
		}
		for name, share := range map[string]float64{"six": 0.6, "three": 0.3, "one": 0.1} {
			if part := float64(counts[name]) / each; part < share-0.06 || part > share+0.06 {
				t.Errorf("%s has %.3f of the deliveries, want %.1f: %v", name, part, share, counts)
			}
		}
	})
}

// A queue with a key of another type, or a deleted one, does not keep a worker from the others. Nor does it count as
// one with a backlog, although it is the first.
func TestQueueThatFailsDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		r := newRig(t, redistest.Shared(t))
		const each = 300
		rigs, all := r.queues(map[string]int{"deleted": each, "fine": each}, "wrong", "deleted", "fine")
		r.Do("DEL", rigs["wrong"].Keys.Stream)
		r.Do("SET", rigs["wrong"].Keys.Stream, "x")
		var got calls
		w, stop := r.serve(WorkerConfig{Queues: all, Strict: strict, Concurrency: 6, Handler: func(_ context.Context,
			m *Message) error {
			if got.add(m) == 50 {
				k := rigs["deleted"].Keys
				r.Do("DEL", k.Stream, k.Due, k.Payload, k.Meta)
			}
			return nil
		}})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n := 0
			for _, name := range got.all() {
				if name == "fine" {
					n++
				}
			}
			return n == each, fmt.Sprint(n, " of ", each)
		})
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			err := w.Ready()
			return err != nil && strings.Contains(err.Error(), all[0].Queue), fmt.Sprint(err)
		})
		rigs["deleted"].Ready("again") // its group is created again
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			list := got.all()
			return list[len(list)-1] == "deleted", fmt.Sprint(len(list))
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// Each queue has its own policy, and a stop leaves nothing pending in any of them.
func TestQueuesOfAWorkerKeepTheirPolicies(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	rigs, all := r.queues(map[string]int{"once": 20, "often": 20}, "once", "often")
	rigs["once"].Policy(map[string]string{"max_attempts": "1"})
	rigs["often"].Policy(map[string]string{"max_attempts": "5", "retry_min_ms": "3600000", "retry_max_ms": "3600000"})
	var handled atomic.Int64
	w, stop := r.serve(WorkerConfig{Queues: all, Concurrency: 4, Handler: func(context.Context, *Message) error {
		handled.Add(1)
		return errors.New("no")
	}})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		stats := w.Stats()
		return stats.Dead == 20 && stats.Retried == 20, fmt.Sprintf("%+v", stats)
	})
	redistest.Want(t, "letters", rigs["once"].Length(rigs["once"].Keys.Dead), 20)
	redistest.Want(t, "retries", rigs["often"].Number("ZCARD", rigs["often"].Keys.Due), 20)
	if err := stop(); err != nil {
		t.Error(err)
	}
	for name, one := range rigs {
		redistest.Want(t, "pending of "+name, one.Pending("g"), 0)
		redistest.Want(t, "consumers of "+name, len(one.Consumers("g")), 0)
	}
}

// A stop in the middle of a backlog lets handlers finish, and releases the rest. The worker never holds more than the
// slots, over all queues.
func TestStopOfSeveralQueuesIsClean(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		r := newRig(t, redistest.Shared(t))
		const each, slots = 400, 7
		rigs, all := r.queues(map[string]int{"a": each, "b": each, "c": each}, "a", "b", "c")
		var running gauge
		var done atomic.Int64
		middle := make(chan struct{})
		_, stop := r.serve(WorkerConfig{Queues: all, Strict: strict, Concurrency: slots, Handler: func(ctx context.Context,
			_ *Message) error {
			running.enter()
			defer running.leave()
			if done.Add(1) == each/2 {
				close(middle)
			}
			loop.Sleep(ctx, time.Millisecond)
			return nil
		}})
		<-middle
		if err := stop(); err != nil {
			t.Error(err)
		}
		left := int64(0)
		for name, one := range rigs {
			redistest.Want(t, "pending of "+name, one.Pending("g"), 0)
			info := one.Number("XLEN", one.Keys.Stream) + one.Number("ZCARD", one.Keys.Due)
			left += info
		}
		redistest.Want(t, "done or left", done.Load()+left, 3*each)
		if most := running.most.Load(); most > slots {
			t.Errorf("%d handlers ran at once", most)
		}
	}
}

func TestQueuesOfAWorkerAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	two := []WorkerQueue{{Queue: "a"}, {Queue: "b"}}
	for what, change := range map[string]func(*WorkerConfig){
		"queue and queues": func(c *WorkerConfig) { c.Queue, c.Queues = "a", two },
		"none":             func(*WorkerConfig) {},
		"strict alone":     func(c *WorkerConfig) { c.Queue, c.Strict = "a", true },
		"twice":            func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a"}, {Queue: "a"}} },
		"a bad name":       func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a{b}"}} },
		"a weight below":   func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a", Weight: -1}} },
		"a weight above":   func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a", Weight: 1001}} },
		"strict weights":   func(c *WorkerConfig) { c.Strict, c.Queues = true, []WorkerQueue{{Queue: "a", Weight: 1}} },
		"too many": func(c *WorkerConfig) {
			for i := range MaxQueues + 1 {
				c.Queues = append(c.Queues, WorkerQueue{Queue: fmt.Sprint("q", i)})
			}
		},
	} {
		cfg := WorkerConfig{Client: r.Client, Blocking: r.Blocking, Group: "g", Handler: func(context.Context, *Message) error {
			return nil
		}}
		change(&cfg)
		if _, err := NewWorker(cfg); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A hundred queues with one slot: each one is served.
func TestManyQueuesShareOneSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var names []string
	backlog := map[string]int{}
	for i := range MaxQueues {
		names = append(names, fmt.Sprintf("q%02d", i))
		backlog[names[i]] = 2
	}
	_, all := r.queues(backlog, names...)
	var got calls
	_, stop := r.serve(WorkerConfig{Queues: all, Concurrency: 1, Handler: func(_ context.Context, m *Message) error {
		got.add(m)
		return nil
	}})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return len(got.all()) == 2*MaxQueues, fmt.Sprint(len(got.all()))
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The order alone: which claim gets free slots.
func TestOrderOfQueues(t *testing.T) {
	t.Parallel()
	claims := func(lines []*line, whys ...need) (all []*claim) {
		for i, why := range whys {
			if why >= 0 {
				all = append(all, &claim{line: lines[i], why: why, most: 1, looked: new(uint64)})
			}
		}
		return all
	}
	const none = need(-1)
	for _, c := range []struct {
		what   string
		strict bool
		busy   []int
		served []float64
		whys   []need
		want   int // index of the line; -1 = none
	}{
		{"the first with work", true, []int{1, 1}, []float64{9, 0}, []need{needWork, needWork}, 0},
		{"nobody while the first reads", true, []int{1, 1}, []float64{0, 0}, []need{none, needWork}, -1},
		{"nobody looks behind one with work", true, []int{1, 0}, []float64{0, 0}, []need{none, needLook}, -1},
		{"the first may look", true, []int{0, 1}, []float64{0, 0}, []need{needLook, needWork}, 0},
		{"the second, when the first has none", true, []int{0, 1}, []float64{0, 0}, []need{none, needWork}, 1},
		{"what is owned comes first", true, []int{1, 0}, []float64{0, 0}, []need{needWork, needOwned}, 1},
		{"all look when none has work", true, []int{0, 0}, []float64{0, 0}, []need{none, needLook}, 1},
		{"who was served less", false, []int{1, 1}, []float64{9, 0}, []need{needWork, needWork}, 1},
		{"nobody while that one reads", false, []int{1, 1}, []float64{9, 0}, []need{needWork, none}, -1},
		{"who looks", false, []int{1, 0}, []float64{0, 9}, []need{needWork, needLook}, 1},
		{"what is owned, before who looks", false, []int{0, 1}, []float64{0, 0}, []need{needLook, needOwned}, 1},
	} {
		o := &order{strict: c.strict}
		for i := range c.busy {
			o.lines = append(o.lines, &line{rank: i, weight: 1, busy: c.busy[i], served: c.served[i]})
		}
		o.claims = claims(o.lines, c.whys...)
		got := -1
		if next := o.next(); next != nil {
			got = next.line.rank
		}
		redistest.Want(t, c.what, got, c.want)
	}
}

// Over a slow connection the looks at empty queues follow each other without a gap. Regression: they took every free
// slot, and the queue with a backlog was never read.
func TestLooksDoNotStarveTheQueueWithABacklog(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		s := newSlots(1)
		s.order = &order{strict: strict}
		for rank := range 12 {
			s.order.lines = append(s.order.lines, &line{rank: rank, weight: 1})
		}
		busy := s.order.lines[11]
		busy.busy = 1
		looked := make([]uint64, 11)
		look := func(rank int) *claim {
			return &claim{line: s.order.lines[rank], why: needLook, most: 1, looked: &looked[rank], got: make(chan int, 1)}
		}
		s.mu.Lock()
		var looks []*claim
		for rank := range looked {
			looks = append(looks, look(rank))
		}
		s.order.claims = slices.Clone(looks)
		work := &claim{line: busy, why: needWork, most: 1, got: make(chan int, 1)}
		s.order.claims = append(s.order.claims, work)
		n := 0
		for ; n < 100 && len(work.got) == 0; n++ {
			s.grant()
			for rank, c := range looks {
				if len(c.got) > 0 { // it found nothing, and claims again at once
					looks[rank] = look(rank)
					s.order.claims = append(s.order.claims, looks[rank])
					s.free++
				}
			}
		}
		s.mu.Unlock()
		redistest.Want(t, "grants until the queue with the backlog reads", n, 12)
	}
}

// A queue without work does not save up its share for later.
func TestShareIsNotSaved(t *testing.T) {
	t.Parallel()
	s := newSlots(0)
	a, b := &line{weight: 1}, &line{rank: 1, weight: 1}
	s.order = &order{lines: []*line{a, b}}
	s.changed(a, 1, 0)
	for range 1000 {
		s.put(1)
		if n := s.takeInTurn(t.Context(), &claim{line: a, why: needWork, most: 1, got: make(chan int, 1)}); n != 1 {
			t.Fatal(n)
		}
		s.changed(a, 0, 1)
	}
	s.changed(b, 1, 0)
	if b.served < 998 {
		t.Errorf("it begins with %v, the other has %v", b.served, a.served)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := s.takeInTurn(ctx, &claim{line: a, most: 1, got: make(chan int, 1)}); n != 0 || len(s.order.claims) != 0 {
		t.Errorf("%d, and %d claims are left", n, len(s.order.claims))
	}
}

// A queue whose deliveries cannot be settled keeps no slots from the others. Regression: the slots of its deliveries
// stayed taken until they were settled, so a queue with a key of another type stopped every queue of the worker.
func TestAQueueThatCannotBeSettledKeepsNoSlots(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		r := newRig(t, redistest.Shared(t))
		const slots, each = 2, 50
		rigs, all := r.queues(map[string]int{"bad": each}, "bad", "fine")
		bad := rigs["bad"].Keys
		r.Do("DEL", bad.Payload)
		r.Do("SET", bad.Payload, "of somebody else")
		var got calls
		w, stop := r.serve(WorkerConfig{Queues: all, Strict: strict, Concurrency: slots, Handler: func(_ context.Context,
			m *Message) error {
			got.add(m)
			if m.Queue == all[0].Queue {
				return errors.New("no")
			}
			return nil
		}})
		count := func(queue string) (n int) {
			for _, name := range got.all() {
				if name == queue {
					n++
				}
			}
			return n
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return count("bad") >= slots, fmt.Sprint(got.all())
		})
		rigs["fine"].Fill(each)
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			return count("fine") == each, fmt.Sprint(count("fine"), " of ", each)
		})
		if n := count("bad"); n > 2*slots {
			t.Errorf("%d messages of the bad queue are held, want at most twice as many as there are slots", n)
		}
		err := w.Ready()
		redistest.Want(t, "the bad queue is named", err != nil && strings.Contains(err.Error(), all[0].Queue), true)

		r.Do("DEL", bad.Payload)
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			return count("bad") == each && w.Stats().Retried == each, fmt.Sprintf("%d, %+v", count("bad"), w.Stats())
		})
		redistest.Want(t, "stop", stop(), nil)
		w.slots.mu.Lock()
		redistest.Want(t, "free slots", w.slots.free, slots)
		w.slots.mu.Unlock()
	}
}

// A partition whose settlements failed reads nothing until all its waiting deliveries are settled. Regression: after
// one settled batch it read with all slots again. On a connection that failed now and then the worker held more and
// more.
func TestAPartitionReadsWhenAllOfItIsSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const slots = settleBatch + 100
	rigs, all := r.queues(map[string]int{"flaky": 3 * slots}, "flaky", "fine")
	client := &gatedClient{Client: r.Client, key: rigs["flaky"].Keys.Stream, script: shaOfAck()}
	r.Client = client
	var returned atomic.Int64
	w, stop := r.serve(WorkerConfig{Queues: all, Concurrency: slots, Handler: func(context.Context, *Message) error {
		returned.Add(1)
		return nil
	}})
	tries := func(n int64) {
		t.Helper()
		before := client.refused.Load()
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			return client.refused.Load() >= before+n, fmt.Sprint(client.refused.Load(), " refused calls")
		})
	}
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return w.served[0].settle.without.Load() == slots, fmt.Sprint(returned.Load(), " handlers have returned")
	})
	tries(1)
	client.hangs.Store(true)
	client.allowed.Store(1)
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged > 0, fmt.Sprintf("%+v", w.Stats())
	})
	tries(1) // the next call hangs for its whole time limit
	client.hangs.Store(false)
	if s := w.Stats(); s.Acknowledged >= slots || s.Delivered != slots {
		t.Errorf("%d of %d messages are settled, and %d were read", s.Acknowledged, slots, s.Delivered)
	}
	client.allowed.Store(1_000_000)
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 3*slots, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Want(t, "stop", stop(), nil)
}

func shaOfAck() string {
	sum := sha1.Sum([]byte(lua.Source("ack")))
	return hex.EncodeToString(sum[:])
}

// gatedClient refuses a script that is called with a certain key, except for some calls.
type gatedClient struct {
	rueidis.Client
	key, script      string
	allowed, refused atomic.Int64
	hangs            atomic.Bool // before it refuses, until the call's time limit
}

func (c *gatedClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	words := command.Commands()
	if words[0] == "EVALSHA" && words[1] == c.script && slices.Contains(words, c.key) && c.allowed.Add(-1) < 0 {
		if c.hangs.Load() {
			<-ctx.Done()
		}
		c.refused.Add(1)
		return rueidis.NewErrorResult(lua.ErrUnavailable)
	}
	return c.Client.Do(ctx, command)
}
