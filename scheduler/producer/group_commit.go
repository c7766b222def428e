package producer

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

const (
	// With two commits in flight, the server has work while callers are answered. More would only make commits smaller.
	// With a durability the wait for it takes most of the time, so more may be in flight.
	maxInFlight        = 2
	maxInFlightDurably = 16

	// freshPause is the least time from the Enqueue that succeeds after a refusal of EnqueueFresh to the next
	// EnqueueFresh. It is also the time for which EnqueueOne is not tried after a queue turned out to keep a history.
	freshPause = 10 * time.Second
	// afterNextEnqueue is the value of groupCommit.freshFrom from a refusal of EnqueueFresh until an Enqueue succeeds.
	afterNextEnqueue = math.MaxInt64

	// While a commit is in flight, another one needs at least minFurtherCommit waiting messages: see isWorthACommit.
	minFurtherCommit = 32
)

// groupCommit gathers the messages for one partition. They wait in it while script calls are in flight, and are sent
// together in the next call. Committers run only while messages wait.
type groupCommit struct {
	producer *Producer
	route    *route
	keys     lua.Keys

	lastFailed atomic.Bool  // the last try failed: a failover may have led to another server, or an empty one
	freshFrom  atomic.Int64 // Unix ms from which EnqueueFresh may be used; see mayUseFresh
	oneFrom    atomic.Int64 // Unix ms from which EnqueueOne may be used; see mayUseOne

	mu         sync.Mutex
	waiting    []waiting
	room       chan struct{} // closed when fewer messages wait; nil = no caller waits for room
	idle       []*committer
	running    int         // number of committers that are not idle
	inFlight   int         // number of messages that were sent and not answered yet
	last       *batchCall  // call of the last message that was sent
	forgetting *time.Timer // fires when nothing was sent for forgetAfter
}

// committer makes one commit after another.
type committer struct {
	done string // the token that the next commit clears; "" = none, or a token that ends with its window
	// remembered: the server remembers the token of the last try, if that was the first one of its commit.
	remembered bool
	// refused: the last commit refused messages. The server keeps a record of each refusal with the token, until an
	// Enqueue clears both.
	refused bool
}

func newGroupCommit(r *route, partition int) *groupCommit {
	name := lua.PartitionName(r.queue, partition)
	g := &groupCommit{producer: r.producer, route: r, keys: r.producer.keys(name)}
	most := maxInFlight
	if r.producer.cfg.Durability.Waits() {
		most = maxInFlightDurably
	}
	for range most {
		g.idle = append(g.idle, &committer{})
	}
	return g
}

// add adds messages to the waiting ones, and blocks while too many wait. It generates missing IDs, so that the IDs are
// in the order of the commits, and writes all IDs to the results. If a message cannot be added, add sets its result.
func (g *groupCommit) add(messages []waiting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range messages {
		message := &messages[i]
		err := error(nil)
		for err == nil && len(g.waiting) >= 16*g.producer.cfg.MaxCommit {
			err = g.waitForRoom(message.call.ctx)
		}
		if err == nil && message.item.ID == "" {
			message.item.ID = g.producer.cfg.NewID()
			err = lua.CheckID(message.item.ID)
		}
		message.call.results[message.index].ID = message.item.ID
		if err != nil {
			id := message.item.ID
			message.call.answer(message.index, Result{Receipt{ID: id}, wrap("schedule", g.route.queue, id, err)})
			continue
		}
		if message.spread > 0 {
			message.item.When = message.item.When.Later(lua.SpreadOf(message.item.ID, message.spread))
		}
		if g.waiting == nil {
			g.waiting = make([]waiting, 0, len(messages)-i)
		}
		g.waiting = append(g.waiting, *message)
	}
}

// waitForRoom blocks until fewer messages wait. It releases the lock meanwhile.
func (g *groupCommit) waitForRoom(ctx context.Context) error {
	if g.room == nil {
		g.room = make(chan struct{})
	}
	room := g.room
	g.startLocked()
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.producer.closed:
		return ErrClosed
	}
}

// commitInCaller makes the next commits in the caller's goroutine while they hold only messages of its call. This saves
// two goroutine switches. If messages of other calls wait as well, or the context of the call can end, a committer's
// goroutine makes the commits instead, because a caller that commits could not return when its context ends.
func (g *groupCommit) commitInCaller(own *batchCall) {
	g.mu.Lock()
	n := len(g.waiting)
	onlyOwnWait := n > 0 && g.waiting[0].call == own && g.waiting[n-1].call == own
	mayCommit := onlyOwnWait && g.inFlight == 0 && len(g.idle) > 0 && own.ctx.Done() == nil
	if !mayCommit {
		defer g.mu.Unlock()
		g.startLocked()
		return
	}
	c := g.idle[len(g.idle)-1]
	g.idle = g.idle[:len(g.idle)-1]
	g.running++
	g.mu.Unlock()
	for batch := g.nextBatch(c, 0); batch != nil; {
		g.commit(c, batch)
		if g.handOver(c, own, len(batch)) {
			return
		}
		batch = g.nextBatch(c, len(batch))
	}
}

// handOver makes the committer idle if the next waiting message belongs to another call, and starts a goroutine for
// that message. answered is the number of messages in the commit that was just answered. If no message waits, or the
// next one belongs to the call own, handOver returns false: then nextBatch makes the committer idle, or returns the
// next batch.
func (g *groupCommit) handOver(c *committer, own *batchCall, answered int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || g.waiting[0].call == own {
		return false
	}
	g.inFlight -= answered
	g.idle = append(g.idle, c)
	g.running--
	g.startLocked()
	return true
}

// nextBatch returns the messages of the next commit. answered is the number of messages in the commit that was just
// answered. If no commit should be made now, nextBatch makes the committer idle and returns nil.
func (g *groupCommit) nextBatch(c *committer, answered int) []waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight -= answered
	if !g.isWorthACommit() {
		g.makeIdle(c)
		return nil
	}
	n := g.commitSize()
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	g.inFlight += n
	g.last = batch[n-1].call
	if g.room != nil {
		close(g.room)
		g.room = nil
	}
	return batch
}

// isWorthACommit reports whether the waiting messages should be sent now. If nothing is in flight, they should. While a
// commit is in flight, they should only if there are many, at least as many as are in flight. They also must not
// continue the call of the last message that was sent, because the messages of a call are stored in order.
func (g *groupCommit) isWorthACommit() bool {
	n := len(g.waiting)
	if g.inFlight == 0 {
		return n > 0
	}
	return n >= max(minFurtherCommit, g.inFlight) && g.waiting[0].call != g.last
}

// commitSize returns the number of messages in the next commit. It splits the messages of a call only if they do not
// fit into one commit, because the second part must wait for the answer to the first.
func (g *groupCommit) commitSize() int {
	n := g.fitting(g.waiting)
	if n == len(g.waiting) || g.waiting[n].call != g.waiting[n-1].call {
		return n
	}
	first := n - 1
	for first > 0 && g.waiting[first-1].call == g.waiting[n].call {
		first--
	}
	// If the call that would be split fits into a commit of its own, leave all of its messages for the next commit.
	fromCall := g.waiting[first:]
	fit := g.fitting(fromCall)
	callFits := fit == len(fromCall) || fromCall[fit].call != fromCall[0].call
	if first > 0 && callFits {
		return first
	}
	return n
}

// fitting returns how many messages fit into one commit, at least one.
func (g *groupCommit) fitting(waiting []waiting) int {
	n, bytes := 0, 0
	for n < len(waiting) && n < g.producer.cfg.MaxCommit {
		bytes += itemSize(&waiting[n].item)
		if n > 0 && bytes > g.producer.cfg.MaxCommitBytes {
			break
		}
		n++
	}
	return n
}

// commit sends messages in one script call, and sets the result of each. It does not send messages whose context has
// ended.
func (g *groupCommit) commit(c *committer, batch []waiting) {
	batch = slices.DeleteFunc(batch, func(w waiting) bool {
		err := w.call.ctx.Err()
		if err != nil {
			w.call.answer(w.index, Result{Receipt{ID: w.item.ID}, wrap("schedule", g.route.queue, w.item.ID, err)})
		}
		return err != nil
	})
	if len(batch) == 0 {
		return
	}
	items := make([]lua.Item, len(batch))
	for i, w := range batch {
		items[i] = w.item
	}
	receipts, notDurable, err := g.send(c, items, batch[0].since)
	g.reportOutcomes(receipts, err)
	answerAll(batch, func(i int) Result {
		id := batch[i].item.ID
		r := Result{Receipt: Receipt{ID: id}, Err: err}
		if err == nil {
			r = result(id, receipts[i], notDurable)
		}
		r.Err = wrap("schedule", g.route.queue, id, r.Err)
		return r
	})
}

// send makes one enqueue call, and repeats it with the same token if the reply was lost. It ignores the contexts of
// callers. notDurable is set if the commit was stored but is not as durable as the producer's Durability.
//
// The committer's next commit clears the token, but only if no try failed after it was sent. A failed try that is still
// in flight must find the token, because it would otherwise store everything again. Such a token ends with its window.
func (g *groupCommit) send(c *committer, items []lua.Item,
	since time.Time) (receipts []lua.Receipt, notDurable, err error) {
	token := lua.Token{Name: g.producer.newToken(), Done: c.done, Window: g.producer.tokenWindow}
	again := false
	clean, err := g.producer.repeat(context.Background(), since, func(ctx context.Context) error {
		g.register(ctx)
		var err error
		receipts, err = g.enqueue(ctx, c, token, again, items)
		again = true
		notDurable, err = splitNotDurable(err)
		g.lastFailed.Store(err != nil)
		return err
	})
	c.done, c.refused = "", false
	if clean && err == nil {
		if c.remembered {
			c.done = token.Name
		}
		c.refused = slices.ContainsFunc(receipts, func(r lua.Receipt) bool { return r.Verdict <= lua.Duplicate })
	}
	return receipts, notDurable, err
}

// newToken returns a name that no other commit has.
func (p *Producer) newToken() string { return p.name + "-" + strconv.FormatUint(p.tokens.Add(1), 36) }

// register starts to register the queue, and to read its partition counts, if it is time for that. It waits for the
// answer only if the last try failed.
func (g *groupCommit) register(ctx context.Context) {
	if g.lastFailed.Load() {
		_ = g.route.askRegistry(ctx)
	} else {
		g.route.beginInquiryIfDue(time.Now())
	}
}

// enqueue makes one try of a commit by EnqueueOne, EnqueueFresh or Enqueue: see mayUseOne and mayUseFresh. again
// tells that it is not the first try. If EnqueueOne or EnqueueFresh refuses the messages, enqueue calls Enqueue with
// the same token, because Enqueue refuses less.
func (g *groupCommit) enqueue(ctx context.Context, c *committer, token lua.Token, again bool,
	items []lua.Item) ([]lua.Receipt, error) {
	cfg, now := &g.producer.cfg, time.Now()
	if g.mayUseFresh(c, items, now) {
		receipts, err := g.enqueueFresh(ctx, c, token, again, items, now)
		if err == nil || lua.Ambiguous(err) || lua.Temporary(err) {
			return receipts, err
		}
		g.freshFrom.Store(afterNextEnqueue)
	}
	c.remembered = true
	receipts, err := lua.Enqueue(ctx, cfg.Client, g.keys, token, items, cfg.Durability)
	if err == nil && g.freshFrom.Load() == afterNextEnqueue {
		g.freshFrom.Store(now.Add(freshPause).UnixMilli())
	}
	return receipts, err
}

// enqueueFresh makes one try by EnqueueOne or EnqueueFresh. If EnqueueOne finds that the queue keeps a history,
// EnqueueFresh follows.
func (g *groupCommit) enqueueFresh(ctx context.Context, c *committer, token lua.Token, again bool, items []lua.Item,
	now time.Time) ([]lua.Receipt, error) {
	if g.mayUseOne(items, now) {
		c.remembered = lua.IsRemembered(token, items[0], now)
		receipt, taken, err := lua.EnqueueOne(ctx, g.producer.cfg.Client, g.keys, token, again, items[0])
		if taken || err != nil {
			return []lua.Receipt{receipt}, err
		}
		g.oneFrom.Store(now.Add(freshPause).UnixMilli())
	}
	c.remembered = true
	return lua.EnqueueFresh(ctx, g.producer.cfg.Client, g.keys, token, items)
}

// mayUseOne reports whether a commit for which mayUseFresh is true uses EnqueueOne. The commit must have one small
// message. It is false for freshPause after EnqueueOne found that the queue keeps a history.
func (g *groupCommit) mayUseOne(items []lua.Item, now time.Time) bool {
	return len(items) == 1 && len(items[0].Payload)+len(items[0].Meta) <= lua.MostOneBytes &&
		now.UnixMilli() >= g.oneFrom.Load()
}

// mayUseFresh reports whether a commit uses EnqueueOne or EnqueueFresh. They cost the server at most half as much as
// Enqueue. Each of these conditions makes the commit use Enqueue:
//
//   - The producer waits for a durability. The wait must use the same connection as the script.
//   - A message has a chosen ID, has no payload, or is due.
//   - The committer's last commit refused messages. Only Enqueue clears the records of these refusals.
//   - The server has refused EnqueueOne or EnqueueFresh. A refused EnqueueFresh may leave payloads on the server,
//     and if Enqueue is refused as well, nothing uses them. So EnqueueFresh is not tried again before Enqueue has
//     succeeded and freshPause has passed.
func (g *groupCommit) mayUseFresh(c *committer, items []lua.Item, now time.Time) bool {
	return !g.producer.cfg.Durability.Waits() && !c.refused && now.UnixMilli() >= g.freshFrom.Load() &&
		lua.AllFresh(items, now)
}

// reportOutcomes reports the outcomes of a commit to the observer.
func (g *groupCommit) reportOutcomes(receipts []lua.Receipt, err error) {
	if g.route.series == nil || err != nil {
		return
	}
	var by [lua.Replaced + 1]int
	for _, r := range receipts {
		if r.Verdict >= 0 && int(r.Verdict) < len(by) {
			by[r.Verdict]++
		}
	}
	g.route.report(observe.Duplicate, by[lua.Duplicate])
	g.route.report(observe.Enqueued, by[lua.Scheduled]+by[lua.Ready]+by[lua.Repeated]+by[lua.Replaced])
	g.route.report(observe.EnqueuedReady, by[lua.Ready])
}

// start starts a committer if a commit should be made now.
func (g *groupCommit) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.startLocked()
}

func (g *groupCommit) startLocked() {
	if len(g.idle) == 0 || !g.isWorthACommit() {
		return
	}
	c := g.idle[len(g.idle)-1]
	g.idle = g.idle[:len(g.idle)-1]
	g.running++
	g.producer.busy.Add(1) // busy is above zero already, because the caller is counted
	go g.run(c)
}

func (g *groupCommit) run(c *committer) {
	defer g.producer.busy.Done()
	for batch := g.nextBatch(c, 0); batch != nil; batch = g.nextBatch(c, len(batch)) {
		g.commit(c, batch)
		runtime.Gosched() // lets callers that just got their answer add messages to the next commit
	}
}

// makeIdle adds a committer to the idle ones.
func (g *groupCommit) makeIdle(c *committer) {
	g.idle = append(g.idle, c)
	if g.running--; g.running > 0 {
		return
	}
	g.waiting, g.last = nil, nil // no committer runs, so no message is in flight or waits: this only frees memory
	if slices.ContainsFunc(g.idle, func(c *committer) bool { return c.done != "" }) {
		g.forgetSoon()
	}
}

// forgetSoon clears the committers' tokens after forgetAfter, so that an idle queue holds none.
func (g *groupCommit) forgetSoon() {
	if g.forgetting == nil {
		g.forgetting = time.AfterFunc(forgetAfter, g.forget)
	} else {
		g.forgetting.Reset(forgetAfter)
	}
}

// forget clears the tokens of all committers. It takes them off the idle list meanwhile, so that none makes a commit.
func (g *groupCommit) forget() {
	if !g.producer.begin() {
		return // Close clears the tokens
	}
	defer g.producer.busy.Done()
	g.mu.Lock()
	if g.running > 0 {
		g.mu.Unlock()
		return
	}
	all := g.idle
	g.idle, g.running = nil, len(all)
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	g.clear(ctx, all)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle, g.running = all, 0
	g.startLocked()
}

// clear clears the tokens of idle committers. A token that it fails to clear ends with its window.
func (g *groupCommit) clear(ctx context.Context, all []*committer) {
	for _, c := range all {
		if c.done != "" && ctx.Err() == nil {
			_, _ = lua.Enqueue(ctx, g.producer.cfg.Client, g.keys, lua.Token{Done: c.done}, nil, lua.Durability{})
		}
		c.done = ""
	}
}
