package access

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// bucket is the token bucket of a rate, as the time at which it is full again.
type bucket struct {
	part     string        // of its key in Redis, behind the digest
	interval time.Duration // that one takes to come back
	size     int

	mu   sync.Mutex
	full time.Time
}

func newBucket(rate lua.Rate, burst int) *bucket {
	return &bucket{interval: rate.Interval(), size: cmp.Or(burst, rate.DefaultBurst())}
}

// take takes n out, or says how long to wait for them. More than the bucket holds are taken when it is full, and are owed.
func (b *bucket) take(n int, now time.Time) (wait time.Duration) {
	n = min(max(n, 0), lua.MaxBurst)
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.full
	if full.Before(now) {
		full = now
	}
	wait = full.Add(time.Duration(min(n, b.size)-b.size) * b.interval).Sub(now)
	if wait > 0 {
		return wait
	}
	b.full = full.Add(time.Duration(n) * b.interval)
	return 0
}

// giveBack puts back what was taken for nothing.
func (b *bucket) giveBack(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = b.full.Add(-time.Duration(n) * b.interval)
}

// Take takes n, such as messages, out of what the token allows of a verb: 0 = go on, else nothing was taken, and they are there
// after so long. More than its burst go when nothing else was taken of late, and are paid for afterwards. All Stores of a prefix
// share what is allowed, by one script call; while Redis cannot be asked, or does not answer soon, each counts for itself, and
// err is nil. It is that of ctx.
func (s *Store) Take(ctx context.Context, g *Grant, verb Verb, n int) (wait time.Duration, err error) {
	if g == nil || g.taken[verb] == nil || n <= 0 {
		return 0, nil
	}
	taken := g.taken[verb]
	n = min(n, lua.MaxBurst)
	if wait = taken.take(n, s.now()); wait > 0 || !s.mayAskForRates() {
		return wait, nil // what is too much for this Store is too much for all
	}
	call, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	wait, err = lua.Take(call, s.client, s.bucket(g.digest)+taken.part, taken.interval, taken.size, n)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		s.noRates(err)
		return 0, nil
	case wait > 0:
		taken.giveBack(n)
	}
	return wait, nil
}

// GiveBack puts back what Take took for nothing. While Redis cannot be asked it comes back by itself.
func (s *Store) GiveBack(ctx context.Context, g *Grant, verb Verb, n int) {
	if g == nil || g.taken[verb] == nil || n <= 0 {
		return
	}
	taken := g.taken[verb]
	n = min(n, lua.MaxBurst)
	taken.giveBack(n)
	if !s.mayAskForRates() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), soon)
	defer cancel()
	if err := lua.PutBack(ctx, s.client, s.bucket(g.digest)+taken.part, taken.interval, taken.size, n); err != nil {
		s.noRates(err)
	}
}

// mayAskForRates says whether Redis answered the last time, or enough time has passed to try again.
func (s *Store) mayAskForRates() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.ratesFailed) >= FreshFor
}

func (s *Store) noRates(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ratesFailed = s.now()
	if told := err.Error(); told != s.ratesTold { // once for each cause
		s.ratesTold = told
		s.log.Warn("rates of tokens are counted by this process alone: Redis cannot be asked", slog.Any("error", err))
	}
}
