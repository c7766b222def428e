package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// repeat calls try until it succeeds, it returns an error that does not pass by itself, or RetryTimeout has passed
// since the given time. clean is false if the server may have executed a try that failed. If clean is false and no try
// succeeded, the error is ErrUncertain.
func (p *Producer) repeat(ctx context.Context, since time.Time,
	try func(context.Context) error) (clean bool, err error) {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(retryInitial), backoff.WithMaxInterval(retryMax),
		backoff.WithMaxElapsedTime(max(1, p.cfg.RetryTimeout-time.Since(since))))
	clean = true
	err = backoff.Retry(func() error {
		tryCtx, cancel := context.WithTimeout(ctx, p.callTimeout)
		defer cancel()
		err := try(tryCtx)
		if err == nil {
			return nil
		}
		if tryCtx.Err() != nil && ctx.Err() == nil { // the deadline of the try has passed, not the caller's
			err = fmt.Errorf("%w: no reply within %s", lua.ErrUnavailable, p.callTimeout)
		}
		clean = clean && !uncertain(err)
		if p.cfg.RetryTimeout < 0 || !lua.Temporary(err) || errors.Is(err, rueidis.ErrClosing) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx))
	if err != nil && !clean {
		err = joinUncertain(err)
	}
	return clean, err
}

// repeatIdempotent is repeat for calls that do no harm if they are executed more than once. Its error is never
// ErrUncertain. If the caller's context has ended, the error is that of the context.
func (p *Producer) repeatIdempotent(ctx context.Context, since time.Time, try func(context.Context) error) error {
	var last error
	_, err := p.repeat(ctx, since, func(ctx context.Context) error {
		last = try(ctx)
		return last
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(last, context.DeadlineExceeded): // repeat's deadline, not the caller's
		return fmt.Errorf("%w: %v", lua.ErrUnavailable, last)
	}
	return last
}
