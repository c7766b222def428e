package producer

import (
	"cmp"
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
	p     *Producer
	queue string
	state loop.Reporter
	tell  observe.Series              // nil = no observer
	known atomic.Pointer[knownCounts] // nil before the first look at the registry

	mu        sync.Mutex
	commits   []*groupCommit // by partition; nil = not used yet
	producing bool           // a message is or was scheduled; else the queue is not registered
	inquiry   *inquiry       // in flight
	next      time.Time      // when the next one is due
	failed    time.Time      // when the last one ended, if it could not read the counts
}

// knownCounts are all partition counts that the registry ever gave for a queue. They are kept when the registry loses
// some, and forgotten when the queue is deleted.
type knownCounts struct {
	counts lua.Counts
	asked  time.Time // zero: the registry never answered; partition 0 is always right
}

// inquiry is one request to the registry.
type inquiry struct {
	registers bool // also adds what the registry lacks, including the queue itself
	done      chan struct{}
	err       error // set before done is closed
}

func newRoute(p *Producer, queue string) *route {
	log := p.cfg.Logger.With(slog.String("queue", queue))
	return &route{p: p, queue: queue, state: loop.Reporter{Log: log, Activity: "register", Quiet: lua.Temporary},
		tell: observe.SeriesOf(p.cfg.Observer, observe.Client, queue, "")}
}

// told reports an event of n messages to the observer.
func (r *route) told(e observe.Event, n int) {
	if r.tell != nil && n > 0 {
		r.tell.Add(e, n)
	}
}

// groupCommit returns the group commit of a partition.
func (r *route) groupCommit(partition int) *groupCommit {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.commits) <= partition {
		r.commits = append(r.commits, nil)
	}
	l := r.commits[partition]
	if l == nil {
		l = newGroupCommit(r.p, lua.PartitionName(r.queue, partition))
		l.queue, l.route = r.queue, r
		r.commits[partition] = l
	}
	return l
}

// counts returns the known partition counts. At first use of the queue it waits for the registry, but not for long: on
// a cluster the registry may be out of reach while the queue is not. The only error is that of the context.
func (r *route) counts(ctx context.Context) (*knownCounts, error) {
	if k := r.known.Load(); k != nil {
		return k, nil
	}
	_ = r.ask(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.known.Load(), nil
}

// read returns when the registry has given the partition counts. It asks repeatedly, until RetryTimeout has passed
// since the given time.
func (r *route) read(ctx context.Context, since time.Time) error {
	for {
		err := r.ask(ctx)
		switch k := r.known.Load(); {
		case k != nil && !k.asked.IsZero():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !lua.Temporary(err) || time.Since(since) > r.p.cfg.RetryTimeout:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryMax):
		}
	}
}

// readAgain reads the partition counts once more if they are old: this producer rested, and the queue may have grown
// meanwhile. It waits for registerTimeout at most. For registerEvery after an inquiry that failed it does not wait, and
// the old counts stay in use. The only error is that of the context.
func (r *route) readAgain(ctx context.Context) error {
	if time.Since(r.known.Load().asked) < restedAfter {
		return nil
	}
	r.mu.Lock()
	failing := time.Since(r.failed) < registerEvery
	r.mu.Unlock()
	if failing {
		return nil
	}
	_ = r.ask(ctx)
	return ctx.Err()
}

// ask asks the registry, and waits for the answer, for registerTimeout at most. Concurrent callers share one inquiry.
func (r *route) ask(ctx context.Context) error {
	q := r.begin(time.Time{})
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refresh starts an inquiry if the last one is old. It does not wait.
func (r *route) refresh() { r.begin(time.Now()) }

// begin starts an inquiry if one is due by now, unless one is in flight. With the zero time one is always due. It
// returns the inquiry in flight, if any.
func (r *route) begin(now time.Time) *inquiry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inquiry == nil && (now.IsZero() || !now.Before(r.next)) {
		r.inquiry = &inquiry{registers: r.producing, done: make(chan struct{})}
		r.p.busy.Add(1) // the caller's own count keeps it above zero
		go r.run(r.inquiry)
	}
	return r.inquiry
}

func (r *route) run(q *inquiry) {
	defer r.p.busy.Done()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	counts, err := r.sync(ctx, q.registers)
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
	r.next = time.Now().Add(registerEvery)
	if err != nil {
		r.next = time.Now().Add(registerRetry)
	}
	if r.producing && !q.registers {
		r.next = time.Time{}
	}
	if counts == nil {
		q.err = err
	}
	r.inquiry = nil
	close(q.done)
}

// sync reads the partition counts of the queue, and registers known counts that the registry lacks. It forgets the
// counts of a deleted queue. With registers it also registers the queue if it is new or was lost. A caller that only
// looks for messages, perhaps under a misspelt name, creates no queue. Counts are nil only if they could not be read. A
// failure to register is only reported, because bridges find queues, too. One round trip if nothing is missing.
func (r *route) sync(ctx context.Context, registers bool) (lua.Counts, error) {
	c, key := r.p.cfg.Client, r.p.globals.Queues
	text, err := c.Do(ctx, c.B().Hget().Key(key).Field(r.queue).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		err = fmt.Errorf("read the partitions of %s: %w", r.queue, lua.Classify("HGET "+key, err))
		// The deadline of the inquiry has passed, not a caller's. The connection may report it before the context does.
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: no reply within %s: %v", lua.ErrUnavailable, registerTimeout, err)
		}
		return nil, err
	}
	counts := lua.ParseCounts(text)
	if k := r.known.Load(); k != nil {
		counts = counts.With(k.counts...)
	}
	switch {
	case text == counts.String():
	case registers || text != "":
		found, err := lua.SyncCounts(ctx, c, r.p.globals, map[string]lua.Counts{r.queue: counts})
		if err != nil {
			return counts, err
		}
		return found[r.queue], nil
	case counts.Latest() > 1:
		found, err := lua.CurrentCounts(ctx, c, r.p.globals, map[string]lua.Counts{r.queue: counts})
		if err != nil {
			return counts, err
		}
		return found[r.queue], nil
	}
	return counts, nil
}

// register makes the bridges know the queue, and the producer its partitions. It waits only after a commit that failed.
func (g *groupCommit) register(ctx context.Context) {
	if g.stranger.Load() {
		_ = g.route.ask(ctx)
	} else {
		g.route.refresh()
	}
}

// batchRoute routes the messages of one call to the group commits of their partitions.
type batchRoute struct {
	route  *route
	counts lua.Counts
	only   *groupCommit   // if the queue has one partition
	used   []*groupCommit // if the queue has several partitions

	unread error // why the partitions are unknown although a message needs them: see needsPartitions

	takes map[int]taking // extra work of replacements, by index in the batch

	contestedSince time.Time // when a message of the call first began again; zero = never
}

// batchRoute returns the route of messages to their partitions, and marks the queue to be registered. For messages with
// a key or a chosen ID it waits longer for the registry.
func (r *route) batchRoute(ctx context.Context, ms []Message, since time.Time) (batchRoute, error) {
	r.mu.Lock()
	if !r.producing { // lookups so far did not register the queue
		r.producing, r.next = true, time.Time{}
	}
	r.mu.Unlock()
	k, err := r.counts(ctx)
	if err != nil {
		return batchRoute{}, err
	}
	var unread error
	needed := slices.ContainsFunc(ms, needsPartitions)
	if needed && k.asked.IsZero() {
		unread = r.read(ctx, since)
		err = ctx.Err()
	} else if needed || k.counts.Latest() > 1 { // the queue may have been deleted, and have fewer partitions now
		err = r.readAgain(ctx)
	}
	if err != nil {
		return batchRoute{}, err
	}
	k = r.known.Load()
	s := batchRoute{route: r, counts: k.counts, unread: unread}
	if k.counts.Latest() == 1 {
		s.only = r.groupCommit(0)
	}
	return s, nil
}

// add queues messages for the commits of their partitions: see groupCommit.add. With several partitions missing IDs are
// generated here, because they decide the partition.
func (s *batchRoute) add(ws []waiting) {
	if s.only != nil {
		s.only.add(ws)
		return
	}
	for i := range ws {
		w := &ws[i]
		if w.item.ID == "" {
			var err error
			if w.item.ID, err = s.route.newID(); err != nil {
				w.call.answer(w.at, Result{Receipt{ID: w.item.ID}, wrap("schedule", s.route.queue, w.item.ID, err)})
				continue
			}
		}
		partition := s.counts.Of(cmp.Or(w.key, w.item.ID))
		if t, replaces := s.takes[w.at]; replaces {
			partition, w.item.Meta = t.to, lua.Marked(w.item.Meta)
			if t.window > 0 {
				w.item.Dedup = lua.Window(t.window)
			}
		}
		l := s.route.groupCommit(partition)
		if !slices.Contains(s.used, l) {
			s.used = append(s.used, l)
		}
		l.add(ws[i : i+1])
	}
}

func (r *route) newID() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.p.cfg.NewID()
	return id, lua.CheckID(id)
}

// start starts the commits of the added messages.
func (s *batchRoute) start(c *batchCall) {
	if s.only != nil {
		s.only.lead(c)
	}
	for _, l := range s.used {
		l.start()
	}
}
