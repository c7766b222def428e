package producer

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
)

const (
	// While one commit is on its way another may follow, so that the server has work while callers are answered. With more, commits would
	// only become smaller; but where each waits to be durable, the wait is what takes time.
	maxInFlight        = 2
	maxInFlightDurably = 16

	worthACommit = 32 // messages that wait, at least, for a further commit; and as many as are on their way
)

// line is the group commit of one partition: messages wait here while script calls are in flight, and go out together in the next one.
// Committers run only while there is something to send.
type line struct {
	p     *Producer
	queue string
	route *route
	keys  lua.Keys

	stranger atomic.Bool // the last try failed: the server may be another, or empty

	mu         sync.Mutex
	waiting    []waiting
	room       chan struct{} // closed when fewer wait; nil = nobody waits for that
	idle       []*committer
	running    int
	inFlight   int         // messages
	last       *call       // of the message that went out last
	forgetting *time.Timer // fires when nothing was sent for a while
}

// committer makes one commit after the other.
type committer struct {
	done string // token of its last commit, once the reply has arrived
}

func newLine(p *Producer, partition string) *line {
	l := &line{p: p, queue: partition, keys: lua.NewKeys(p.cfg.Prefix, partition)}
	most := maxInFlight
	if d := p.cfg.Durability; d.Fsync || d.Replicas > 0 {
		most = maxInFlightDurably
	}
	for range most {
		l.idle = append(l.idle, &committer{})
	}
	return l
}

// add puts messages into the line, and blocks while the line is full. IDs are made here, so that they are in the line's order, and told to
// the calls. Messages that cannot be added are answered.
func (l *line) add(ws []waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ws {
		w := &ws[i]
		err := error(nil)
		for err == nil && len(l.waiting) >= 16*l.p.cfg.MaxCommit {
			err = l.waitForRoom(w.call.ctx)
		}
		if err == nil && w.item.ID == "" {
			w.item.ID = l.p.cfg.NewID()
			err = lua.CheckID(w.item.ID)
		}
		w.call.results[w.at].ID = w.item.ID
		if err != nil {
			w.call.answer(w.at, Result{Receipt{ID: w.item.ID}, wrap("schedule", l.queue, w.item.ID, err)})
			continue
		}
		if l.waiting == nil {
			l.waiting = make([]waiting, 0, len(ws)-i)
		}
		l.waiting = append(l.waiting, *w)
	}
}

// waitForRoom lets go of the lock meanwhile.
func (l *line) waitForRoom(ctx context.Context) error {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	room := l.room
	l.startLocked()
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.p.closed:
		return ErrClosed
	}
}

// start runs a committer, if one is worth it.
func (l *line) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.startLocked()
}

func (l *line) startLocked() {
	if len(l.idle) == 0 || !l.worth() {
		return
	}
	c := l.idle[len(l.idle)-1]
	l.idle = l.idle[:len(l.idle)-1]
	l.running++
	l.p.busy.Add(1) // the caller's own share keeps it above zero
	go l.run(c)
}

// lead makes the next commits in the caller's own goroutine, which saves two hand-overs, while they hold messages of its call alone. A
// caller whose context may end is not asked to: it could not leave.
func (l *line) lead(own *call) {
	l.mu.Lock()
	alone := l.inFlight == 0 && len(l.idle) > 0 && own.ctx.Done() == nil && len(l.waiting) > 0 &&
		l.waiting[0].call == own && l.waiting[len(l.waiting)-1].call == own
	if !alone {
		defer l.mu.Unlock()
		l.startLocked()
		return
	}
	c := l.idle[len(l.idle)-1]
	l.idle = l.idle[:len(l.idle)-1]
	l.running++
	l.mu.Unlock()
	for batch := l.take(c, 0); batch != nil; {
		l.commit(c, batch)
		if l.give(c, own, len(batch)) {
			return
		}
		batch = l.take(c, len(batch))
	}
}

// give hands a committer on that has nothing left to do for a call; false: it has.
func (l *line) give(c *committer, own *call, answered int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 || l.waiting[0].call == own {
		return false // it ends its term, or goes on
	}
	l.inFlight -= answered
	l.idle = append(l.idle, c)
	l.running--
	l.startLocked()
	return true
}

// worth says whether what waits should go out now: always when nothing else is on its way, else when it is much, and does not continue a
// batch that is on its way, which goes out in order.
func (l *line) worth() bool {
	n := len(l.waiting)
	if l.inFlight == 0 {
		return n > 0
	}
	return n >= max(worthACommit, l.inFlight) && l.waiting[0].call != l.last
}

func (l *line) run(c *committer) {
	defer l.p.busy.Done()
	for batch := l.take(c, 0); batch != nil; batch = l.take(c, len(batch)) {
		l.commit(c, batch)
		runtime.Gosched() // those just answered may have more, for the same commit
	}
}

// take returns the messages of the next commit, after one of so many was answered. With none it ends the committer's term.
func (l *line) take(c *committer, answered int) []waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight -= answered
	if !l.worth() {
		l.rest(c)
		return nil
	}
	n, bytes := 0, 0
	for n < len(l.waiting) && n < l.p.cfg.MaxCommit {
		bytes += size(&l.waiting[n].item)
		if n > 0 && bytes > l.p.cfg.MaxCommitBytes {
			break
		}
		n++
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.inFlight += n
	l.last = batch[n-1].call
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
	return batch
}

// rest ends a committer's term.
func (l *line) rest(c *committer) {
	l.idle = append(l.idle, c)
	if l.running--; l.running > 0 {
		return
	}
	l.waiting, l.last = nil, nil
	if slices.ContainsFunc(l.idle, func(c *committer) bool { return c.done != "" }) {
		l.forgetSoon()
	}
}

// forgetSoon has the last tokens cleared when no further commit does so: an idle queue holds nothing.
func (l *line) forgetSoon() {
	if l.forgetting == nil {
		l.forgetting = time.AfterFunc(forgetAfter, l.forget)
	} else {
		l.forgetting.Reset(forgetAfter)
	}
}

// forget clears the tokens of all committers, which rest meanwhile.
func (l *line) forget() {
	if !l.p.begin() {
		return // Close does it
	}
	defer l.p.busy.Done()
	l.mu.Lock()
	if l.running > 0 {
		l.mu.Unlock()
		return
	}
	all := l.idle
	l.idle, l.running = nil, len(all)
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	l.clear(ctx, all)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle, l.running = all, 0
	l.startLocked()
}

// clear has the tokens of committers that rest forgotten. One that cannot be cleared ends with its window.
func (l *line) clear(ctx context.Context, all []*committer) {
	for _, c := range all {
		if c.done != "" && ctx.Err() == nil {
			_, _ = lua.Enqueue(ctx, l.p.cfg.Client, l.keys, lua.Token{Done: c.done}, nil, lua.Durability{})
		}
		c.done = ""
	}
}

// commit sends messages in one script call and gives each its answer. Those whose callers have left are not sent.
func (l *line) commit(c *committer, batch []waiting) {
	batch = slices.DeleteFunc(batch, func(w waiting) bool {
		err := w.call.ctx.Err()
		if err != nil {
			w.call.answer(w.at, Result{Receipt{ID: w.item.ID}, wrap("schedule", l.queue, w.item.ID, err)})
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
	receipts, waited, err := l.send(c, items, batch[0].since)
	answerAll(batch, func(i int) Result {
		id := batch[i].item.ID
		r := Result{Receipt: Receipt{ID: id}, Err: err}
		if err == nil {
			r = result(id, receipts[i], waited)
		}
		r.Err = wrap("schedule", l.queue, id, r.Err)
		return r
	})
}

// send makes one enqueue, repeated under its token when the reply was lost. A caller's context plays no part. Waited is set when the
// commit was taken, but is not as durable as asked.
//
// The token of a commit is cleared with the committer's next one, but only after a single clean try: when an earlier try is still on its way,
// it must find the token, or it would store everything again. Such a token ends with its window.
func (l *line) send(c *committer, items []lua.Item, since time.Time) (receipts []lua.Receipt, waited, err error) {
	token := lua.Token{
		Name: l.p.newToken(),
		Done: c.done, Window: l.p.window,
	}
	clean, err := l.p.repeat(context.Background(), since, func(ctx context.Context) error {
		l.register(ctx)
		var err error
		receipts, err = lua.Enqueue(ctx, l.p.cfg.Client, l.keys, token, items, l.p.cfg.Durability)
		waited, err = setAside(err)
		l.stranger.Store(err != nil)
		return err
	})
	c.done = ""
	if clean && err == nil {
		c.done = token.Name
	}
	return receipts, waited, err
}
