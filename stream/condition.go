package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/lua"
)

// condition logs one line per change of state: when something starts to fail, when it fails for another reason, and when it works again.
type condition struct {
	log  *slog.Logger
	what string

	mu    sync.Mutex
	kind  string // of the error that was logged; empty while all is well
	since time.Time
}

func (c *condition) failing(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := kindOf(err)
	if kind == c.kind {
		return
	}
	if c.kind == "" {
		c.since = time.Now()
	}
	c.kind = kind
	c.log.Error(c.what+" is failing, and goes on trying", slog.Any("error", err), slog.String("hint", lua.Hint(err)))
}

func (c *condition) working() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kind == "" {
		return
	}
	c.kind = ""
	c.log.Info(c.what+" is working again", slog.Duration("after", time.Since(c.since).Round(time.Millisecond)))
}

// kindOf names what an error is about; the same trouble is logged once, however its words differ.
func kindOf(err error) string {
	for _, kind := range []error{lua.ErrFull, lua.ErrWrongType, lua.ErrDenied, lua.ErrUnsupported, lua.ErrNoGroup, lua.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return err.Error()
}

// newBackoff returns the waits between tries of something that is repeated for ever: 50 ms to 2 s, jittered.
func newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
}

// sleep waits for d, or until ctx ends; false then.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// sleepUntil returns true after d, or when poked, and false when ctx has ended.
func sleepUntil(ctx context.Context, d time.Duration, poked <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-poked:
	}
	return ctx.Err() == nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
