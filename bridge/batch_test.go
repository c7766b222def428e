package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// batchNotes are the IDs of the batches that a handler got.
type batchNotes struct {
	mu  sync.Mutex
	all [][]string
}

// add notes a batch. It returns one result of nil for each delivery.
func (n *batchNotes) add(all []*bridge.Delivery[order]) []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	n.all = append(n.all, ids)
	return make([]error, len(all))
}

func (n *batchNotes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprint(n.all)
}

// sizes waits until the batches have n messages, and returns their sizes in ascending order. It waits for less than the
// minute that is the Age of most batches here, so a batch that starts by its age is too late.
func (n *batchNotes) sizes(t *testing.T, want int) string {
	t.Helper()
	var sizes []int
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		sizes = nil
		sum := 0
		for _, batch := range n.all {
			sizes, sum = append(sizes, len(batch)), sum+len(batch)
		}
		return sum >= want, fmt.Sprint(n.all)
	})
	slices.Sort(sizes)
	return fmt.Sprint(sizes)
}

// schedule schedules orders with these IDs, due at once.
func (s *shop) schedule(k bridge.Kind[order], ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		redistest.Must(k.Schedule(s.ctx, s.client, order{ID: len(id)}, bridge.WithID(id)))
	}
}

// A batch must start when it has its size, over all partitions.
func TestABatchStartsWithItsSize(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 3, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	w := s.work("shop", mux)
	s.schedule(closeOrder, "a", "b", "c", "d", "e", "f")
	redistest.Want(t, "sizes", got.sizes(t, 6), "[3 3]")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return w.Stats().Acknowledged == 6, fmt.Sprintf("%+v", w.Stats())
	})
}

// A message must not wait for others for longer than the age of a batch.
func TestABatchStartsWithItsAge(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 10, Age: 50 * time.Millisecond},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	s.work("shop", mux)
	s.schedule(closeOrder, "a")
	redistest.Want(t, "sizes", got.sizes(t, 1), "[1]")
}

// A worker that stops must not keep its messages waiting for others.
func TestABatchStartsWhenTheWorkerStops(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 10, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	w := s.work("shop", mux)
	s.schedule(closeOrder, "a", "b")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return w.Stats().Delivered == 2, fmt.Sprintf("%+v", w.Stats())
	})
	s.stopWorkers()
	redistest.Want(t, "acknowledged", w.Stats().Acknowledged, uint64(2))
	redistest.Want(t, "released", w.Stats().Released, uint64(0))
}

// When batches of several kinds hold all slots, no further message can come, so they must start.
func TestBatchesStartWhenTheyHoldAllSlots(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	for _, k := range []bridge.Kind[order]{closeOrder, remind} {
		k.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
			func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	}
	s.concurrency = 2
	s.work("shop", mux)
	s.schedule(closeOrder, "a")
	s.schedule(remind, "b")
	redistest.Want(t, "sizes", got.sizes(t, 2), "[1 1]")
}

// A batch must not wait for slots that the reads of idle partitions hold. It would wait for its Age, or until those
// reads end.
func TestABatchDoesNotWaitForSlotsOfIdlePartitions(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	const size = 8
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: size, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	idle := remind
	idle.Queue = "idle"
	idle.Handle(mux, note[order](s, "idle"))
	s.concurrency = size
	s.work("shop", mux)
	s.schedule(idle, "1")
	s.eventually("shop idle 1") // the worker reads the idle queue
	s.schedule(closeOrder, "a", "b", "c", "d", "e", "f", "g", "h")
	got.sizes(t, 1)
	got.mu.Lock()
	defer got.mu.Unlock()
	if first := len(got.all[0]); first == size {
		t.Error("the first batch waited for all slots")
	}
}

// Each message must be settled by its own result.
func TestEachMessageOfABatchHasItsOwnResult(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	results := map[string]error{"retried": bridge.RetryAfter(time.Millisecond, errors.New("not now")),
		"dead": bridge.DeadLetter(errors.New("no such order")), "snoozed": bridge.Snooze(time.Millisecond),
		"released": bridge.Release(nil), "done": nil}
	var attempts []string
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 5, Age: 100 * time.Millisecond},
		func(_ context.Context, all []*bridge.Delivery[order]) []error {
			errs := got.add(all)
			for i, d := range all {
				errs[i] = results[d.ID]
				if d.Attempt > 1 || d.Extra["snoozes"] != "" || slices.Contains(attempts, d.ID) {
					errs[i] = nil
				}
				attempts = append(attempts, d.ID)
			}
			return errs
		})
	w := s.work("shop", mux)
	s.schedule(closeOrder, "retried", "dead", "snoozed", "released", "done")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		n := w.Stats()
		return n.Retried == 1 && n.Dead == 1 && n.Snoozed == 1 && n.Released == 1 && n.Acknowledged == 4,
			fmt.Sprintf("%+v", n)
	})
	redistest.Want(t, "letter", s.dead(1)["shop dead"], "dead_letter: no such order")
}

// A handler that panics, or forgets results, must fail all of its batch, and say so.
func TestABatchWithoutResultsFails(t *testing.T) {
	t.Parallel()
	s, mux := newShop(t), &bridge.Mux{}
	attempts := 1
	check(s.operator.WritePolicy(s.ctx, "orders", "", admin.PolicyUpdate{MaxAttempts: &attempts}))
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(context.Context, []*bridge.Delivery[order]) []error { panic("no database") })
	remind.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(context.Context, []*bridge.Delivery[order]) []error { return nil })
	s.work("shop", mux)
	s.schedule(closeOrder, "a", "b")
	s.schedule(remind, "c", "d")
	letters := s.dead(4)
	const want = `max_attempts: a batch of 2 messages of kind "remind" failed: the handler returned 0 results, ` +
		"not one for each message"
	redistest.Want(t, "letter of c", letters["shop c"], want)
	redistest.Want(t, "letter of d", letters["shop d"], want)
	texts := []string{letters["shop a"], letters["shop b"]}
	slices.Sort(texts)
	redistest.Want(t, "letter of a batch that panicked", texts[0],
		`max_attempts: a batch of 2 messages of kind "close-order" failed: the handler panicked: no database`)
	isPanic := strings.HasPrefix(texts[1], "max_attempts: panic: no database\n")
	if !isPanic || !strings.Contains(texts[1], t.Name()+".func1") {
		t.Error("letter of the delivery whose goroutine panicked: ", texts[1])
	}
}

// Messages of one ordering key must be handled one after the other, so they are never in one batch.
func TestABatchHasNoTwoMessagesOfAKey(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 4, Age: 50 * time.Millisecond},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	due := bridge.In(300 * time.Millisecond)
	for _, id := range []string{"a1", "a2", "a3", "b1", "b2"} {
		redistest.Must(closeOrder.Schedule(s.ctx, s.client, order{}, bridge.WithID(id), bridge.Key(id[:1]), due))
	}
	redistest.Must(closeOrder.Schedule(s.ctx, s.client, order{}, bridge.WithID("c"), due))
	s.work("shop", mux)
	got.sizes(t, 6)
	got.mu.Lock()
	defer got.mu.Unlock()
	var ofA []string
	for _, batch := range got.all {
		keys := map[byte]bool{}
		for _, id := range batch {
			if keys[id[0]] {
				t.Error("two messages of a key in one batch: ", got.all)
			}
			keys[id[0]] = true
			if id[0] == 'a' {
				ofA = append(ofA, id)
			}
		}
	}
	redistest.Want(t, "order of a key", fmt.Sprint(ofA), "[a1 a2 a3]")
}

// A payload that cannot be decoded must not fail the batch of others, nor count towards its size.
func TestAnUndecodablePayloadDoesNotJoinABatch(t *testing.T) {
	t.Parallel()
	s, got, mux := newShop(t), &batchNotes{}, &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
	s.work("shop", mux)
	s.schedule(closeOrder, "a")
	redistest.Must(s.client.Schedule(s.ctx, "orders", []byte("{"), bridge.WithID("bad"),
		bridge.Header(bridge.KindHeader, "close-order")))
	redistest.Want(t, "letter", s.dead(1)["shop bad"],
		`dead_letter: the payload does not fit kind "close-order": unexpected end of JSON input`)
	s.schedule(closeOrder, "b")
	redistest.Want(t, "sizes", got.sizes(t, 2), "[2]")
}

// A message that is cancelled while its batch runs must be told to the handler, and must not end the batch.
func TestACancelledMessageDoesNotEndItsBatch(t *testing.T) {
	t.Parallel()
	s, mux := newShop(t), &bridge.Mux{}
	started, ended := make(chan struct{}), make(chan string, 1)
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(ctx context.Context, all []*bridge.Delivery[order]) []error {
			close(started)
			for _, d := range all {
				for d.ID == "cancelled" && d.Cause() == nil {
					<-time.After(time.Millisecond)
				}
			}
			causes := map[string]error{}
			for _, d := range all {
				causes[d.ID] = d.Cause()
			}
			ended <- fmt.Sprint(causes, ctx.Err())
			return []error{nil, nil}
		})
	w := s.work("shop", mux)
	s.schedule(closeOrder, "cancelled", "kept")
	<-started
	redistest.Must(s.client.CancelRunning(s.ctx, "orders", "", "cancelled"))
	redistest.Want(t, "causes", <-ended, "map[cancelled:message cancelled kept:<nil>] <nil>")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		n := w.Stats()
		return n.Acknowledged == 1 && n.Cancelled == 1, fmt.Sprintf("%+v", n)
	})
}

// delivered hands messages to a handler, each on a goroutine of its own with a context of its own.
type delivered struct {
	handler bridge.Handler
	cancel  map[string]context.CancelCauseFunc
	results map[string]chan error
}

func deliverTo(t *testing.T, mux *bridge.Mux) *delivered {
	t.Helper()
	handler, err := mux.Handler()
	if err != nil {
		t.Fatal(err)
	}
	return &delivered{handler, map[string]context.CancelCauseFunc{}, map[string]chan error{}}
}

func (d *delivered) start(t *testing.T, id string) {
	t.Helper()
	m := message(t, closeOrder, order{})
	m.ID = id
	ctx, cancel := context.WithCancelCause(t.Context())
	d.cancel[id], d.results[id] = cancel, make(chan error, 1)
	go func() { d.results[id] <- d.handler(ctx, m) }()
	synctest.Wait()
}

// A delivery that is lost before its batch starts must leave it: another worker has the message.
func TestALostDeliveryLeavesItsBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, mux := &batchNotes{}, &bridge.Mux{}
		closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
			func(_ context.Context, all []*bridge.Delivery[order]) []error { return got.add(all) })
		d := deliverTo(t, mux)
		d.start(t, "lost")
		d.cancel["lost"](bridge.ErrLost)
		if err := <-d.results["lost"]; !errors.Is(err, bridge.ErrLost) {
			t.Error("result of the lost delivery: ", err)
		}
		<-time.After(time.Minute) // the age of a batch without members
		d.start(t, "a")
		d.start(t, "b")
		redistest.Want(t, "result", <-d.results["a"], nil)
		redistest.Want(t, "result", <-d.results["b"], nil)
		redistest.Want(t, "batches", got.String(), "[[a b]]")
	})
}

// A message whose time limit is below the age of its batch is never handled. Its dead letter must say why.
func TestAnAgeAboveTheTimeLimitIsExplained(t *testing.T) {
	t.Parallel()
	s, mux := newShop(t), &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(context.Context, []*bridge.Delivery[order]) []error { t.Error("handled"); return nil })
	s.work("shop", mux)
	redistest.Must(closeOrder.Schedule(s.ctx, s.client, order{}, bridge.WithID("m"), bridge.MaxAttempts(1),
		bridge.HandlerTimeout(50*time.Millisecond)))
	redistest.Want(t, "letter", s.dead(1)["shop m"], `handler_timeout: handler_timeout: not done after 50ms: `+
		`its batch of kind "close-order" had not started: the batch age 1m0s must be below the time limit`)
}

// The context of a batch must last until the last of its deliveries is cancelled, and tell why.
func TestTheContextOfABatchLastsAsLongAsItsDeliveries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux, ended := &bridge.Mux{}, make(chan error, 1)
		closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
			func(ctx context.Context, all []*bridge.Delivery[order]) []error {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return []error{all[0].Cause(), all[1].Cause()}
			})
		d := deliverTo(t, mux)
		d.start(t, "a")
		d.start(t, "b")
		d.cancel["a"](bridge.ErrLost)
		synctest.Wait()
		redistest.Want(t, "handlers that ended", len(ended), 0)
		d.cancel["b"](bridge.ErrStopping)
		redistest.Want(t, "cause", <-ended, bridge.ErrStopping)
		redistest.Want(t, "result of a", <-d.results["a"], bridge.ErrLost)
		redistest.Want(t, "result of b", <-d.results["b"], bridge.ErrStopping)
	})
}

// A handler that ends its goroutine must not leave the other members waiting for ever.
func TestABatchWhoseGoroutineEndsFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := &bridge.Mux{}
		closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
			func(context.Context, []*bridge.Delivery[order]) []error { runtime.Goexit(); return nil })
		d := deliverTo(t, mux)
		d.start(t, "a") // it leads the batch, and its goroutine ends
		d.start(t, "b")
		redistest.Want(t, "result", (<-d.results["b"]).Error(),
			`a batch of 2 messages of kind "close-order" failed: the handler ended its goroutine`)
	})
}

// NewWorker must name all faults of batches at once: with them, no batch would ever have its size.
func TestNewWorkerRefusesBatchesItCannotCollect(t *testing.T) {
	t.Parallel()
	batch := func(context.Context, []*bridge.Delivery[order]) []error { return nil }
	mux := &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 17, Age: 30 * time.Second}, batch)
	_, err := bridge.NewWorker(bridge.WorkerConfig{Mux: mux, HandlerTimeout: 10 * time.Second, GroupRate: "5/d",
		Queues: []bridge.WorkerQueue{{Queue: "orders"}, {Queue: "mails"}}})
	for _, want := range []string{
		`batch size of kind "close-order" "17": must be at most the concurrency of the worker, 16`,
		`batch age of kind "close-order" "30s": must be below the handler timeout of the worker, 10s`,
		`queues "mails": has no kind in the mux`, `group rate "5/d": must be`, "redis", `group "": `} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error:\n%v", want, err)
		}
	}
	faulty := &bridge.Mux{}
	closeOrder.HandleBatch(faulty, bridge.BatchConfig{Size: 0, Age: time.Hour}, batch)
	remind.HandleBatch(faulty, bridge.BatchConfig{Size: 2}, nil)
	_, err = bridge.NewWorker(bridge.WorkerConfig{Mux: faulty})
	for _, want := range []string{`batch size of kind "close-order" "0": must be between 1 and 1000`,
		`batch age of kind "close-order" "1h0m0s": must be between 1ms and 1m0s`,
		`handler of kind "remind" "nil": is required`} {
		if !errors.Is(err, bridge.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error:\n%v", want, err)
		}
	}
}

// Orders are written to a database many at a time.
func ExampleKind_HandleBatch() {
	ctx, r, prefix, end := begin()
	defer end()
	mux := &bridge.Mux{}
	stored := make(chan int)
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 3, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[order]) []error {
			stored <- len(all)
			return make([]error, len(all)) // all are done
		})
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "shop", Mux: mux})
	check(err)
	ctx, stop := context.WithCancel(ctx)
	running := make(chan error)
	go func() { running <- worker.Run(ctx) }()

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	for id := range 3 {
		_, err := closeOrder.Schedule(ctx, client, order{ID: id})
		check(err)
	}
	fmt.Println(<-stored, "orders at once")
	stop()
	check(<-running)
	// Output: 3 orders at once
}

// A batch handler that ignores its cancelled context must hold neither its messages nor their slots, and the log must
// show where it hangs.
func TestAHungBatchIsAbandoned(t *testing.T) {
	t.Parallel()
	s, mux := newShop(t), &bridge.Mux{}
	end := make(chan struct{})
	var lines lockedLines
	got := &batchNotes{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: 100 * time.Millisecond},
		func(_ context.Context, all []*bridge.Delivery[order]) []error {
			if all[0].Attempt == 1 {
				<-end
			}
			return got.add(all)
		})
	w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: s.r, Prefix: s.prefix, Group: "shop", Mux: mux,
		Concurrency: 2, HandlerTimeout: 300 * time.Millisecond, AbandonAfter: 50 * time.Millisecond,
		Logger: newLog(&lines)}))
	ctx, stop := context.WithCancel(s.ctx)
	s.stops = append(s.stops, func() { close(end); stop() })
	s.workers.Go(func() { check(w.Run(ctx)) })
	s.schedule(closeOrder, "a", "b")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		n := w.Stats()
		return n.Abandoned == 2 && n.Retried == 2 && n.Acknowledged == 2, fmt.Sprintf("%+v", n)
	})
	if !strings.Contains(lines.String(), t.Name()+".func1") {
		t.Error("the log does not show where the handler hangs:\n", lines.String())
	}
}

// lockedLines is a writer that several goroutines may use.
type lockedLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lockedLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
