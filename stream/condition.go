package stream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/lua"
)

// condition logs one line per change of state: when something starts to fail, when it fails for another reason, and when it works again.
// What several parts of it report is one state: it works again when the last of them does.
type condition struct {
	log  *slog.Logger
	what string

	mu    sync.Mutex
	kinds map[string]string // of the error that each part that fails reported last
	since time.Time
}

func (c *condition) failing(err error) { c.failingAt("", err) }

func (c *condition) working() { c.workingAt("") }

func (c *condition) failingAt(part string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := kindOf(err)
	if len(c.kinds) == 0 {
		c.kinds, c.since = map[string]string{}, time.Now()
	}
	told := slices.Contains(slices.Collect(maps.Values(c.kinds)), kind)
	c.kinds[part] = kind
	if !told {
		c.log.Error(c.what+" is failing, and goes on trying", slog.Any("error", err), slog.String("hint", lua.Hint(err)))
	}
}

func (c *condition) workingAt(part string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[part] == "" {
		return
	}
	delete(c.kinds, part)
	if len(c.kinds) == 0 {
		c.log.Info(c.what+" is working again", slog.Duration("after", time.Since(c.since).Round(time.Millisecond)))
	}
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
