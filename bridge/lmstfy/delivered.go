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
	jobs map[jobKey]heldJob
}

// heldJob is a job that was delivered and is not settled.
type heldJob struct {
	token      pull.Token
	ttrEnd     time.Time
	frozen     bool      // the end of the ttr uses up no try
	retryAfter time.Time // when to try again to take the job back; zero = no attempt has failed
}

type overdueJob struct {
	jobKey
	heldJob
}

const (
	takeBackAgain = time.Second // pause after a failed attempt to take a job back
	takeBackFor   = time.Minute // after the end of a job's ttr; later only sweep takes the job back
)

// add records that a job was delivered, with the time that its consumer has to acknowledge it.
func (d *delivered) add(queue, id string, token pull.Token, ttr time.Duration, frozen bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs == nil {
		d.jobs = map[jobKey]heldJob{}
	}
	if len(d.jobs) < maxRemembered { // sweep takes back a job that is not recorded
		d.jobs[jobKey{queue, id}] = heldJob{token: token, ttrEnd: time.Now().Add(ttr), frozen: frozen}
	}
}

// take removes a job and returns it. The caller puts it back if its settlement fails.
func (d *delivered) take(queue, id string) (heldJob, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	job, ok := d.jobs[jobKey{queue, id}]
	delete(d.jobs, jobKey{queue, id})
	return job, ok
}

// putBack adds a job that was removed, unless the job was delivered again meanwhile.
func (d *delivered) putBack(key jobKey, job heldJob) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, deliveredAgain := d.jobs[key]; !deliveredAgain && len(d.jobs) < maxRemembered {
		d.jobs[key] = job
	}
}

// overdue removes and returns at most limit jobs whose ttr has ended.
func (d *delivered) overdue(now time.Time, limit int) (all []overdueJob) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, job := range d.jobs {
		if len(all) == limit {
			break
		}
		if now.After(job.ttrEnd) && now.After(job.retryAfter) {
			all = append(all, overdueJob{key, job})
			delete(d.jobs, key)
		}
	}
	return all
}

func (d *delivered) has(queue, id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.jobs[jobKey{queue, id}]
	return ok
}

// acknowledged holds jobs that were acknowledged before they were delivered. An entry cannot be removed from the middle
// of a stream. So the request that reads the entry acknowledges it instead of delivering it.
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
	if len(a.jobs) >= maxRemembered {
		for key := range a.jobs { // drop an arbitrary job
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
	watchEvery   = 100 * time.Millisecond // pause between searches for overdue jobs of this gateway
	maxPasses    = 64                     // concurrent passes that take jobs back
	maxPassJobs  = 200                    // jobs in one pass
	sweepEvery   = 5 * time.Second        // pause between searches for overdue jobs of gateways that have ended
	maxSweepJobs = 1000                   // jobs of one queue in one sweep
	maxSweeps    = 16                     // queues that are swept concurrently
	purgeEvery   = 10 * time.Minute       // pause between searches for dead letters of expired jobs
)

var errTTR = errors.New("not acknowledged within its ttr")

// run takes back jobs that were not acknowledged within their ttr, from the first request until ctx ends. These jobs
// are delivered again, or become dead letters. A queue whose server does not answer delays no other queue.
func (s *server) run(ctx context.Context) {
	defer s.floods.Close()
	select {
	case <-s.used:
	case <-ctx.Done():
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { s.watch(ctx) })
	loops.Go(func() {
		for ctx.Err() == nil {
			s.acknowledged.sweep(time.Now())
			s.eachQueue(ctx, maxSweeps, s.sweep)
			loop.Sleep(ctx, sweepEvery)
		}
	})
	loops.Go(func() {
		for ctx.Err() == nil {
			s.eachQueue(ctx, 1, s.purgeExpired)
			loop.Sleep(ctx, purgeEvery)
		}
	})
	loops.Wait()
}

// watch takes back overdue jobs of this gateway. It goes on while passes wait for their servers.
func (s *server) watch(ctx context.Context) {
	var passes sync.WaitGroup
	defer passes.Wait()
	room := make(chan struct{}, maxPasses)
	for loop.Sleep(ctx, watchEvery) {
		for {
			all := s.delivered.overdue(time.Now(), maxPassJobs)
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

// expire takes jobs back. A job that could not be taken back is recorded again, so that a later pass tries again.
func (s *server) expire(ctx context.Context, all []overdueJob) {
	tokens, reasons := make([]pull.Token, len(all)), make([]error, len(all))
	for i, job := range all {
		tokens[i], reasons[i] = job.token, errTTR
		if job.frozen {
			reasons[i] = bridge.Release(nil)
		}
	}
	settled, err := s.takeBack(ctx, tokens, reasons)
	if err == nil {
		return
	}
	for i, job := range all {
		failed := settled == nil || settled[i] == stream.Lost
		if failed && time.Since(job.ttrEnd) < takeBackFor {
			job.retryAfter = time.Now().Add(takeBackAgain)
			s.delivered.putBack(job.jobKey, job.heldJob)
		}
	}
}

// takeBack settles deliveries with the given reasons, as if their handlers had returned these errors.
func (s *server) takeBack(ctx context.Context, tokens []pull.Token, reasons []error) ([]stream.Settlement, error) {
	settled, err := s.parts.Puller.Fail(ctx, tokens, reasons)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("jobs could not be taken back yet", slog.Any("error", err))
	}
	return settled, err
}

// eachQueue calls do for every queue whose name has the form of this API, for at most limit queues concurrently.
func (s *server) eachQueue(ctx context.Context, limit int, do func(ctx context.Context, name string)) {
	names, err := s.parts.Admin.Queues(ctx)
	if err != nil {
		return // run calls eachQueue again
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

// sweep takes back overdue jobs of gateways that have ended. It leaves the jobs that this gateway holds to expire. An
// entry is delivered with an idle time of MaxTTR minus its ttr, so an idle time above MaxTTR means that the ttr has
// ended.
func (s *server) sweep(ctx context.Context, name string) {
	overdue := admin.PendingFilter{MinIdle: MaxTTR + time.Second}
	list, err := s.parts.Admin.Pending(ctx, name, Group, overdue, maxSweepJobs)
	if err != nil {
		return // most likely the queue has no such group
	}
	var tokens []pull.Token
	for _, one := range list {
		if !s.delivered.has(name, one.ID) {
			tokens = append(tokens, tokenOf(name, one.Partition, one.Entry, one.ID))
		}
	}
	for batch := range slices.Chunk(tokens, maxPassJobs) {
		if _, err := s.takeBack(ctx, batch, slices.Repeat([]error{errTTR}, len(batch))); err != nil {
			return // the next sweep tries again
		}
	}
}

// purgeExpired purges the dead letters of expired jobs, which this API does not show.
func (s *server) purgeExpired(ctx context.Context, name string) {
	if s.owned(ctx, name) {
		for range s.letters(ctx, name) { //nolint:revive // letters purges them while it reads
		}
	}
}

// owned reports whether a queue has the settings of EnsureQueue. A queue of another program may have a name of the same
// form, but not these settings.
func (s *server) owned(ctx context.Context, name string) bool {
	p, _, err := s.parts.Admin.ReadPolicy(ctx, name, Group)
	return err == nil && p == jobPolicy(p)
}

// tokenOf returns the token of an entry. It leaves out an ID that no token can hold.
func tokenOf(name string, partition int, entry, id string) pull.Token {
	if lua.CheckID(id) != nil {
		id = ""
	}
	return pull.Ticket{Queue: name, Partition: partition, Group: Group, Entry: entry, ID: id}.Token()
}
