package pull

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/tail"
	"github.com/duestream/duestream/lua"
)

const (
	readBlock = 5 * time.Second // longest wait of the read that notices new entries
	// recheckEvery is the time between two requests to a stream in which no new entry was seen. They are needed because
	// a server that lost its data may give new entries lower IDs.
	recheckEvery = 10 * time.Second
	heldRecheck  = time.Second      // time between two requests to a suspended line
	tick         = time.Second      // time between two sweeps
	forgetAfter  = 10 * time.Minute // queues without a request for this long are forgotten
)

// waiter is a caller that waits for messages in any of its lines.
type waiter struct {
	ticket    uint64 // a lower ticket is served first
	lines     []*line
	wake      chan struct{} // buffered for one
	hasWaited bool
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
		for loop.Sleep(ctx, policy.RefreshInterval) {
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

// enter reports whether a caller should ask the server for entries of a line. If so, the caller must call leave after
// the request. A caller that will wait need not ask if the group was given all entries seen so far, because the blocked
// read notices later entries. A caller that will not wait must ask. latest is the ID of the last entry seen so far.
func (p *Puller) enter(l *line, mustAsk bool) (latest string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	l.used = now
	if !mustAsk && !l.news && now.Before(l.recheck) {
		return "", false
	}
	if !l.news {
		l.recheck = now.Add(recheckEvery) // this caller rechecks for all
	}
	l.active++
	return l.latest, true
}

// leave notes the reply to a request for a line. latest is the ID that enter returned.
func (p *Puller) leave(l *line, latest string, got lua.Received, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.active--
	if l.suspended {
		l.suspended = false
		defer p.watch()
	}
	now := time.Now()
	l.unreachable = nil
	switch {
	case lua.Temporary(err):
		l.suspend(now, err)
		return
	case err != nil, got.Held: // the group cannot be given entries now, so the stream is not watched either
		l.suspend(now, nil)
		return
	case got.Last == "": // the stream may have more entries
		l.news = true
	default:
		l.given = got.Last
		if len(got.Entries) == 0 && l.latest == latest { // the entries seen are gone: the queue was deleted or lost
			l.latest = l.given
		}
		l.news = tail.Earlier(l.given, l.latest)
		l.recheck = now.Add(recheckEvery)
		p.reader.Advance(l.keys.Stream, l.given)
	}
	p.wakeFirst(l)
}

// wakeFirst wakes the first waiting caller if there may be messages and no caller is asking. A caller that asks
// continues until there are no messages, or wakes the next caller when it leaves. So no message waits while a caller
// waits.
func (p *Puller) wakeFirst(l *line) {
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
		if tail.Earlier(l.given, last) && !l.suspended {
			l.news = true
			p.wakeFirst(l)
		}
	}
}

// wait returns true when there may be messages for a waiter, and false after the deadline or when ctx has ended.
func (p *Puller) wait(ctx context.Context, w *waiter, deadline time.Time) bool {
	remaining := time.Until(deadline)
	if remaining <= 0 || ctx.Err() != nil {
		return false
	}
	if p.enlist(w) {
		return true
	}
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-w.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.remove(w)
	p.mu.Unlock()
	return ctx.Err() == nil && time.Now().Before(deadline)
}

// enlist adds a waiter to all of its lines, unless there may be messages already: then it returns true.
func (p *Puller) enlist(w *waiter) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.wake: // left over from an earlier wait
	default:
	}
	w.hasWaited = true
	w.addNewPartitions()
	for _, l := range w.lines {
		if l.news {
			return true
		}
	}
	anyUnwatched := false
	for _, l := range w.lines {
		i, _ := slices.BinarySearchFunc(l.waiters, w.ticket, func(other *waiter, ticket uint64) int {
			return cmp.Compare(other.ticket, ticket)
		})
		anyUnwatched = anyUnwatched || len(l.waiters) == 0
		l.waiters = slices.Insert(l.waiters, i, w)
	}
	if anyUnwatched {
		p.watch()
	}
	return false
}

// remove removes a waiter from its lines. The caller holds mu.
func (p *Puller) remove(w *waiter) {
	for _, l := range w.lines {
		if i := slices.Index(l.waiters, w); i >= 0 {
			l.waiters = slices.Delete(l.waiters, i, i+1)
		}
	}
}

// release removes a waiter for good. If the waiter was woken for messages and did not take them, the next waiter is
// woken.
func (p *Puller) release(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(w)
	for _, l := range w.lines {
		p.wakeFirst(l)
	}
}

// setLines replaces the lines of a waiter that is not enlisted. If lines is empty, the waiter keeps its lines.
func (p *Puller) setLines(w *waiter, lines []*line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(lines) > 0 {
		w.lines = lines
	}
}

// watch sets the streams in which the reader notices new entries: all with waiting callers, or with a request within
// recheckEvery. A stream is read from the earliest position of its groups. The caller holds mu.
func (p *Puller) watch() {
	positions := map[string]string{} // by key of the stream: the entry after which to read
	for key, lines := range p.streams {
		for _, l := range lines {
			isWanted := len(l.waiters) > 0 || time.Since(l.used) <= recheckEvery
			if l.suspended || !isWanted {
				continue
			}
			if position, ok := positions[key]; !ok || tail.Earlier(l.given, position) {
				positions[key] = l.given
			}
		}
	}
	p.reader.Watch(positions)
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
			key := l.keys.Stream
			p.streams[key] = slices.DeleteFunc(p.streams[key], func(other *line) bool { return other == l })
			if len(p.streams[key]) == 0 {
				delete(p.streams, key)
			}
		}
	}
}

// rotated returns the lines of a source, beginning at a random one, so that all partitions of a queue get their turn.
func (p *Puller) rotated(s *source) []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := rand.N(len(s.lines))
	return slices.Concat(s.lines[first:], s.lines[:first])
}
