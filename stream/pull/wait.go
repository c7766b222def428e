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
)

const (
	readBlock = 5 * time.Second
	// recheckEvery is how often a stream is asked although nothing was seen of it: a server that lost its data may number entries
	// from lower IDs on.
	recheckEvery = 10 * time.Second
	heldRecheck  = time.Second // the same, while the policy has workers take nothing
	tick         = time.Second
	forgetAfter  = 10 * time.Minute // what nobody has asked for, for so long
)

// waiter is one caller that waits for any of its lines.
type waiter struct {
	ticket uint64 // who came first is served first
	lines  []*line
	wake   chan struct{} // room for one
	waited bool
}

// Run sees new messages for those who wait, until ctx ends.
func (p *Puller) Run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { p.reader.Run(ctx) })
	reading.Go(func() {
		for loop.Sleep(ctx, tick) {
			p.revisit(ctx)
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

// enter says whether a caller is to ask the server for a line; then it leaves again. Who will wait need not ask when the group
// was given all that was seen: the blocked read goes on from there. Who will not, must. latest is what was seen last before.
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
	case err != nil, got.Held: // what the stream holds cannot be had now: it is not looked at either
		l.leaveAlone(now, nil)
		return
	case got.Last == "":
		l.news = true
	default:
		l.at = got.Last
		if len(got.Entries) == 0 && l.latest == latest { // what was seen is gone: the queue was deleted, or lost
			l.latest = l.at
		}
		l.news = tail.Earlier(l.at, l.latest)
		l.recheck = now.Add(recheckEvery)
		p.reader.Advance(l.keys.Stream, l.at)
	}
	p.kick(l)
}

// kick wakes the first who waits when there may be something and nobody asks: whoever asks goes on until there is nothing, or
// wakes the next one when it leaves. So no message waits while a caller does.
func (p *Puller) kick(l *line) {
	if l.news && l.active == 0 && len(l.waiters) > 0 {
		loop.Poke(l.waiters[0].wake)
	}
}

// added takes note that a stream has grown.
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

// wait returns true when there may be something for a waiter, and false after the deadline or when ctx has ended.
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

// enlist has a waiter wait for all of its lines, unless there may be something already.
func (p *Puller) enlist(w *waiter) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.wake: // of an earlier wait
	default:
	}
	w.waited = true
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

// release ends a waiter: what it was woken for, and did not take, is for the next one.
func (p *Puller) release(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strike(w)
	for _, l := range w.lines {
		p.kick(l)
	}
}

// readsAlso has a waiter, which does not wait at the moment, wait for other lines from now on; of none it keeps those
// it had.
func (p *Puller) readsAlso(w *waiter, lines []*line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(lines) > 0 {
		w.lines = lines
	}
}

// watch has the streams read that somebody waits for, and those that somebody waited for a moment ago.
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

// sweep has lines asked whose time has come, and forgets what nobody asks for any more.
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

// rotated returns the lines of a source from a random one on, so that all of a queue's partitions have their turn.
func (p *Puller) rotated(s *source) []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := rand.N(len(s.lines))
	return append(slices.Clone(s.lines[at:]), s.lines[:at]...)
}
