package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/clock"
	"github.com/duestream/duestream/lua"
)

// Limits of BatchConfig.
const (
	MaxBatchSize    = 1000        // the greatest BatchConfig.Size
	DefaultBatchAge = time.Second // of BatchConfig.Age
	MaxBatchAge     = time.Minute // the greatest BatchConfig.Age
)

// BatchConfig tells when a worker hands a batch of messages to its handler: when the batch has Size messages, or when
// its first message has waited for Age, whichever is earlier. A batch starts earlier if the worker stops, or if no slot
// is left for a further message. Then messages that wait for batches, and reads of partitions without messages, hold
// all slots. Such reads hold at most half of the slots.
type BatchConfig struct {
	// Size is the greatest number of messages of a batch: 1 to MaxBatchSize. Each message has a slot of the worker, so
	// Size must not exceed WorkerConfig.Concurrency. With a Concurrency of at least twice Size, the worker collects the
	// next batch while it handles one.
	Size int
	// Age is how long the first message of a batch waits for others: 1 ms to MaxBatchAge. This time counts towards the
	// time limit of its handler, so Age must be below that limit. Default DefaultBatchAge.
	Age time.Duration
}

// HandleBatch registers a handler that gets several messages of this kind at once, in place of Kind.Handle. The handler
// returns one result for each delivery, in the order of the deliveries. A result has the same meaning as the result of
// a Handler. If the handler panics, or returns another number of results, all messages of the batch fail. If it has
// handled all of them, it may return make([]error, len(deliveries)).
//
// A batch has messages of all partitions, in no particular order. It never has two messages of one ordering key,
// because the second becomes ready when the first is done. Each delivery keeps its own attempt, time limit and
// settlement, and the middleware of the mux wraps each of them. A payload that cannot be decoded becomes a dead letter,
// as with Kind.Handle, and does not join a batch.
//
// If a delivery is lost, cancelled or out of time before its batch starts, it leaves the batch. If this happens after
// the start, the batch goes on, and Delivery.Cause returns the reason. When all deliveries of the batch are lost,
// cancelled or out of time, the context of the handler is cancelled, with the cause of the last one. This context has
// the values of the context of one delivery.
func (k Kind[T]) HandleBatch(mux *Mux, cfg BatchConfig, handler func(context.Context, []*Delivery[T]) []error) {
	if cfg.Age == 0 {
		cfg.Age = DefaultBatchAge
	}
	var entry kindHandler
	if handler != nil {
		collected := &batchKind{name: kindInWords(k.Name), BatchConfig: cfg}
		collected.handle = func(ctx context.Context, members []*batchMember) []error {
			deliveries := make([]*Delivery[T], len(members))
			for i, m := range members {
				deliveries[i] = m.delivery.(*Delivery[T])
			}
			return handler(ctx, deliveries)
		}
		entry.batch = collected
		entry.make = func(w *workerBatches) Handler {
			return k.decoding(func(ctx context.Context, d *Delivery[T]) error { return w.join(ctx, collected, d) })
		}
	}
	name := kindInWords(k.Name)
	mux.add(k.Queue, k.Name, errors.Join(k.check(),
		lua.Between("batch size of "+name, cfg.Size, 1, MaxBatchSize),
		lua.Between("batch age of "+name, cfg.Age, time.Millisecond, MaxBatchAge)), entry)
}

// batchKind is a kind whose messages are handled in batches.
type batchKind struct {
	BatchConfig
	name   string // in words
	handle func(context.Context, []*batchMember) []error
}

// checkWorker returns an error if a worker cannot collect whole batches. slots is 0 if it is not known.
func (k *batchKind) checkWorker(slots int, handlerTimeout time.Duration) error {
	var faults []error
	if slots > 0 && k.Size > slots {
		faults = append(faults, lua.Invalid("batch size of "+k.name, fmt.Sprint(k.Size),
			"must be at most the concurrency of the worker, %d", slots))
	}
	if handlerTimeout > 0 && k.Age >= handlerTimeout {
		faults = append(faults, lua.Invalid("batch age of "+k.name, k.Age.String(),
			"must be below the handler timeout of the worker, %s", handlerTimeout))
	}
	return errors.Join(faults...)
}

// left returns the result of a delivery that left its batch before the start. If the delivery has reached its time
// limit, the result says why: the handler was not called, and the dead letter of the last attempt shows only this text.
func (k *batchKind) left(cause error) error {
	if !errors.Is(cause, ErrHandlerTimeout) {
		return cause
	}
	return fmt.Errorf("its batch of %s had not started: the batch age %s must be below the time limit", k.name, k.Age)
}

// workerBatches are the open batches of one worker.
type workerBatches struct {
	slots int // of the worker; 0 = not known

	mu       sync.Mutex
	open     map[*batchKind]*batch
	waiting  int // members of open batches
	idle     int // slots of reads that wait for messages in partitions without work
	stopping bool
}

// batch is a batch of one kind. It is open until it starts.
type batch struct {
	kind    *batchKind
	clock   clock.Clock
	stop    func() bool // ends the wait for Age
	members []*batchMember
	started bool          // guarded by workerBatches.mu; afterwards members does not change
	done    chan struct{} // closed when each member has its result
}

// batchMember is a delivery in a batch. Its handler's goroutine waits for the result. One of these goroutines, the
// leader's, calls the handler of the batch, so that a stack of an abandoned delivery shows where the handler hangs.
type batchMember struct {
	ctx      context.Context
	delivery any           // a *Delivery[T]
	lead     chan struct{} // gets a value if this member is the leader
	err      error         // the result
}

// join adds a delivery to the open batch of its kind, and returns its result.
func (w *workerBatches) join(ctx context.Context, k *batchKind, delivery any) error {
	m := &batchMember{ctx: ctx, delivery: delivery, lead: make(chan struct{}, 1)}
	b := w.add(k, m)
	select {
	case <-m.lead:
		b.run()
		return m.err
	case <-b.done:
		return m.err
	case <-ctx.Done():
	}
	if w.leave(b, m) {
		return k.left(context.Cause(ctx))
	}
	select { // the batch has started: its handler decides
	case <-m.lead:
		b.run()
	case <-b.done:
	}
	return m.err
}

// add adds a member to the open batch of its kind, and starts batches that need not wait any longer.
func (w *workerBatches) add(k *batchKind, m *batchMember) *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.open[k]
	if b == nil {
		b = &batch{kind: k, clock: clock.Of(m.ctx), done: make(chan struct{})}
		b.stop = b.clock.AfterFunc(k.Age, func() { w.startAged(b) })
		w.open[k] = b
	}
	b.members = append(b.members, m)
	w.wait(b, 1)
	switch {
	case len(b.members) == k.Size, w.stopping:
		w.start(b)
	case w.hasNoSlot():
		w.startAll()
	}
	return b
}

// wait notes that n more members of an open batch wait. The caller holds mu.
func (w *workerBatches) wait(b *batch, n int) {
	w.waiting += n
	b.clock.Wait(n)
}

// hasNoSlot reports whether no message can join the open batches before one of them starts. The caller holds mu. Reads
// of idle partitions count, because they may hold their slots for seconds while another partition has messages.
func (w *workerBatches) hasNoSlot() bool {
	return w.slots > 0 && w.waiting > 0 && w.waiting+w.idle >= w.slots
}

// idleSlots notes that reads of idle partitions hold n more slots.
func (w *workerBatches) idleSlots(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle += n
	if w.hasNoSlot() {
		w.startAll()
	}
}

func (w *workerBatches) startAged(b *batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !b.started && len(b.members) > 0 {
		w.start(b)
	}
}

func (w *workerBatches) startAll() {
	for _, b := range w.open {
		w.start(b)
	}
}

// start closes an open batch, and makes one of its members call the handler. The caller holds mu.
func (w *workerBatches) start(b *batch) {
	b.started = true
	b.stop()
	delete(w.open, b.kind)
	w.wait(b, -len(b.members))
	leader := b.members[0]
	for _, m := range b.members {
		if m.ctx.Err() == nil { // otherwise the worker may abandon the leader while the batch goes on
			leader = m
			break
		}
	}
	leader.lead <- struct{}{}
}

// leave removes a member from its batch, unless the batch has started.
func (w *workerBatches) leave(b *batch, m *batchMember) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.started {
		return false
	}
	for i, other := range b.members {
		if other == m {
			b.members = append(b.members[:i], b.members[i+1:]...)
			w.wait(b, -1)
			break
		}
	}
	if len(b.members) == 0 {
		b.stop()
		delete(w.open, b.kind)
	}
	return true
}

// stop starts all open batches, and each later one at its first message.
func (w *workerBatches) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.startAll()
}

// run calls the handler for all members whose contexts are not cancelled, and sets the results of all members. If the
// handler panics, run panics with the same value, so that the worker logs the stack.
func (b *batch) run() {
	defer close(b.done)
	live := make([]*batchMember, 0, len(b.members))
	for _, m := range b.members {
		if m.ctx.Err() != nil {
			m.err = b.kind.left(context.Cause(m.ctx))
			continue
		}
		live = append(live, m)
	}
	if len(live) == 0 {
		return
	}
	ctx, end := batchContext(live)
	defer end()
	returned := false
	defer func() {
		if returned {
			return
		}
		// The stack of the panic is still there while this function runs, so the worker's recover sees it.
		cause := recover()
		if cause == nil {
			b.fail(live, "the handler ended its goroutine")
			return
		}
		b.fail(live, fmt.Sprintf("the handler panicked: %v", cause))
		panic(cause)
	}()
	results := b.kind.handle(ctx, live)
	returned = true
	if len(results) != len(live) {
		b.fail(live, fmt.Sprintf("the handler returned %d results, not one for each message", len(results)))
		return
	}
	for i, m := range live {
		m.err = results[i]
	}
}

// fail sets an error as the result of all members.
func (b *batch) fail(members []*batchMember, why string) {
	err := fmt.Errorf("a batch of %d messages of %s failed: %s", len(members), b.kind.name, why)
	for _, m := range members {
		m.err = err
	}
}

// batchContext returns a context that is cancelled when the contexts of all members are cancelled.
func batchContext(members []*batchMember) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(members[0].ctx))
	var left atomic.Int64
	left.Store(int64(len(members)))
	stops := make([]func() bool, len(members))
	for i, m := range members {
		stops[i] = context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(m.ctx))
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}
