package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

func joinUncertain(err error) error { return fmt.Errorf("%w: %w", ErrUncertain, err) }

// setAside sorts the error of a call: waited if the call was executed but is not as durable as asked, else failed.
func setAside(err error) (waited, failed error) {
	if errors.Is(err, lua.ErrNotDurable) {
		return err, nil
	}
	return nil, err
}

// Cancel takes a message out of the schedule, in every partition of the queue. True: it will never be delivered, and
// its ID is free again. False: it was not scheduled, because it is ready or further on, was cancelled before, or never
// existed.
//
// A call whose reply was lost is repeated. If the message is gone by then, the error is ErrUncertain, because the first
// try may have cancelled it. With lua.ErrNotDurable the answer holds. Any other error says which part did not answer: a
// partition that may hold the message, or the registry of partitions; true beside it means that the message was
// cancelled in another partition. Blocks like Schedule. One round trip asks all partitions; a queue with several takes
// a second one when none of them has the message. The registry stays unchanged: a queue that nobody scheduled into
// stays unknown.
func (p *Producer) Cancel(ctx context.Context, queue, id string) (bool, error) {
	done, err := p.cancel(ctx, queue, []string{id})
	return len(done) == 1 && done[0], wrap("cancel", queue, id, err)
}

// cancel is Cancel for many messages, in calls of 1,000 per partition. With an error it returns the answers known so
// far: true is definite, false is not.
func (p *Producer) cancel(ctx context.Context, queue string, ids []string) ([]bool, error) {
	return p.lookup(ctx, queue, ids, observe.Cancelled, func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
		return lua.Cancel(ctx, p.cfg.Client, k, ids, p.cfg.Durability)
	})
}

// Reschedule moves the due time of a scheduled message: to at, or if that is zero to delay from the server's now. It
// returns the new due time. The message will not be delivered at the old one.
//
// ErrNotScheduled: it is ready or further on, was cancelled, or never existed. ErrUncertain, lua.ErrNotDurable and
// lua.ErrUnavailable as with Cancel. Blocks and costs as much.
func (p *Producer) Reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	moved, err := p.reschedule(ctx, queue, id, delay, at)
	return moved, wrap("reschedule", queue, id, err)
}

func (p *Producer) reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	when, err := dueWhen(delay, at)
	if err != nil {
		return time.Time{}, err
	}
	var mu sync.Mutex // partitions answer concurrently
	var to time.Time  // the earliest due time of several partitions
	do := func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
		due, moved, err := lua.Reschedule(ctx, p.cfg.Client, k, ids[0], when, p.cfg.Durability)
		mu.Lock()
		defer mu.Unlock()
		if moved && (to.IsZero() || due.Before(to)) {
			to = due
		}
		return []bool{moved}, err
	}
	moved, err := p.lookup(ctx, queue, []string{id}, observe.Rescheduled, do)
	if err == nil && !moved[0] {
		err = ErrNotScheduled
	}
	return to, err
}
