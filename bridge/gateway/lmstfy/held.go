package lmstfy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/stream/pull"
)

// jobKey names a job.
type jobKey struct{ queue, id string }

// held is what this gateway gave out: how it is settled, and until when. What another one gave out is found in Redis.
type held struct {
	mu   sync.Mutex
	jobs map[jobKey]given
}

type given struct {
	token  pull.Token
	until  time.Time
	frozen bool // coming back uses up no try
}

func (h *held) add(queue, id string, token pull.Token, within time.Duration, frozen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jobs == nil {
		h.jobs = map[jobKey]given{}
	}
	if len(h.jobs) < mostKnown { // else the sweep brings it back
		h.jobs[jobKey{queue, id}] = given{token, time.Now().Add(within), frozen}
	}
}

// take returns the token of a job, once.
func (h *held) take(queue, id string) (pull.Token, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, ok := h.jobs[jobKey{queue, id}]
	delete(h.jobs, jobKey{queue, id})
	return one.token, ok
}

// overdue takes out what should have been acknowledged.
func (h *held) overdue(now time.Time) (all []given) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, one := range h.jobs {
		if now.After(one.until) {
			all = append(all, one)
			delete(h.jobs, key)
		}
	}
	return all
}

// acked are jobs that were acknowledged while they waited to be consumed: the entry of one cannot be taken out of the middle of a
// stream, so whoever would get it acknowledges it.
type acked struct {
	mu   sync.Mutex
	jobs map[jobKey]time.Time // until when it is remembered
}

func (a *acked) add(queue, id string, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.jobs == nil {
		a.jobs = map[jobKey]time.Time{}
	}
	if len(a.jobs) >= mostKnown {
		for key := range a.jobs { // any one
			delete(a.jobs, key)
			break
		}
	}
	a.jobs[jobKey{queue, id}] = until
}

func (a *acked) has(queue, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.jobs[jobKey{queue, id}]
	return ok
}

func (a *acked) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, until := range a.jobs {
		if now.After(until) {
			delete(a.jobs, key)
		}
	}
}

const (
	lookEvery  = 100 * time.Millisecond // for what this gateway gave out
	sweepEvery = 5 * time.Second        // for what others gave out, and are gone
	clearEvery = 10 * time.Minute       // what expired leaves behind
	mostSwept  = 1000                   // jobs of a queue, each time
)

var errTTR = errors.New("not acknowledged within its ttr")

// Run has jobs that were not acknowledged within their ttr consumed again, or dead, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	for swept, cleared := (time.Time{}), (time.Time{}); loop.Sleep(ctx, lookEvery); {
		now := time.Now()
		s.expire(ctx, s.held.overdue(now))
		if now.Sub(swept) > sweepEvery {
			swept = now
			s.done.sweep(now)
			s.each(ctx, s.sweep)
		}
		if now.Sub(cleared) > clearEvery {
			cleared = now
			s.each(ctx, s.clear)
		}
	}
}

func (s *Server) expire(ctx context.Context, all []given) {
	for _, one := range all {
		end := errTTR
		if one.frozen {
			end = bridge.Release(nil)
		}
		if _, err := s.cfg.Puller.Fail(ctx, []pull.Token{one.token}, []error{end}); err != nil && ctx.Err() == nil {
			s.log.Debug("a job could not be taken back yet", slog.Any("error", err)) // the sweep does it
		}
	}
}

// each calls do for the queues that are used through this API.
func (s *Server) each(ctx context.Context, do func(ctx context.Context, name string)) {
	names, err := s.cfg.Admin.Queues(ctx)
	if err != nil {
		return // the next time
	}
	for _, name := range names {
		if _, _, ok := SplitQueue(name); ok && ctx.Err() == nil {
			do(ctx, name)
		}
	}
}

// sweep takes back what nobody watches any more: an entry is idle from the start by what its time lacks to the longest one.
func (s *Server) sweep(ctx context.Context, name string) {
	list, err := s.cfg.Admin.Pending(ctx, name, Group, admin.PendingFilter{MinIdle: MaxTTR + time.Second}, mostSwept)
	if err != nil {
		return // most likely the group is not there
	}
	var all []given
	for _, one := range list {
		all = append(all, given{token: ticket(name, one.Partition, one.Entry, one.ID)})
	}
	s.expire(ctx, all)
}

// clear removes the dead letters of what expired, which nobody can see here.
func (s *Server) clear(ctx context.Context, name string) {
	if s.owned(ctx, name) {
		for range s.letters(ctx, name) { //nolint:revive // it removes them on the way
		}
	}
}

// owned says whether a queue has the settings that EnsureQueue gives: another one may be named so by chance.
func (s *Server) owned(ctx context.Context, name string) bool {
	p, _, err := s.cfg.Admin.ReadPolicy(ctx, name, Group)
	return err == nil && p == policy(p)
}

func ticket(name string, partition int, entry, id string) pull.Token {
	return pull.Ticket{Queue: name, Partition: partition, Group: Group, Entry: entry, ID: id}.Token()
}
