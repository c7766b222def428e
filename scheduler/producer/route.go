package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// route is the producer's state of one queue: its partition counts, and the group commits of the partitions in use.
type route struct {
	producer *Producer
	queue    string
	state    loop.Reporter
	series   observe.Series              // nil = no observer
	known    atomic.Pointer[knownCounts] // nil until the first inquiry ends

	mu          sync.Mutex
	commits     []*groupCommit // by partition; nil = not used yet
	producing   bool           // Schedule was called for the queue; otherwise an inquiry does not register the queue
	inquiry     *inquiry       // the inquiry in flight; nil = none
	nextInquiry time.Time      // when the next inquiry may begin
	failed      time.Time      // end of the last inquiry if it could not read the counts; else zero
}

// knownCounts are all partition counts that the registry ever gave for a queue. If the registry loses some, they are
// kept. If the queue is deleted, they are forgotten.
type knownCounts struct {
	counts lua.Counts
	asked  time.Time // beginning of the inquiry; zero = the registry never answered, and counts is just 1
}

// inquiry is one request to the registry.
type inquiry struct {
	registers bool // the request also adds counts that the registry lacks, and the queue itself
	done      chan struct{}
	err       error // set before done is closed
}

func newRoute(producer *Producer, queue string) *route {
	log := producer.cfg.Logger.With(slog.String("queue", queue))
	return &route{
		producer: producer,
		queue:    queue,
		state:    loop.Reporter{Log: log, Activity: "register", Quiet: lua.Temporary},
		series:   observe.SeriesOf(producer.cfg.Observer, observe.Client, queue, ""),
	}
}

// newBatch returns a batchRoute for messages. If a message needs the partition counts (see needsPartitions), it waits
// for the registry until RetryTimeout has passed since the given time.
func (r *route) newBatch(ctx context.Context, ms []Message, since time.Time) (batchRoute, error) {
	counts, unread, err := r.countsToSchedule(ctx, slices.ContainsFunc(ms, needsPartitions), since)
	if err != nil {
		return batchRoute{}, err
	}
	b := batchRoute{route: r, counts: counts, unread: unread}
	if counts.Latest() == 1 {
		b.only = r.groupCommit(0)
	}
	return b, nil
}

// countsToSchedule makes sure that the queue will be registered, and returns its partition counts. If needed is set, it
// waits longer for the registry; unread is the reason if the counts are still unknown at the end.
func (r *route) countsToSchedule(ctx context.Context, needed bool,
	since time.Time) (counts lua.Counts, unread, err error) {
	r.mu.Lock()
	if !r.producing { // earlier inquiries were for lookups, and did not register the queue
		r.producing, r.nextInquiry = true, time.Time{}
	}
	r.mu.Unlock()
	known, err := r.counts(ctx)
	switch {
	case err != nil:
	case needed && known.asked.IsZero():
		unread = r.awaitCounts(ctx, since)
		err = ctx.Err()
	case needed || known.counts.Latest() > 1: // the queue may have been deleted, and have fewer partitions now
		err = r.refreshOldCounts(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	return r.known.Load().counts, unread, nil
}

// counts returns the known partition counts. At the first use of the queue it waits for the registry, for
// registerTimeout at most, because on a cluster the registry may be out of reach while the queue is not. The only error
// is that of the context.
func (r *route) counts(ctx context.Context) (*knownCounts, error) {
	if known := r.known.Load(); known != nil {
		return known, nil
	}
	_ = r.askRegistry(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.known.Load(), nil
}

// askRegistry makes an inquiry, and waits for its end, for registerTimeout at most. Concurrent callers share one
// inquiry, which may have begun before the call.
func (r *route) askRegistry(ctx context.Context) error {
	q := r.beginInquiry()
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginInquiryIfDue starts an inquiry if the time for the next one has come and none is in flight.
func (r *route) beginInquiryIfDue(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.nextInquiry) {
		r.beginInquiryLocked()
	}
}

// beginInquiry starts an inquiry unless one is in flight. It returns the inquiry in flight.
func (r *route) beginInquiry() *inquiry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.beginInquiryLocked()
}

func (r *route) beginInquiryLocked() *inquiry {
	if r.inquiry == nil {
		r.inquiry = &inquiry{registers: r.producing, done: make(chan struct{})}
		r.producer.busy.Add(1) // busy is above zero already, because the caller is counted
		go r.run(r.inquiry)
	}
	return r.inquiry
}

// run makes one inquiry.
func (r *route) run(q *inquiry) {
	defer r.producer.busy.Done()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	counts, err := r.syncRegistry(ctx, q.registers)
	r.state.Report(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case counts != nil:
		r.known.Store(&knownCounts{counts, began})
	case r.known.Load() == nil:
		r.known.Store(&knownCounts{counts: lua.Counts{1}})
	}
	r.failed = time.Time{}
	if counts == nil {
		r.failed = time.Now()
	}
	r.nextInquiry = time.Now().Add(registerEvery)
	if err != nil {
		r.nextInquiry = time.Now().Add(registerRetry)
	}
	if r.producing && !q.registers { // Schedule was called during the inquiry: the next one registers the queue
		r.nextInquiry = time.Time{}
	}
	if counts == nil {
		q.err = err
	}
	r.inquiry = nil
	close(q.done)
}

// syncRegistry reads the partition counts of the queue, and registers known counts that the registry lacks. It forgets
// the counts of a deleted queue. If registers is set, it also registers the queue if the registry lacks it. Lookups
// leave registers unset, because they must not create a queue, for example under a misspelt name.
//
// The counts are nil only if they could not be read. If only the registration fails, syncRegistry returns counts and an
// error: messages can be scheduled all the same, because bridges find unregistered queues. It takes one round trip if
// the registry lacks nothing.
func (r *route) syncRegistry(ctx context.Context, registers bool) (lua.Counts, error) {
	c, key := r.producer.cfg.Client, r.producer.globals.Queues
	text, err := c.Do(ctx, c.B().Hget().Key(key).Field(r.queue).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		err = fmt.Errorf("read the partitions of %s: %w", r.queue, lua.Classify("HGET "+key, err))
		// If the deadline has passed, it is that of the inquiry, and not that of a caller. The connection may report it
		// before ctx.Err does.
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: no reply within %s: %v", lua.ErrUnavailable, registerTimeout, err)
		}
		return nil, err
	}
	counts := lua.ParseCounts(text)
	if known := r.known.Load(); known != nil {
		counts = counts.With(known.counts...)
	}
	switch {
	case text == counts.String(): // the registry lacks nothing
	case registers || text != "":
		found, err := lua.SyncCounts(ctx, c, r.producer.globals, map[string]lua.Counts{r.queue: counts})
		if err != nil {
			return counts, err
		}
		return found[r.queue], nil
	case counts.Latest() > 1:
		found, err := lua.CurrentCounts(ctx, c, r.producer.globals, map[string]lua.Counts{r.queue: counts})
		if err != nil {
			return counts, err
		}
		return found[r.queue], nil
	}
	return counts, nil
}

// awaitCounts waits until the registry has given the partition counts. It asks repeatedly, until RetryTimeout has
// passed since the given time.
func (r *route) awaitCounts(ctx context.Context, since time.Time) error {
	for {
		err := r.askRegistry(ctx)
		switch known := r.known.Load(); {
		case known != nil && !known.asked.IsZero():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !lua.Temporary(err) || time.Since(since) > r.producer.cfg.RetryTimeout:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryMax):
		}
	}
}

// refreshOldCounts reads the partition counts again if they are older than maxCountsAge: the producer has not been used
// meanwhile, and the queue may have grown. It waits for registerTimeout at most. If an inquiry has failed within
// registerEvery, it does not ask, and the old counts stay in use. The only error is that of the context.
func (r *route) refreshOldCounts(ctx context.Context) error {
	if time.Since(r.known.Load().asked) < maxCountsAge {
		return nil
	}
	r.mu.Lock()
	failing := time.Since(r.failed) < registerEvery
	r.mu.Unlock()
	if failing {
		return nil
	}
	_ = r.askRegistry(ctx)
	return ctx.Err()
}

// groupCommit returns the group commit of a partition.
func (r *route) groupCommit(partition int) *groupCommit {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.commits) <= partition {
		r.commits = append(r.commits, nil)
	}
	if r.commits[partition] == nil {
		r.commits[partition] = newGroupCommit(r, partition)
	}
	return r.commits[partition]
}

func (r *route) newID() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.producer.cfg.NewID()
	return id, lua.CheckID(id)
}

// report reports an event of n messages to the observer.
func (r *route) report(e observe.Event, n int) {
	if r.series != nil && n > 0 {
		r.series.Add(e, n)
	}
}
