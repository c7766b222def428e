package pull

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	readBlock = 5 * time.Second
	// recheckEvery is the time between two requests to a stream of which nothing new was seen: a server that lost its
	// data may number entries from lower IDs on.
	recheckEvery = 10 * time.Second
	heldRecheck  = time.Second // the same, while the policy pauses workers
	tick         = time.Second
	forgetAfter  = 10 * time.Minute // queues without a request for this long are forgotten
)

// waiter is a caller that waits for any of its lines.
type waiter struct {
	ticket uint64 // lower is earlier, and served first
	lines  []*line
	wake   chan struct{} // buffered for one
	waited bool
}

// Run wakes waiting callers when there are new messages, until ctx ends.
func (p *Puller) Run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { p.reader.Run(ctx) })
	reading.Go(func() {
		for loop.Sleep(ctx, tick) {
			p.revisit(ctx)
		}
	})
	reading.Go(func() {
		for loop.Sleep(ctx, stream.PolicyInterval) {
			p.renew(ctx)
		}
	})
	for loop.Sleep(ctx, tick) {
		p.sweep(time.Now())
	}
}

func (p *Puller) newWaiter(lines []*line) *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tickets++
	return &waiter{ticket: p.tickets, lines: lines, wake: make(chan struct{}, 1)}
}

// enter reports whether a caller should ask the server for a line; if so, the caller must call leave afterwards. A
// caller that will wait need not ask if the group was given all entries seen so far: the blocked read continues from
// there. A caller that will not wait must ask. latest is the last entry seen so far.
func (p *Puller) enter(l *line, must bool) (latest string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	l.used = now
	if !must && !l.news && now.Before(l.recheck) {
		return "", false
	}
	if !l.news {
		l.recheck = now.Add(recheckEvery) // one caller asks for all
	}
	l.active++
	return l.latest, true
}

func (p *Puller) leave(l *line, latest string, got lua.Received, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.active--
	if l.rests {
		l.rests = false
		defer p.watch()
	}
	now := time.Now()
	l.away = nil
	switch {
	case lua.Temporary(err):
		l.leaveAlone(now, err)
		return
	case err != nil, got.Held: // the entries cannot be had now, so the stream is not watched either
		l.leaveAlone(now, nil)
		return
	case got.Last == "":
		l.news = true
	default:
		l.at = got.Last
		if len(got.Entries) == 0 && l.latest == latest { // the entries seen are gone: the queue was deleted or lost
			l.latest = l.at
		}
		l.news = tail.Earlier(l.at, l.latest)
		l.recheck = now.Add(recheckEvery)
		p.reader.Advance(l.keys.Stream, l.at)
	}
	p.kick(l)
}

// kick wakes the first waiting caller if there may be messages and no caller is asking. A caller that asks continues
// until there are none, or wakes the next one when it leaves. So no message waits while a caller waits.
func (p *Puller) kick(l *line) {
	if l.news && l.active == 0 && len(l.waiters) > 0 {
		loop.Poke(l.waiters[0].wake)
	}
}

// added notes that a stream has grown.
func (p *Puller) added(key, last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.streams[key] {
		if tail.Earlier(l.latest, last) {
			l.latest = last
		}
		if tail.Earlier(l.at, last) && !l.rests {
			l.news = true
			p.kick(l)
		}
	}
}

// wait returns true when there may be messages for a waiter, and false after the deadline or when ctx has ended.
func (p *Puller) wait(ctx context.Context, w *waiter, deadline time.Time) bool {
	left := time.Until(deadline)
	if left <= 0 || ctx.Err() != nil {
		return false
	}
	if p.enlist(w) {
		return true
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-w.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.strike(w)
	p.mu.Unlock()
	return ctx.Err() == nil && time.Now().Before(deadline)
}

// enlist adds a waiter to all of its lines, unless there may be messages already.
func (p *Puller) enlist(w *waiter) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.wake: // left over from an earlier wait
	default:
	}
	w.waited = true
	w.takeUpPartitions()
	for _, l := range w.lines {
		if l.news {
			return true
		}
	}
	fresh := false
	for _, l := range w.lines {
		at, _ := slices.BinarySearchFunc(l.waiters, w.ticket, func(other *waiter, ticket uint64) int {
			if other.ticket < ticket {
				return -1
			}
			return 1
		})
		fresh = fresh || len(l.waiters) == 0
		l.waiters = slices.Insert(l.waiters, at, w)
	}
	if fresh {
		p.watch()
	}
	return false
}

func (p *Puller) strike(w *waiter) {
	for _, l := range w.lines {
		if at := slices.Index(l.waiters, w); at >= 0 {
			l.waiters = slices.Delete(l.waiters, at, at+1)
		}
	}
}

// release ends a waiter. Messages for which it was woken, and that it did not take, go to the next one.
func (p *Puller) release(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strike(w)
	for _, l := range w.lines {
		p.kick(l)
	}
}

// readsAlso replaces the lines of a waiter that is not enlisted; with no lines it keeps the old ones.
func (p *Puller) readsAlso(w *waiter, lines []*line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(lines) > 0 {
		w.lines = lines
	}
}

// watch sets the streams to read: those with waiting callers, or with a request within recheckEvery.
func (p *Puller) watch() {
	after := map[string]string{}
	for key, lines := range p.streams {
		for _, l := range lines {
			if l.rests || len(l.waiters) == 0 && time.Since(l.used) > recheckEvery {
				continue
			}
			if known, ok := after[key]; !ok || tail.Earlier(l.at, known) {
				after[key] = l.at
			}
		}
	}
	p.reader.Watch(after)
}

// sweep wakes a caller for each line that is due for a recheck, and forgets queues that nobody asks for any more.
func (p *Puller) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lines := range p.streams {
		for _, l := range lines {
			if len(l.waiters) > 0 && !l.news && !now.Before(l.recheck) && l.active == 0 {
				loop.Poke(l.waiters[0].wake)
			}
		}
	}
	p.watch()
	for key, s := range p.sources {
		if slices.ContainsFunc(s.lines, func(l *line) bool {
			return l.active > 0 || len(l.waiters) > 0 || now.Sub(l.used) < forgetAfter
		}) {
			continue
		}
		delete(p.sources, key)
		for _, l := range s.lines {
			p.streams[l.keys.Stream] = slices.DeleteFunc(p.streams[l.keys.Stream], func(other *line) bool { return other == l })
			if len(p.streams[l.keys.Stream]) == 0 {
				delete(p.streams, l.keys.Stream)
			}
		}
	}
}

// rotated returns the lines of a source, beginning at a random one, so that all partitions of a queue get their turn.
func (p *Puller) rotated(s *source) []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := rand.N(len(s.lines))
	return append(slices.Clone(s.lines[at:]), s.lines[:at]...)
}
