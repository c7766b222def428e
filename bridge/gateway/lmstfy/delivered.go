package lmstfy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/pull"
)

// jobKey identifies a job.
type jobKey struct{ queue, id string }

// delivered holds the jobs that this gateway delivered and that are not settled. Jobs of other gateways are only in
// Redis.
type delivered struct {
	mu   sync.Mutex
	jobs map[jobKey]given
}

type given struct {
	token  pull.Token
	until  time.Time // when its ttr ends
	frozen bool      // the end of its ttr uses up no try
	again  time.Time // when to try again to take it back; zero = no try has failed
}

type overdueJob struct {
	jobKey
	given
}

const (
	failAgain  = time.Second // pause after a failed try to take a job back
	failAtMost = time.Minute // after the end of a job's ttr; later only sweep takes it back
)

func (h *delivered) add(queue, id string, token pull.Token, within time.Duration, frozen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jobs == nil {
		h.jobs = map[jobKey]given{}
	}
	if len(h.jobs) < mostKnown { // otherwise sweep takes the job back
		h.jobs[jobKey{queue, id}] = given{token: token, until: time.Now().Add(within), frozen: frozen}
	}
}

// take removes a job and returns it. The caller puts it back if its settlement fails.
func (h *delivered) take(queue, id string) (given, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, ok := h.jobs[jobKey{queue, id}]
	delete(h.jobs, jobKey{queue, id})
	return one, ok
}

// putBack adds a job that was removed, unless it was delivered again meanwhile.
func (h *delivered) putBack(key jobKey, one given) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, newer := h.jobs[key]; !newer && len(h.jobs) < mostKnown {
		h.jobs[key] = one
	}
}

// overdue removes and returns at most limit jobs whose ttr has ended.
func (h *delivered) overdue(now time.Time, limit int) (all []overdueJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, one := range h.jobs {
		if len(all) == limit {
			break
		}
		if now.After(one.until) && now.After(one.again) {
			all = append(all, overdueJob{key, one})
			delete(h.jobs, key)
		}
	}
	return all
}

func (h *delivered) has(queue, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.jobs[jobKey{queue, id}]
	return ok
}

// acknowledged holds jobs that were acknowledged before they were delivered. Their entries cannot be removed from the
// middle of a stream. So the request that reads such an entry acknowledges it instead of delivering it.
type acknowledged struct {
	mu   sync.Mutex
	jobs map[jobKey]time.Time // until when the job is remembered
}

func (a *acknowledged) add(queue, id string, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.jobs == nil {
		a.jobs = map[jobKey]time.Time{}
	}
	if len(a.jobs) >= mostKnown {
		for key := range a.jobs { // drop any one
			delete(a.jobs, key)
			break
		}
	}
	a.jobs[jobKey{queue, id}] = until
}

func (a *acknowledged) has(queue, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.jobs[jobKey{queue, id}]
	return ok
}

func (a *acknowledged) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, until := range a.jobs {
		if now.After(until) {
			delete(a.jobs, key)
		}
	}
}

const (
	lookEvery  = 100 * time.Millisecond // for overdue jobs of this gateway
	mostPasses = 64                     // concurrent passes that take jobs back
	mostTaken  = 200                    // jobs of one pass
	sweepEvery = 5 * time.Second        // pause between looks for overdue jobs of gateways that have ended
	mostSwept  = 1000                   // jobs of a queue, each time
	mostSweeps = 16                     // queues that are swept concurrently
	clearEvery = 10 * time.Minute       // pause between looks for dead letters of expired jobs
)

var errTTR = errors.New("not acknowledged within its ttr")

// Run takes back jobs that were not acknowledged within their ttr, until ctx ends. They are delivered again, or
// become dead letters. A queue whose server does not answer delays no other.
func (s *Server) Run(ctx context.Context) {
	defer s.floods.Close()
	var loops sync.WaitGroup
	loops.Go(func() { s.watch(ctx) })
	loops.Go(func() {
		for ctx.Err() == nil {
			s.acknowledged.sweep(time.Now())
			s.eachQueue(ctx, mostSweeps, s.sweep)
			loop.Sleep(ctx, sweepEvery)
		}
	})
	loops.Go(func() {
		for ctx.Err() == nil {
			s.eachQueue(ctx, 1, s.clear)
			loop.Sleep(ctx, clearEvery)
		}
	})
	loops.Wait()
}

// watch takes back overdue jobs of this gateway. It goes on while passes wait for their servers.
func (s *Server) watch(ctx context.Context) {
	var passes sync.WaitGroup
	defer passes.Wait()
	room := make(chan struct{}, mostPasses)
	for loop.Sleep(ctx, lookEvery) {
		for {
			all := s.delivered.overdue(time.Now(), mostTaken)
			if len(all) == 0 {
				break
			}
			room <- struct{}{}
			passes.Go(func() {
				defer func() { <-room }()
				s.expire(ctx, all)
			})
		}
	}
}

// expire takes jobs back. If that fails for a job, the job is held again.
func (s *Server) expire(ctx context.Context, all []overdueJob) {
	tokens, ends := make([]pull.Token, len(all)), make([]error, len(all))
	for i, one := range all {
		tokens[i], ends[i] = one.token, errTTR
		if one.frozen {
			ends[i] = bridge.Release(nil)
		}
	}
	settled, err := s.takeBack(ctx, tokens, ends)
	if err == nil {
		return
	}
	for i, one := range all {
		if (settled == nil || settled[i] == stream.Lost) && time.Since(one.until) < failAtMost {
			one.again = time.Now().Add(failAgain)
			s.delivered.putBack(one.jobKey, one.given)
		}
	}
}

func (s *Server) takeBack(ctx context.Context, tokens []pull.Token, ends []error) ([]stream.Settlement, error) {
	settled, err := s.cfg.Puller.Fail(ctx, tokens, ends)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("jobs could not be taken back yet", slog.Any("error", err))
	}
	return settled, err
}

// eachQueue calls do for every queue whose name has the form of this API, for at most limit queues concurrently.
func (s *Server) eachQueue(ctx context.Context, limit int, do func(ctx context.Context, name string)) {
	names, err := s.cfg.Admin.Queues(ctx)
	if err != nil {
		return // Run calls it again
	}
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, limit)
	for _, name := range names {
		if _, _, ok := SplitQueue(name); !ok {
			continue
		}
		room <- struct{}{}
		if ctx.Err() != nil {
			return
		}
		running.Go(func() {
			defer func() { <-room }()
			do(ctx, name)
		})
	}
}

// sweep takes back jobs that no gateway watches any more. It leaves the jobs that this gateway holds to expire. An
// entry is delivered with an idle time of MaxTTR minus its ttr, so an idle time above MaxTTR means that its ttr has
// ended.
func (s *Server) sweep(ctx context.Context, name string) {
	list, err := s.cfg.Admin.Pending(ctx, name, Group, admin.PendingFilter{MinIdle: MaxTTR + time.Second}, mostSwept)
	if err != nil {
		return // most likely there is no such group
	}
	var tokens []pull.Token
	for _, one := range list {
		if !s.delivered.has(name, one.ID) {
			tokens = append(tokens, ticket(name, one.Partition, one.Entry, one.ID))
		}
	}
	for some := range slices.Chunk(tokens, mostTaken) {
		if _, err := s.takeBack(ctx, some, slices.Repeat([]error{errTTR}, len(some))); err != nil {
			return // the next sweep does it
		}
	}
}

// clear purges the dead letters of expired jobs, which this API does not show.
func (s *Server) clear(ctx context.Context, name string) {
	if s.owned(ctx, name) {
		for range s.letters(ctx, name) { //nolint:revive // it removes them on the way
		}
	}
}

// owned reports whether a queue has the settings of EnsureQueue. A queue of another program may have a name of the same
// form, but not these settings.
func (s *Server) owned(ctx context.Context, name string) bool {
	p, _, err := s.cfg.Admin.ReadPolicy(ctx, name, Group)
	return err == nil && p == policy(p)
}

// ticket returns the token of an entry. It leaves out an ID that no token can hold.
func ticket(name string, partition int, entry, id string) pull.Token {
	if lua.CheckID(id) != nil {
		id = ""
	}
	return pull.Ticket{Queue: name, Partition: partition, Group: Group, Entry: entry, ID: id}.Token()
}
