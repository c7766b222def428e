// Package loop has the common parts of all loops that run for ever: they wait, are woken by a poke, back off after
// errors, and write one log line when something starts to fail, and one when it works again. The package also has locks
// by name.
package loop

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// CallTimeout is the time after which one request is given up, because its server counts as unreachable.
	CallTimeout = 5 * time.Second
	// PassTimeout is the time after which a request about many messages, or one step of work on a whole queue, is given
	// up.
	PassTimeout = 30 * time.Second
)

// NewBackoff returns a backoff for tries without an end: it waits 50 ms at first, then twice as long each time, up to
// most, with jitter.
func NewBackoff(most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepUntil(ctx, d, nil) }

// SleepUntil returns true after d, or when a poke arrives before. It returns false if ctx has ended.
func SleepUntil(ctx context.Context, d time.Duration, poked <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-poked:
	}
	return ctx.Err() == nil
}

// Poke wakes the receiver of c, a channel with a buffer of one.
func Poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Every runs a pass at once, and then again after each interval, or when a poke arrives. After an error, the next pass
// follows after the wait of b, if that is shorter than the interval. Every returns when ctx ends.
func Every(ctx context.Context, interval func() time.Duration, b *backoff.ExponentialBackOff, poked <-chan struct{},
	pass func(context.Context) error) {
	for {
		pause := time.Duration(0)
		if err := pass(ctx); err != nil {
			pause = min(interval(), b.NextBackOff())
		} else {
			pause = interval()
			b.Reset()
		}
		if !SleepUntil(ctx, pause, poked) {
			return
		}
	}
}
