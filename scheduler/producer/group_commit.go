package producer

import (
	"context"
	"runtime"
	"slices"
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

	worthACommit = 32 // least number of waiting messages for a further commit; also at least as many as are in flight
)

// groupCommit gathers the messages for one partition. They wait here while script calls are in flight, and go out
// together in the next one. Committers run only while there is something to send.
type groupCommit struct {
	p     *Producer
	queue string
	route *route
	keys  lua.Keys

	stranger atomic.Bool  // the last try failed: the server may be another one, or empty
	refusing atomic.Bool  // the server has refused EnqueueFresh, and Enqueue has not succeeded since
	longWay  atomic.Int64 // Unix ms; no EnqueueFresh before that, because it was refused

	mu         sync.Mutex
	waiting    []waiting
	room       chan struct{} // closed when fewer messages wait; nil = no caller waits for room
	idle       []*committer
	running    int
	inFlight   int         // messages
	last       *batchCall  // call of the last message that was sent
	forgetting *time.Timer // fires when nothing was sent for forgetAfter
}

// committer makes one commit after another.
type committer struct {
	done    string // token of its last commit, once the reply has arrived
	refused bool   // that commit refused messages; their marks stay behind beside its token
}

func newGroupCommit(p *Producer, partition string) *groupCommit {
	l := &groupCommit{p: p, queue: partition, keys: p.keys(partition)}
	most := maxInFlight
	if d := p.cfg.Durability; d.Fsync || d.Replicas > 0 {
		most = maxInFlightDurably
	}
	for range most {
		l.idle = append(l.idle, &committer{})
	}
	return l
}

// add queues messages for a commit, and blocks while too many wait. It generates missing IDs here, so that they are in
// the order of the commits, and writes them to the results. It answers messages that cannot be added.
func (g *groupCommit) add(ws []waiting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range ws {
		w := &ws[i]
		err := error(nil)
		for err == nil && len(g.waiting) >= 16*g.p.cfg.MaxCommit {
			err = g.waitForRoom(w.call.ctx)
		}
		if err == nil && w.item.ID == "" {
			w.item.ID = g.p.cfg.NewID()
			err = lua.CheckID(w.item.ID)
		}
		w.call.results[w.at].ID = w.item.ID
		if err != nil {
			w.call.answer(w.at, Result{Receipt{ID: w.item.ID}, wrap("schedule", g.queue, w.item.ID, err)})
			continue
		}
		if w.spread > 0 {
			w.item.When = w.item.When.Later(lua.SpreadOf(w.item.ID, w.spread))
		}
		if g.waiting == nil {
			g.waiting = make([]waiting, 0, len(ws)-i)
		}
		g.waiting = append(g.waiting, *w)
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
	case <-g.p.closed:
		return ErrClosed
	}
}

// start runs a committer if a commit is worth it.
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
	g.p.busy.Add(1) // the caller's own count keeps it above zero
	go g.run(c)
}

// lead makes the next commits in the caller's goroutine, as long as they only hold messages of its call. This saves two
// goroutine switches. A caller whose context may end never leads, because it could not return early.
func (g *groupCommit) lead(own *batchCall) {
	g.mu.Lock()
	alone := g.inFlight == 0 && len(g.idle) > 0 && own.ctx.Done() == nil && len(g.waiting) > 0 &&
		g.waiting[0].call == own && g.waiting[len(g.waiting)-1].call == own
	if !alone {
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
		if g.handOn(c, own, len(batch)) {
			return
		}
		batch = g.nextBatch(c, len(batch))
	}
}

// handOn releases a committer that has no messages of the call left to send. It returns false if it has some left.
func (g *groupCommit) handOn(c *committer, own *batchCall, answered int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || g.waiting[0].call == own {
		return false // nextBatch ends the term, or goes on
	}
	g.inFlight -= answered
	g.idle = append(g.idle, c)
	g.running--
	g.startLocked()
	return true
}

// isWorthACommit reports whether the waiting messages should be sent now: always if nothing is in flight; else only if
// they are many, and do not continue a call whose messages are in flight, because those go out in order.
func (g *groupCommit) isWorthACommit() bool {
	n := len(g.waiting)
	if g.inFlight == 0 {
		return n > 0
	}
	return n >= max(worthACommit, g.inFlight) && g.waiting[0].call != g.last
}

func (g *groupCommit) run(c *committer) {
	defer g.p.busy.Done()
	for batch := g.nextBatch(c, 0); batch != nil; batch = g.nextBatch(c, len(batch)) {
		g.commit(c, batch)
		runtime.Gosched() // callers that just got their answer may add more to the same commit
	}
}

// nextBatch returns the messages of the next commit, after a commit of this many was answered. If there are none, it
// ends the committer's term.
func (g *groupCommit) nextBatch(c *committer, answered int) []waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight -= answered
	if !g.isWorthACommit() {
		g.endTerm(c)
		return nil
	}
	n := g.size()
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

// size returns the number of messages in the next commit. It splits the messages of a call only if they do not fit into
// one commit: the second part must wait for the answer to the first.
func (g *groupCommit) size() int {
	n := g.fitting(g.waiting)
	if n == len(g.waiting) || g.waiting[n].call != g.waiting[n-1].call {
		return n
	}
	first := n - 1
	for first > 0 && g.waiting[first-1].call == g.waiting[n].call {
		first--
	}
	whole := g.waiting[first:]
	if fit := g.fitting(whole); first > 0 && (fit == len(whole) || whole[fit].call != whole[0].call) {
		return first
	}
	return n
}

// fitting returns how many messages fit into one commit, at least one.
func (g *groupCommit) fitting(waiting []waiting) int {
	n, bytes := 0, 0
	for n < len(waiting) && n < g.p.cfg.MaxCommit {
		bytes += itemSize(&waiting[n].item)
		if n > 0 && bytes > g.p.cfg.MaxCommitBytes {
			break
		}
		n++
	}
	return n
}

// endTerm ends a committer's term.
func (g *groupCommit) endTerm(c *committer) {
	g.idle = append(g.idle, c)
	if g.running--; g.running > 0 {
		return
	}
	g.waiting, g.last = nil, nil
	if slices.ContainsFunc(g.idle, func(c *committer) bool { return c.done != "" }) {
		g.forgetSoon()
	}
}

// forgetSoon clears the last tokens after forgetAfter, unless a further commit clears them: an idle queue holds none.
func (g *groupCommit) forgetSoon() {
	if g.forgetting == nil {
		g.forgetting = time.AfterFunc(forgetAfter, g.forget)
	} else {
		g.forgetting.Reset(forgetAfter)
	}
}

// forget clears the tokens of all committers. None of them commits meanwhile.
func (g *groupCommit) forget() {
	if !g.p.begin() {
		return // Close clears them
	}
	defer g.p.busy.Done()
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
			_, _ = lua.Enqueue(ctx, g.p.cfg.Client, g.keys, lua.Token{Done: c.done}, nil, lua.Durability{})
		}
		c.done = ""
	}
}

// commit sends messages in one script call, and gives each its result. It does not send messages whose callers have
// left.
func (g *groupCommit) commit(c *committer, batch []waiting) {
	batch = slices.DeleteFunc(batch, func(w waiting) bool {
		err := w.call.ctx.Err()
		if err != nil {
			w.call.answer(w.at, Result{Receipt{ID: w.item.ID}, wrap("schedule", g.queue, w.item.ID, err)})
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
	receipts, waited, err := g.send(c, items, batch[0].since)
	g.tell(receipts, err)
	answerAll(batch, func(i int) Result {
		id := batch[i].item.ID
		r := Result{Receipt: Receipt{ID: id}, Err: err}
		if err == nil {
			r = result(id, receipts[i], waited)
		}
		r.Err = wrap("schedule", g.queue, id, r.Err)
		return r
	})
}

// tell reports the outcomes of a commit to the observer.
func (g *groupCommit) tell(receipts []lua.Receipt, err error) {
	if g.route.tell == nil || err != nil {
		return
	}
	var by [lua.Replaced + 1]int
	for _, r := range receipts {
		if r.Verdict >= 0 && int(r.Verdict) < len(by) {
			by[r.Verdict]++
		}
	}
	g.route.told(observe.Duplicate, by[lua.Duplicate])
	g.route.told(observe.Enqueued, by[lua.Scheduled]+by[lua.Ready]+by[lua.Repeated]+by[lua.Replaced])
	g.route.told(observe.EnqueuedReady, by[lua.Ready])
}

// send makes one enqueue call, repeated under its token if the reply was lost. It ignores the contexts of callers.
// waited is set if the commit was stored but is not as durable as asked.
//
// The committer's next commit clears the token, but only after a single clean try. An earlier try that is still in
// flight must find the token: otherwise it would store everything again. Such a token ends with its window.
func (g *groupCommit) send(c *committer, items []lua.Item, since time.Time) (receipts []lua.Receipt, waited, err error) {
	token := lua.Token{
		Name: g.p.newToken(),
		Done: c.done, Window: g.p.window,
	}
	clean, err := g.p.repeat(context.Background(), since, func(ctx context.Context) error {
		g.register(ctx)
		var err error
		receipts, err = g.take(ctx, c, token, items)
		waited, err = setAside(err)
		g.stranger.Store(err != nil)
		return err
	})
	c.done, c.refused = "", false
	if clean && err == nil {
		c.done = token.Name
		c.refused = slices.ContainsFunc(receipts, func(r lua.Receipt) bool { return r.Verdict <= lua.Duplicate })
	}
	return receipts, waited, err
}

// take makes one try of a commit. It uses EnqueueFresh where possible, at half the server's cost. If EnqueueFresh
// refuses, take calls Enqueue, which refuses less. The following commits also use Enqueue, until longWayFor after it
// first succeeded: a commit that both refuse leaves its payloads behind.
func (g *groupCommit) take(ctx context.Context, c *committer, token lua.Token, items []lua.Item) ([]lua.Receipt, error) {
	now, d := time.Now(), g.p.cfg.Durability
	short := !c.refused && !g.refusing.Load() && now.UnixMilli() >= g.longWay.Load()
	if short && !d.Fsync && d.Replicas == 0 && lua.AllFresh(items, now) {
		receipts, err := lua.EnqueueFresh(ctx, g.p.cfg.Client, g.keys, token, items)
		if err == nil || lua.Ambiguous(err) || lua.Temporary(err) {
			return receipts, err
		}
		g.refusing.Store(true)
	}
	receipts, err := lua.Enqueue(ctx, g.p.cfg.Client, g.keys, token, items, d)
	if err == nil && g.refusing.Load() {
		g.longWay.Store(now.Add(longWayFor).UnixMilli())
		g.refusing.Store(false)
	}
	return receipts, err
}
