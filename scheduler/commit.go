package scheduler

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// call is one ScheduleBatch: its results, as far as they are known.
type call struct {
	ctx  context.Context
	mu   sync.Mutex
	open int // messages without an answer
	done chan struct{}

	results  []Result
	answered []bool
}

func newCall(ctx context.Context, n int) *call {
	c := &call{ctx: ctx, open: n, done: make(chan struct{}), results: make([]Result, n), answered: make([]bool, n)}
	if n == 0 {
		close(c.done)
	}
	return c
}

func (c *call) answer(i int, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i], c.answered[i] = r, true
	if c.open--; c.open == 0 {
		close(c.done)
	}
}

// name tells the ID of a message, for the case that its answer is not waited for.
func (c *call) name(i int, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i].ID = id
}

// wait returns the results when all are there, or the context has ended.
func (c *call) wait(queue string) []Result {
	select {
	case <-c.done:
		return c.results
	case <-c.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	results := slices.Clone(c.results) // the committer goes on with its own
	for i := range results {
		if !c.answered[i] {
			results[i].Err = wrap("schedule", queue, results[i].ID, joinUncertain(c.ctx.Err()))
		}
	}
	return results
}

// waiting is one message on its way into a commit.
type waiting struct {
	call  *call
	at    int // its place among the call's results
	item  lua.Item
	since time.Time
}

// line is the group commit of one partition: messages wait here while a script call is in flight, and go out together in the next one.
// A committer runs only while there is something to send.
type line struct {
	p     *Producer
	queue string
	route *route
	keys  lua.Keys
	slots chan struct{} // bounds how many messages wait

	mu        sync.Mutex
	waiting   []waiting
	running   bool
	forgetful *time.Timer // fires when nothing was sent for a while

	// The committer's own.
	done     string // token of the last commit, once its reply has arrived
	stranger bool   // the last try failed: the server may be another, or empty
}

func newLine(p *Producer, partition string) *line {
	return &line{p: p, queue: partition, keys: lua.NewKeys(p.cfg.Prefix, partition), slots: make(chan struct{}, 16*p.cfg.MaxCommit)}
}

// add puts a message into the line, and blocks while the line is full. An ID is made here, so that IDs are in the line's order.
func (l *line) add(w waiting) (id string, err error) {
	select {
	case l.slots <- struct{}{}:
	default:
		l.start()
		select {
		case l.slots <- struct{}{}:
		case <-w.call.ctx.Done():
			return w.item.ID, w.call.ctx.Err()
		case <-l.p.closed:
			return w.item.ID, ErrClosed
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.item.ID == "" {
		w.item.ID = l.p.cfg.NewID()
		if err := lua.CheckID(w.item.ID); err != nil {
			<-l.slots
			return w.item.ID, err
		}
	}
	l.waiting = append(l.waiting, w)
	return w.item.ID, nil
}

// start runs a committer unless one runs, or nothing waits.
func (l *line) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.running && len(l.waiting) > 0 {
		l.running = true
		l.p.busy.Add(1) // the caller's own share keeps it above zero
		go l.run()
	}
}

func (l *line) run() {
	defer l.p.busy.Done()
	for batch := l.take(); batch != nil; batch = l.take() {
		l.commit(batch)
		runtime.Gosched() // those just answered may have more, for the same commit
	}
}

// take returns the messages of the next commit. With none left it ends the committer's term.
func (l *line) take() []waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.waiting) && n < l.p.cfg.MaxCommit {
		bytes += size(&l.waiting[n].item)
		if n > 0 && bytes > l.p.cfg.MaxCommitBytes {
			break
		}
		n++
		<-l.slots
	}
	if n == 0 {
		l.waiting, l.running = nil, false
		if l.done != "" {
			l.forgetSoon()
		}
		return nil
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	return batch
}

// forgetSoon has the last token cleared when no further commit does so: an idle queue holds nothing.
func (l *line) forgetSoon() {
	if l.forgetful == nil {
		l.forgetful = time.AfterFunc(forgetAfter, l.forget)
	} else {
		l.forgetful.Reset(forgetAfter)
	}
}

// forget is a committer's term that begins with clearing the token. One that cannot be cleared ends with its window.
func (l *line) forget() {
	if !l.p.begin() {
		return // Close does it
	}
	l.mu.Lock()
	if l.running {
		l.mu.Unlock()
		l.p.busy.Done()
		return
	}
	l.running = true
	l.mu.Unlock()
	if l.done != "" {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		_, _ = lua.Enqueue(ctx, l.p.cfg.Client, l.keys, lua.Token{Done: l.done}, nil)
		cancel()
		l.done = ""
	}
	l.run()
}

// commit sends messages in one script call and gives each its answer. Those whose callers have left are not sent.
func (l *line) commit(batch []waiting) {
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
	receipts, waited, err := l.send(items, batch[0].since)
	for i, w := range batch {
		r := Result{Receipt: Receipt{ID: w.item.ID}, Err: err}
		if err == nil {
			r = result(w.item.ID, receipts[i], waited)
		}
		r.Err = wrap("schedule", l.queue, w.item.ID, r.Err)
		w.call.answer(w.at, r)
	}
}

// result is the answer to one message; waited says why the commit is not as durable as asked.
func result(id string, r lua.Receipt, waited error) Result {
	switch r.Verdict {
	case lua.Duplicate:
		if waited != nil { // nor is, perhaps, what was stored before
			return Result{Receipt{ID: id}, fmt.Errorf("%w: %w", ErrDuplicate, waited)}
		}
		return Result{Receipt{ID: id}, ErrDuplicate}
	case lua.Malformed:
		return Result{Receipt{ID: id}, lua.Invalid("headers", id, "the server cannot read them")}
	}
	return Result{Receipt{ID: id, Due: r.Due, Ready: r.Verdict == lua.Ready}, waited}
}

// send makes one enqueue, repeated under its token when the reply was lost. A caller's context plays no part. Waited is set when the
// commit was taken, but is not as durable as asked.
//
// The token of a commit is cleared with the next one, but only after a single clean try: when an earlier try is still on its way,
// it must find the token, or it would store everything again. Such a token ends with its window.
func (l *line) send(items []lua.Item, since time.Time) (receipts []lua.Receipt, waited, err error) {
	token := lua.Token{
		Name: l.p.newToken(),
		Done: l.done, Window: l.p.window,
	}
	clean, err := l.p.repeat(context.Background(), since, func(ctx context.Context) error {
		l.register(ctx)
		var err error
		receipts, err = lua.EnqueueDurably(ctx, l.p.cfg.Client, l.keys, token, items, l.p.cfg.Durability)
		waited, err = setAside(err)
		l.stranger = err != nil
		return err
	})
	l.done = ""
	if clean && err == nil {
		l.done = token.Name
	}
	return receipts, waited, err
}
