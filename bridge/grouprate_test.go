package bridge_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// startsOf notes the handlers that have started, by message and attempt.
type startsOf struct {
	mu  sync.Mutex
	all []string
}

func (n *startsOf) handle(_ context.Context, d *bridge.Delivery[order]) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf("%s/%d", d.ID, d.Attempt))
	return nil
}

func (n *startsOf) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all)
}

// workAtRate runs a worker with a rate, and returns how to stop it.
func (s *shop) workAtRate(rate bridge.Rate, burst int, handle func(context.Context, *bridge.Delivery[order]) error) (
	*bridge.Worker, func()) {
	s.t.Helper()
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, handle)
	w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: s.r, Prefix: s.prefix, Group: "shop", Mux: mux,
		GroupRate: rate, GroupBurst: burst}))
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.workers.Go(func() { defer close(done); check(w.Run(ctx)) })
	stop := func() { cancel(); <-done }
	s.stops = append(s.stops, cancel)
	return w, stop
}

// All workers of a group together must start no more handlers than the rate allows, over all partitions. A worker that
// stops must release the messages that wait for the rate. No attempt may be counted, and the bucket must expire.
func TestWorkersShareTheRateOfTheirGroup(t *testing.T) {
	t.Parallel()
	s, got := newShop(t), &startsOf{}
	const n = 65 // 5 of the burst at once, and then 60 at 40/s
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint("m", i))
	}
	s.schedule(closeOrder, ids...)
	begin := time.Now()
	_, stop := s.workAtRate("40/s", 5, got.handle)
	s.workAtRate("40/s", 5, got.handle)
	redistest.Eventually(t, time.Minute, func() (bool, string) { return got.count() > 15, fmt.Sprint(got.count()) })
	stop()
	redistest.Eventually(t, time.Minute, func() (bool, string) { return got.count() >= n, fmt.Sprint(got.count()) })
	if took, least := time.Since(begin), (n-5)*time.Second/40; took < least {
		t.Errorf("%d handlers started within %s, which is less than %s", n, took, least)
	}
	s.stopWorkers()
	var want []string
	for _, id := range ids {
		want = append(want, id+"/1")
	}
	slices.Sort(want)
	slices.Sort(got.all)
	redistest.Want(t, "starts", fmt.Sprint(got.all), fmt.Sprint(want))
	bucket := lua.NewKeys(s.prefix, "orders").GroupRate("shop")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		there, err := s.r.Client.Do(s.ctx, s.r.Client.B().Exists().Key(bucket).Build()).AsInt64()
		return there == 0 && err == nil, "the bucket of the rate does not expire"
	})
}

// With a slow rate, workers must not hold the messages that wait for it: others may take them over, and a killed worker
// costs no attempt.
func TestNoMessageIsHeldForASlowRate(t *testing.T) {
	t.Parallel()
	s, got := newShop(t), &startsOf{}
	s.schedule(closeOrder, "a", "b", "c", "d", "e", "f", "g", "h")
	workers := []*bridge.Worker{}
	for range 3 {
		w, _ := s.workAtRate("2/h", 1, got.handle)
		workers = append(workers, w)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		held := uint64(0)
		for _, w := range workers {
			n := w.Stats()
			held += n.Delivered - n.Acknowledged - n.Released
		}
		return got.count() == 1 && held == 0, fmt.Sprint(got.count(), " started, ", held, " held")
	})
	redistest.Want(t, "attempt", got.all[0][1:], "/1")
}

// A partner allows ten calls a second, whatever the number of workers.
func ExampleWorkerConfig_groupRate() {
	ctx, r, prefix, end := begin()
	defer end()
	called := make(chan string)
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "calls", Group: "partner",
		GroupRate: "10/s", GroupBurst: 1,
		Handler: func(_ context.Context, m *bridge.Message) error {
			called <- string(m.Payload)
			return nil
		}})
	check(err)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	_, err = client.Schedule(ctx, "calls", []byte("order 42"))
	check(err)
	ctx, stop := context.WithCancel(ctx)
	running := make(chan error)
	go func() { running <- worker.Run(ctx) }()
	fmt.Println(<-called)
	stop()
	check(<-running)
	// Output: order 42
}
