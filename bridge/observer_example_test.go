package bridge_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
)

// tally is an Observer: it counts the events of each part.
type tally struct {
	mu     sync.Mutex
	counts map[bridge.Part]map[bridge.Event]int
	calls  int // script calls to Redis
}

// Series implements bridge.Observer.
func (t *tally) Series(part bridge.Part, queue, group string) bridge.Series { return tallied{t, part} }

// Call implements bridge.Observer.
func (t *tally) Call(script string, took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
}

// BridgeStarted implements bridge.Observer.
func (t *tally) BridgeStarted(view bridge.BridgeView) (ended func()) {
	fmt.Println("a bridge began to run, with", view.Status().Owned, "partitions")
	return func() {}
}

func (t *tally) count(part bridge.Part, e bridge.Event) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[part][e]
}

func (t *tally) anyCalls() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls > 0
}

// tallied is the Series of a part.
type tallied struct {
	all  *tally
	part bridge.Part
}

// Add implements bridge.Series.
func (s tallied) Add(e bridge.Event, n int) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.all.counts[s.part] == nil {
		s.all.counts[s.part] = map[bridge.Event]int{}
	}
	s.all.counts[s.part][e] += n
}

// AddTimed implements bridge.Series.
func (s tallied) AddTimed(e bridge.Event, n int, _ time.Duration) { s.Add(e, n) }

// AddSized implements bridge.Series.
func (s tallied) AddSized(e bridge.Event, n, _ int) { s.Add(e, n) }

// An Observer of your own counts the events of clients, bridges and workers.
func ExampleObserver() {
	ctx, r, prefix, end := begin()
	defer end()
	t := &tally{counts: map[bridge.Part]map[bridge.Event]int{}}

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix, Observer: t})
	check(err)
	defer client.Close()
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Observer: t, Handler: func(context.Context, *bridge.Message) error { return nil }})
	check(err)
	observed, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, AnyServer: true, Observer: t})
	check(err)
	serving, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { check(observed.Run(serving)) })
	running.Go(func() { check(worker.Run(serving)) })

	for range 3 {
		_, err = client.Schedule(ctx, "orders", nil)
		check(err)
	}
	until(func() bool { return t.count(bridge.PartWorker, bridge.EventAcknowledged) == 3 })
	until(func() bool { return t.count(bridge.PartBridge, bridge.EventHeartbeat) > 0 })
	stop()
	running.Wait()
	fmt.Println("enqueued:", t.count(bridge.PartClient, bridge.EventEnqueued))
	fmt.Println("handled:", t.count(bridge.PartWorker, bridge.EventHandled))
	fmt.Println("calls to Redis were seen:", t.anyCalls())
	// Output:
	// a bridge began to run, with 0 partitions
	// enqueued: 3
	// handled: 3
	// calls to Redis were seen: true
}
