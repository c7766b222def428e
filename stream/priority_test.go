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

// queues creates a queue for each name, with the group g and as many ready messages as backlog says. It returns a rig
// for each queue, and the WorkerQueues for a worker of all of them, in the order of the names.
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

// With strict order and a backlog in all queues, the worker must handle all messages of a queue before it reads the
// next queue.
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
				// At the change from one queue to the next the order may differ by as many messages as there are slots:
				// entries of the next queue are read while handlers of the queue before have yet to begin.
				if name != want && i%each >= slots && i%each < each-slots {
					t.Fatalf("%d slots: delivery %d is of %s, want %s", slots, i, name, want)
				}
			}
		}
	})
}

// If a message of the first queue arrives while the last one has a backlog, it must be handled next, except for
// messages that are being handled or read already.
func TestStrictFirstQueueOvertakesABacklog(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const slots = 8
	rigs, all := r.queues(map[string]int{"low": 2000}, "high", "low")
	var got calls
	var urgentIs atomic.Int64        // the urgent message is the n-th that is handled; 0 = not handled yet
	begunAtSend := make(chan int, 1) // how many messages had begun when the urgent one became ready
	r.serve(WorkerConfig{Queues: all, Strict: true, Concurrency: slots, Handler: func(ctx context.Context, m *Message) error {
		n := got.add(m)
		if m.Queue == all[0].Queue {
			urgentIs.Store(int64(n))
			return nil
		}
		if n == 100 {
			rigs["high"].Ready("urgent")
			got.mu.Lock()
			begunAtSend <- len(got.list)
			got.mu.Unlock()
		}
		loop.Sleep(ctx, time.Millisecond)
		return nil
	}})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return urgentIs.Load() > 0, "the urgent message was not handled"
	})
	// The look at the first queue may be late by shortBlock, 100 ms. In that time 8 slots handle at most 800 messages
	// of 1 ms each, and on a real machine fewer than 300.
	if behind := int(urgentIs.Load()) - <-begunAtSend; behind > 300 {
		t.Errorf("%d messages of the other queue came before the urgent one", behind)
	}
}

// While all queues have a backlog, each must get the share of the deliveries that its weight says, so that none
// starves. A queue without a weight has the weight 1.
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

// A queue whose stream is a key of another type, or was deleted, must not keep a worker from its other queues. Nor may
// such a queue count as one with a backlog: with strict order the queues behind it would never be read.
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
		rigs["deleted"].Ready("again") // the worker creates the group again
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			list := got.all()
			return list[len(list)-1] == "deleted", fmt.Sprint(len(list))
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// A worker must follow the policy of each of its queues, and a stop must leave nothing pending in any of them.
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

// A stop in the middle of a backlog must let the running handlers finish, and release all other entries. Over all
// queues together, the worker must never run more handlers than it has slots.
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
			left += one.Number("XLEN", one.Keys.Stream) + one.Number("ZCARD", one.Keys.Due)
		}
		redistest.Want(t, "done or left", done.Load()+left, 3*each)
		if most := running.most.Load(); most > slots {
			t.Errorf("%d handlers ran at once", most)
		}
	}
}

// NewWorker must refuse contradictory or invalid settings of queues, before the worker starts.
func TestQueuesOfAWorkerAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	two := []WorkerQueue{{Queue: "a"}, {Queue: "b"}}
	for what, change := range map[string]func(*WorkerConfig){
		"queue and queues":  func(c *WorkerConfig) { c.Queue, c.Queues = "a", two },
		"no queue":          func(*WorkerConfig) {},
		"strict, one queue": func(c *WorkerConfig) { c.Queue, c.Strict = "a", true },
		"one queue twice":   func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a"}, {Queue: "a"}} },
		"a bad name":        func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a{b}"}} },
		"a weight below":    func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a", Weight: -1}} },
		"a weight above":    func(c *WorkerConfig) { c.Queues = []WorkerQueue{{Queue: "a", Weight: 1001}} },
		"strict weights":    func(c *WorkerConfig) { c.Strict, c.Queues = true, []WorkerQueue{{Queue: "a", Weight: 1}} },
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

// A worker with the greatest number of queues (MaxQueues) and a single slot must serve each of the queues.
func TestManyQueuesShareOneSlot(t *testing.T) {
	redistest.Long(t)
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

// order.next must choose the claim that gets the free slots. Each case has two queues; whys says what each of them
// claims slots for.
func TestOrderOfQueues(t *testing.T) {
	t.Parallel()
	claims := func(shares []*queueShare, whys ...need) (all []*claim) {
		for i, why := range whys {
			if why >= 0 {
				all = append(all, &claim{share: shares[i], need: why, most: 1, lastLook: new(uint64)})
			}
		}
		return all
	}
	const none = need(-1)
	for _, c := range []struct {
		what   string
		strict bool
		busy   []int     // partitions with work, for each queue
		served []float64 // deliveries so far, for each queue
		whys   []need
		want   int // index of the queue; -1 = none of them may get slots now
	}{
		{"the first with work", true, []int{1, 1}, []float64{9, 0}, []need{needWork, needWork}, 0},
		{"no queue while the first one reads", true, []int{1, 1}, []float64{0, 0}, []need{none, needWork}, -1},
		{"no look at a queue behind one with work", true, []int{1, 0}, []float64{0, 0}, []need{none, needLook}, -1},
		{"the first may look", true, []int{0, 1}, []float64{0, 0}, []need{needLook, needWork}, 0},
		{"the second, when the first has no work", true, []int{0, 1}, []float64{0, 0}, []need{none, needWork}, 1},
		{"a claim for owned entries comes first", true, []int{1, 0}, []float64{0, 0}, []need{needWork, needOwned}, 1},
		{"any queue may look when none has work", true, []int{0, 0}, []float64{0, 0}, []need{none, needLook}, 1},
		{"weights: the queue that was served less", false, []int{1, 1}, []float64{9, 0}, []need{needWork, needWork}, 1},
		{"weights: no other while the least served one reads", false, []int{1, 1}, []float64{9, 0},
			[]need{needWork, none}, -1},
		{"weights: a look before a read", false, []int{1, 0}, []float64{0, 9}, []need{needWork, needLook}, 1},
		{"weights: a claim for owned entries before a look", false, []int{0, 1}, []float64{0, 0},
			[]need{needLook, needOwned}, 1},
	} {
		o := &order{strict: c.strict}
		for i := range c.busy {
			o.queues = append(o.queues, &queueShare{rank: i, weight: 1, busy: c.busy[i], served: c.served[i]})
		}
		o.claims = claims(o.queues, c.whys...)
		got := -1
		if next := o.next(); next != nil {
			got = next.share.rank
		}
		redistest.Want(t, c.what, got, c.want)
	}
}

// Over a slow connection the looks at empty queues follow each other without a gap. Regression: the looks took every
// free slot, and the queue with a backlog was never read.
func TestLooksDoNotStarveTheQueueWithABacklog(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		s := newSlots(1)
		s.order = &order{strict: strict}
		for rank := range 12 {
			s.order.queues = append(s.order.queues, &queueShare{rank: rank, weight: 1})
		}
		busy := s.order.queues[11]
		busy.busy = 1
		looked := make([]uint64, 11)
		look := func(rank int) *claim {
			return &claim{
				share:    s.order.queues[rank],
				need:     needLook,
				most:     1,
				lastLook: &looked[rank],
				granted:  make(chan int, 1),
			}
		}
		s.mu.Lock()
		var looks []*claim
		for rank := range looked {
			looks = append(looks, look(rank))
		}
		s.order.claims = slices.Clone(looks)
		work := &claim{share: busy, need: needWork, most: 1, granted: make(chan int, 1)}
		s.order.claims = append(s.order.claims, work)
		n := 0
		for ; n < 100 && len(work.granted) == 0; n++ {
			s.grant()
			for rank, c := range looks {
				if len(c.granted) > 0 { // the look finds nothing, returns its slot, and claims again at once
					looks[rank] = look(rank)
					s.order.claims = append(s.order.claims, looks[rank])
					s.free++
				}
			}
		}
		s.mu.Unlock()
		// Each of the 11 empty queues may look once before the read.
		redistest.Want(t, "grants until the queue with the backlog reads", n, 12)
	}
}

// A queue without work must not save up its share: when it has work again, it would take all slots for a long time.
func TestShareIsNotSaved(t *testing.T) {
	t.Parallel()
	s := newSlots(0)
	a, b := &queueShare{weight: 1}, &queueShare{rank: 1, weight: 1}
	s.order = &order{queues: []*queueShare{a, b}}
	s.updateShare(a, 1, 0)
	for range 1000 {
		s.put(1)
		if n := s.take(t.Context(), &claim{share: a, need: needWork, most: 1}); n != 1 {
			t.Fatal(n)
		}
		s.updateShare(a, 0, 1)
	}
	s.updateShare(b, 1, 0)
	if b.served < 998 { // nearly as much as a, which was served 1000 times
		t.Errorf("b begins with a share of %v, a has %v", b.served, a.served)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := s.take(ctx, &claim{share: a, most: 1}); n != 0 || len(s.order.claims) != 0 {
		t.Errorf("%d, and %d claims are left", n, len(s.order.claims))
	}
}

// A queue whose deliveries cannot be settled must not keep slots from the other queues. Regression: a slot stayed taken
// until its delivery was settled. So one queue with a key of another type stopped all queues of the worker.
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
		w.pool.slots.mu.Lock()
		redistest.Want(t, "free slots", w.pool.slots.free, slots)
		w.pool.slots.mu.Unlock()
	}
}

// A partition whose settlements failed must read nothing until all its waiting deliveries are settled. Regression:
// after one settled batch it read with all slots again. On a connection that failed now and then, the worker held more
// and more entries.
func TestAPartitionReadsWhenAllOfItIsSettled(t *testing.T) {
	redistest.Long(t)
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
	waitForRefusals := func(n int64) {
		t.Helper()
		before := client.refused.Load()
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			return client.refused.Load() >= before+n, fmt.Sprint(client.refused.Load(), " refused calls")
		})
	}
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return firstPartition(w).slotless.Load() == slots, fmt.Sprint(returned.Load(), " handlers have returned")
	})
	waitForRefusals(1)
	client.hangs.Store(true)
	client.allowed.Store(1) // one batch is settled
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged > 0, fmt.Sprintf("%+v", w.Stats())
	})
	waitForRefusals(1) // the next call hangs for its whole time limit: time enough for a read, if there were one
	client.hangs.Store(false)
	if s := w.Stats(); s.Acknowledged >= slots || s.Delivered != slots {
		t.Errorf("%d of %d messages are settled, and %d were read", s.Acknowledged, slots, s.Delivered)
	}
	client.allowed.Store(1_000_000) // all
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 3*slots, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Want(t, "stop", stop(), nil)
}

func shaOfAck() string {
	sum := sha1.Sum([]byte(lua.Source("ack")))
	return hex.EncodeToString(sum[:])
}

// gatedClient refuses calls of the script (by SHA-1) with the key, except for the next `allowed` calls.
type gatedClient struct {
	rueidis.Client
	key, script      string
	allowed, refused atomic.Int64
	hangs            atomic.Bool // a call is refused only when its time limit is over
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
