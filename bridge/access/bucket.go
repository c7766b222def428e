package access

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// bucket is the token bucket of a rate. Its level is stored as the time at which the bucket is full again.
type bucket struct {
	part     string        // of its key in Redis, after the digest
	interval time.Duration // until one unit comes back
	size     int

	mu   sync.Mutex
	full time.Time
}

func newBucket(rate lua.Rate, burst int) *bucket {
	return &bucket{interval: rate.Interval(), size: cmp.Or(burst, rate.DefaultBurst())}
}

// take takes n units out of the bucket, or returns how long to wait for them. An n greater than the bucket's size is
// taken when the bucket is full; the rest is a debt that delays the next calls.
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

// giveBack puts n unused units back into the bucket.
func (b *bucket) giveBack(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = b.full.Add(-time.Duration(n) * b.interval)
}

// Take charges n messages or requests to the token's rate limit for a verb. A wait of 0 means that n were charged;
// otherwise nothing was charged, and n are available after the wait. An n above the burst passes when the bucket is
// full, and delays the next calls. All Stores of a prefix share the limit, with one script call. While Redis is
// unavailable or slower than 250 ms, each Store counts by itself. The only error is that of ctx.
func (s *Store) Take(ctx context.Context, g *Grant, verb Verb, n int) (wait time.Duration, err error) {
	if g == nil || g.buckets[verb] == nil || n <= 0 {
		return 0, nil
	}
	limit := g.buckets[verb]
	n = min(n, lua.MaxBurst)
	if wait = limit.take(n, s.now()); wait > 0 || !s.mayAskForRates() {
		return wait, nil // the limit of all Stores is no greater than that of this Store
	}
	call, cancel := context.WithTimeout(ctx, rateTimeout)
	defer cancel()
	wait, err = lua.Take(call, s.client, s.bucket(g.digest)+limit.part, limit.interval, limit.size, n)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		s.noRates(err)
		return 0, nil
	case wait > 0:
		limit.giveBack(n)
	}
	return wait, nil
}

// GiveBack gives n unused units back to the token's rate limit. While Redis is unavailable only this Store's bucket
// gets them; in Redis they come back with time.
func (s *Store) GiveBack(ctx context.Context, g *Grant, verb Verb, n int) {
	if g == nil || g.buckets[verb] == nil || n <= 0 {
		return
	}
	limit := g.buckets[verb]
	n = min(n, lua.MaxBurst)
	limit.giveBack(n)
	if !s.mayAskForRates() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rateTimeout)
	defer cancel()
	if err := lua.PutBack(ctx, s.client, s.bucket(g.digest)+limit.part, limit.interval, limit.size, n); err != nil {
		s.noRates(err)
	}
}

// mayAskForRates reports whether Redis answered the last call about a rate, or FreshFor has passed since it failed.
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
