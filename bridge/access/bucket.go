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
	keySuffix string        // end of the bucket's key in Redis, after the digest
	interval  time.Duration // until one unit comes back
	size      int

	mu     sync.Mutex
	fullAt time.Time
}

func newBucket(rate lua.Rate, burst int) *bucket {
	return &bucket{interval: rate.Interval(), size: cmp.Or(burst, rate.DefaultBurst())}
}

// take takes n units out of the bucket, or returns how long to wait for them. If n is greater than the bucket's size, a
// full bucket is enough: the missing units become a debt that delays the next calls.
func (b *bucket) take(n int, now time.Time) (wait time.Duration) {
	n = min(max(n, 0), lua.MaxBurst)
	b.mu.Lock()
	defer b.mu.Unlock()
	fullAt := b.fullAt
	if fullAt.Before(now) {
		fullAt = now
	}
	needed := min(n, b.size)
	availableAt := fullAt.Add(-time.Duration(b.size-needed) * b.interval) // then the bucket holds the needed units
	if availableAt.After(now) {
		return availableAt.Sub(now)
	}
	b.fullAt = fullAt.Add(time.Duration(n) * b.interval)
	return 0
}

// giveBack puts n unused units back into the bucket.
func (b *bucket) giveBack(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fullAt = b.fullAt.Add(-time.Duration(n) * b.interval)
}

// Take charges n messages or requests to the token's rate limit for a verb. A wait of 0 means that n were charged.
// Otherwise nothing was charged, and n are available after the wait. An n above the burst passes when the bucket is
// full, and delays the next calls. All Stores of a prefix share the limit; this costs one script call. While Redis is
// unavailable or slower than 250 ms, each Store counts by itself. The only error is the error of ctx.
func (s *Store) Take(ctx context.Context, g *Grant, verb Verb, n int) (wait time.Duration, err error) {
	if g == nil || g.buckets[verb] == nil || n <= 0 {
		return 0, nil
	}
	limit := g.buckets[verb]
	n = min(n, lua.MaxBurst)
	wait = limit.take(n, s.now())
	// This Store counts its own calls, and Redis the calls of all Stores. So a caller that must wait here must wait
	// there too.
	if wait > 0 || !s.mayAskForRates() {
		return wait, nil
	}
	call, cancel := context.WithTimeout(ctx, rateTimeout)
	defer cancel()
	wait, err = lua.Take(call, s.client, s.bucketKey(g.digest, limit), limit.interval, limit.size, n)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		s.rateFailed(err)
		return 0, nil
	case wait > 0:
		limit.giveBack(n)
	}
	return wait, nil
}

// GiveBack gives n unused units back to the token's rate limit. While Redis is unavailable, only this Store's bucket
// gets them; the bucket in Redis fills up with time.
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
	if err := lua.PutBack(ctx, s.client, s.bucketKey(g.digest, limit), limit.interval, limit.size, n); err != nil {
		s.rateFailed(err)
	}
}

// mayAskForRates reports whether Redis answered the last call about a rate, or FreshFor has passed since it failed.
func (s *Store) mayAskForRates() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.rateFailedAt) >= FreshFor
}

// rateFailed records that a call about a rate failed. It logs each cause once.
func (s *Store) rateFailed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rateFailedAt = s.now()
	if text := err.Error(); text != s.loggedRateError {
		s.loggedRateError = text
		s.log.Warn("rates of tokens are counted by this process alone: Redis cannot be asked", slog.Any("error", err))
	}
}
