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

// setAside parts the error of a call that was executed, but is not as durable as asked, from one that is to be repeated.
func setAside(err error) (waited, failed error) {
	if errors.Is(err, lua.ErrNotDurable) {
		return err, nil
	}
	return nil, err
}

// Cancel takes a message out of the schedule, in every partition of the queue. True: it will never be delivered, and
// its ID may be used again. False: it was not scheduled: it is ready or further on, was cancelled before, or never was.
//
// When the reply was lost, the call is repeated; if the message is gone then, the error is ErrUncertain, because the first try
// may have cancelled it. With lua.ErrNotDurable the answer holds. When a partition that may hold the message, or the registry,
// which knows the partitions, does not answer, the error says why; true then means that it was cancelled in another partition.
// Blocks as Schedule does; one round trip, in which all partitions are asked, and another one when none of several has
// it. Changes nothing in the registry: a queue that nobody scheduled into stays unknown.
func (p *Producer) Cancel(ctx context.Context, queue, id string) (bool, error) {
	done, err := p.cancel(ctx, queue, []string{id})
	return len(done) == 1 && done[0], wrap("cancel", queue, id, err)
}

// cancel is Cancel for many messages, in calls of 1,000 per partition. With an error the answers are those known up to then: true
// is definite, false is not.
func (p *Producer) cancel(ctx context.Context, queue string, ids []string) ([]bool, error) {
	return p.lookup(ctx, queue, ids, observe.Cancelled, func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
		return lua.Cancel(ctx, p.cfg.Client, k, ids, p.cfg.Durability)
	})
}

// Reschedule moves the due time of a message that is still scheduled: to at, or when that is zero to delay from the server's now.
// It returns the new due time; the message will not be delivered at the old one.
//
// ErrNotScheduled: it is ready or further on, was cancelled, or never was. ErrUncertain, lua.ErrNotDurable, lua.ErrUnavailable:
// as with Cancel. Blocks and costs as much.
func (p *Producer) Reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	moved, err := p.reschedule(ctx, queue, id, delay, at)
	return moved, wrap("reschedule", queue, id, err)
}

func (p *Producer) reschedule(ctx context.Context, queue, id string, delay time.Duration, at time.Time) (time.Time, error) {
	when, err := dueWhen(delay, at)
	if err != nil {
		return time.Time{}, err
	}
	var mu sync.Mutex // partitions answer at the same time
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
