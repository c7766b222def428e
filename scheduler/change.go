package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

func joinUncertain(err error) error { return fmt.Errorf("%w: %w", ErrUncertain, err) }

// setAside parts the error of a call that was executed, but is not as durable as asked, from one that is to be repeated.
func setAside(err error) (waited, failed error) {
	if errors.Is(err, lua.ErrNotDurable) {
		return err, nil
	}
	return nil, err
}

// Cancel takes a message out of the schedule. True: it will never be delivered, and its ID may be used again. False: it was not
// scheduled: it is ready or further on, was cancelled before, or never was.
//
// When the reply was lost, the call is repeated; if the message is gone then, the error is ErrUncertain, because the first try may have
// cancelled it. With lua.ErrNotDurable the answer holds. Blocks as Schedule does; one round trip.
func (p *Producer) Cancel(ctx context.Context, queue, id string) (bool, error) {
	done, err := p.cancel(ctx, queue, []string{id})
	return len(done) == 1 && done[0], wrap("cancel", queue, id, err)
}

// CancelBatch is Cancel for many messages, in calls of 1,000. With an error the answers are those known up to then: true is definite,
// false is not.
func (p *Producer) CancelBatch(ctx context.Context, queue string, ids []string) ([]bool, error) {
	done, err := p.cancel(ctx, queue, ids)
	return done, wrap("cancel", queue, "", err)
}

func (p *Producer) cancel(ctx context.Context, queue string, ids []string) ([]bool, error) {
	for _, id := range ids {
		if err := lua.CheckID(id); err != nil {
			return nil, err
		}
	}
	l, err := p.enter(ctx, queue)
	if err != nil {
		return nil, err
	}
	defer p.busy.Done()
	done := make([]bool, 0, len(ids))
	var late error
	for len(done) < len(ids) {
		chunk := ids[len(done):min(len(done)+cancelChunk, len(ids))]
		var some []bool
		var waited error
		clean, err := p.repeat(ctx, time.Now(), func(ctx context.Context) error {
			var err error
			some, err = lua.CancelDurably(ctx, p.cfg.Client, l.keys, chunk, p.cfg.Durability)
			waited, err = setAside(err)
			return err
		})
		if err == nil && !clean {
			err = definite(some)
		}
		if waited != nil && slices.Contains(some, true) {
			late = waited
		}
		done = append(done, some...)
		if err != nil {
			return append(done, make([]bool, len(ids)-len(done))...), err
		}
	}
	return done, late
}

// definite returns ErrUncertain when a repeated call says no: an earlier try may have done it.
func definite(answers []bool) error {
	for _, yes := range answers {
		if !yes {
			return fmt.Errorf("%w: a reply was lost, and the message is not scheduled now", ErrUncertain)
		}
	}
	return nil
}

// Reschedule moves the due time of a message that is still scheduled: to at, or when that is zero to delay from the server's now. It
// returns the new due time; the message will not be delivered at the old one.
//
// ErrNotScheduled: it is ready or further on, was cancelled, or never was. ErrUncertain, lua.ErrNotDurable: as with Cancel. Blocks as Schedule does; one
// round trip.
func (p *Producer) Reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	moved, err := p.reschedule(ctx, queue, id, delay, at)
	return moved, wrap("reschedule", queue, id, err)
}

func (p *Producer) reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	when, err := due(delay, at)
	if err == nil {
		err = lua.CheckID(id)
	}
	if err != nil {
		return time.Time{}, err
	}
	l, err := p.enter(ctx, queue)
	if err != nil {
		return time.Time{}, err
	}
	defer p.busy.Done()
	var to time.Time
	var moved bool
	var waited error
	clean, err := p.repeat(ctx, time.Now(), func(ctx context.Context) error {
		var err error
		to, moved, err = lua.RescheduleDurably(ctx, p.cfg.Client, l.keys, id, when, p.cfg.Durability)
		waited, err = setAside(err)
		return err
	})
	switch {
	case err != nil:
		return time.Time{}, err
	case moved:
		return to, waited
	case !clean:
		return time.Time{}, definite([]bool{false})
	}
	return time.Time{}, ErrNotScheduled
}
