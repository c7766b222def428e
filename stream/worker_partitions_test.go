package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// gauge counts running handlers, and their maximum.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

// A worker must deliver the messages of all partitions, each once, and must not hold more entries than it has slots for
// all partitions together.
func TestWorkerServesAllPartitionsWithItsSlots(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const partitions, each, slots = 4, 60, 5
		r := newRig(t, s)
		r.Groups("g")
		r.grow(partitions)
		// pendingInAll is a command that adds up the pending entries of all partitions at one moment.
		pendingInAll := []string{"EVAL",
			"local n = 0 for _, k in ipairs(KEYS) do n = n + redis.call('XPENDING', k, 'g')[1] end return n",
			fmt.Sprint(partitions)}
		for i := range partitions {
			pendingInAll = append(pendingInAll, r.Part(i).Keys.Stream)
		}
		var ledger redistest.Ledger
		var running gauge
		w, stop := r.start(WorkerConfig{Concurrency: slots, Handler: func(ctx context.Context, m *Message) error {
			running.enter()
			defer running.leave()
			loop.Sleep(ctx, 2*time.Millisecond)
			redistest.Want(t, "queue", m.Queue, r.Queue)
			ledger.Delivered("g", fmt.Sprint(m.Partition, "/", m.ID), lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
			return nil
		}})
		var producers sync.WaitGroup
		for i := range partitions {
			producers.Go(func() {
				p := r.Part(i)
				for n := range each {
					id := fmt.Sprint("m-", n)
					ledger.Sent(fmt.Sprint(i, "/", id), 0)
					p.Ready(id)
				}
			})
		}
		producers.Wait()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			if pending := r.Number(pendingInAll...); pending > slots {
				t.Errorf("%d entries pending with %d slots", pending, slots)
			}
			st := w.Stats()
			return st.Acknowledged == partitions*each, fmt.Sprintf("%+v", st)
		})
		if m := running.most.Load(); m > slots || m < slots-1 {
			t.Errorf("handlers at once: %d with %d slots", m, slots)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		ledger.Check(t, "g")
		for i := range partitions {
			redistest.Want(t, "pending after the stop", r.Part(i).Pending("g"), int64(0))
			redistest.Want(t, "consumers after the stop", len(r.Part(i).Consumers("g")), 0)
		}
		if r := ledger.Summary("g"); r.Duplicated > 0 {
			t.Errorf("%v", r)
		}
	})
}

// waitForMessage waits until the handler, which sends its messages to got, has the given message of the partition.
func waitForMessage(t *testing.T, got <-chan *Message, partition int, id string, within time.Duration) {
	t.Helper()
	select {
	case m := <-got:
		if m.Partition != partition || m.ID != id {
			t.Errorf("got %s of partition %d, want %s of %d", m.ID, m.Partition, id, partition)
		}
	case <-time.After(within):
		t.Fatalf("%s of partition %d was not delivered within %s", id, partition, within)
	}
}

// A running worker must read the partitions that its queue gets, at the next refresh of its policy.
func TestWorkerTakesUpNewPartitions(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	got := make(chan *Message, 10)
	r.start(WorkerConfig{Handler: func(_ context.Context, m *Message) error { got <- m; return nil }})
	r.Ready("a")
	waitForMessage(t, got, 0, "a", 10*time.Second)
	r.grow(3)
	r.Part(2).Ready("b")
	waitForMessage(t, got, 2, "b", policy.RefreshInterval+5*time.Second)
	r.grow(5)
	r.Part(4).Ready("c")
	waitForMessage(t, got, 4, "c", policy.RefreshInterval+5*time.Second)
	r.Ready("d")
	waitForMessage(t, got, 0, "d", 10*time.Second)
}

// A busy partition must get all slots except the few with which the idle partitions wait for entries.
func TestIdlePartitionsDoNotStarveABusyOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ partitions, slots, least int }{{4, 16, 16 - 3*2}, {4, 8, 8 - 3}, {8, 4, 4 - 1}, {2, 2, 1},
		{3, 1, 1}} { // least = handlers of the busy partition that must run at once
		t.Run(fmt.Sprint(c.partitions, " partitions, ", c.slots, " slots"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.grow(c.partitions)
			var running gauge
			free := make(chan struct{})
			w, _ := r.start(WorkerConfig{Concurrency: c.slots, Handler: func(context.Context, *Message) error {
				running.enter()
				defer running.leave()
				<-free
				return nil
			}})
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				groups := 0
				for i := range c.partitions {
					groups += len(r.Part(i).GroupNames())
				}
				return groups == c.partitions, fmt.Sprintf("%d groups", groups)
			})
			last := r.Part(c.partitions - 1)
			last.Fill(100)
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				n := running.now.Load()
				return int(n) >= c.least, fmt.Sprintf("%d handlers", n)
			})
			close(free)
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				n := w.Stats().Acknowledged
				return n == 100, fmt.Sprintf("%d acknowledged", n)
			})
		})
	}
}

// A worker with fewer slots than partitions must still read each partition often: half of the messages must arrive
// within a second, although a read may wait for entries for 2 s.
func TestMorePartitionsThanSlotsTakeTurns(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const partitions = 12
	r := newRig(t, redistest.Shared(t))
	r.grow(partitions)
	got := make(chan *Message, 10)
	r.start(WorkerConfig{Concurrency: 2, Handler: func(_ context.Context, m *Message) error { got <- m; return nil }})
	for round := range 3 {
		for i := range partitions {
			id := fmt.Sprint(round, "-", i)
			r.Part(i).Ready(id)
			waitForMessage(t, got, i, id, 10*time.Second)
		}
	}
	var took []time.Duration // by now all partitions are served
	for i := range partitions {
		began := time.Now()
		r.Part(i).Ready("last")
		waitForMessage(t, got, i, "last", 10*time.Second)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	if median := took[partitions/2]; median >= time.Second { // on a busy machine one message may be late
		t.Errorf("the median is %s: %v", median, took)
	}
}

// A worker must serve the partitions that it knows while it cannot read the registry, and must log the failure once.
func TestRegistryThatCannotBeReadDelaysNothing(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	registry := lua.NewGlobals(r.Prefix).Queues
	r.Do("SET", registry, "something else")
	var book queuetest.LogBook
	got := make(chan *Message, 10)
	r.start(WorkerConfig{Logger: book.Logger(), Handler: func(_ context.Context, m *Message) error { got <- m; return nil }})
	r.Ready("a")
	waitForMessage(t, got, 0, "a", 5*time.Second)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		n := book.Count("reading the number of partitions is failing")
		return n == 1, fmt.Sprintf("said %d times", n)
	})
	r.Do("DEL", registry)
	r.grow(2)
	r.Part(1).Ready("b")
	waitForMessage(t, got, 1, "b", policy.RefreshInterval+5*time.Second)
	redistest.Want(t, "said that it works again", book.Count("reading the number of partitions works again"), 1)
}

// If a server loses the registry, the workers must register the partitions that they serve again.
func TestWorkerRegistersThePartitionsItServesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.grow(2)
	r.grow(3)
	var book queuetest.LogBook
	r.start(WorkerConfig{Logger: book.Logger(), Handler: func(context.Context, *Message) error { return nil }})
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return len(r.Part(2).GroupNames()) == 1,
			"partition 2 has no group"
	})
	r.Do("DEL", lua.NewGlobals(r.Prefix).Queues)
	r.Do("DEL", r.Part(2).Keys.Stream)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		counts, err := Partitions(t.Context(), r.Client, r.Prefix, r.Queue)
		return counts.String() == "1,2,3" && len(r.Part(2).GroupNames()) == 1, fmt.Sprint(counts, err)
	})
	// The worker logs the loss after it has created the group.
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		n := book.Count("consumer group was lost")
		return n == 1, fmt.Sprintf("said %d times that a group was lost", n)
	})
	redistest.Want(t, "said in which partition", book.Count("partition=2"), 1)
	redistest.Want(t, "lines about partition 0", book.Count("partition=0"), 0)
}

// A stop must give the handlers of all partitions the same time, not one partition after the other. Handlers that
// ignore their contexts keep their entries.
func TestStopLeavesHandlersOfAllPartitionsTheirTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.grow(3)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var ended, stuck atomic.Int64
	_, stop := r.start(WorkerConfig{ShutdownTimeout: 200 * time.Millisecond, CancelGrace: 200 * time.Millisecond,
		Handler: func(ctx context.Context, m *Message) error {
			if m.ID == "good" {
				<-ctx.Done()
				ended.Add(1)
				return ctx.Err()
			}
			stuck.Add(1)
			<-release
			return nil
		}})
	for i := range 3 {
		r.Part(i).Ready("good")
	}
	r.Part(1).Ready("bad")
	r.Part(2).Ready("bad")
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		pending := int64(0)
		for i := range 3 {
			pending += r.Part(i).Pending("g")
		}
		return pending == 5 && stuck.Load() == 2, fmt.Sprintf("%d pending", pending)
	})
	began := time.Now()
	err := stop()
	if !errors.Is(err, ErrAbandoned) || err.Error() != fmt.Sprintf("stop %s/g: 2 of them: %v", r.Queue, ErrAbandoned) {
		t.Error(err)
	}
	if d := time.Since(began); d > 2*time.Second { // the partitions stop concurrently
		t.Errorf("stopping took %s", d)
	}
	redistest.Want(t, "handlers that saw the stop", ended.Load(), int64(3))
	for i, n := range []int64{0, 1, 1} {
		redistest.Want(t, fmt.Sprint("pending in partition ", i), r.Part(i).Pending("g"), n)
		redistest.Want(t, fmt.Sprint("released in partition ", i), r.Number("ZCARD", r.Part(i).Keys.Due), int64(1))
	}
}
