package producer

import (
	"context"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Cancel removes a message from the schedule, in every partition of the queue. True: the message will never be
// delivered, and its ID may be used again. False: the message was not scheduled, because it is ready, was delivered or
// cancelled before, or never existed.
//
// A call whose reply was lost is repeated. If the repeated call does not find the message, the error is ErrUncertain,
// because the first try may have cancelled it. With lua.ErrNotDurable the answer holds. Any other error says which part
// did not answer: a partition that may hold the message, or the registry of partitions. True with such an error means
// that the message was cancelled in another partition.
//
// Cancel blocks like Schedule. One round trip asks all partitions. A queue with several partitions takes a second one
// if none of them has the message. Cancel does not register the queue.
func (p *Producer) Cancel(ctx context.Context, queue, id string) (bool, error) {
	done, err := p.cancel(ctx, queue, []string{id})
	return len(done) == 1 && done[0], wrap("cancel", queue, id, err)
}

// cancel is Cancel for many messages, in calls of 1,000 messages per partition. With an error it returns the answers so
// far, of which true is definite and false is not.
func (p *Producer) cancel(ctx context.Context, queue string, ids []string) ([]bool, error) {
	cancel := func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
		return lua.Cancel(ctx, p.cfg.Client, k, ids, p.cfg.Durability)
	}
	return p.lookup(ctx, queue, ids, observe.Cancelled, cancel)
}

// Reschedule sets a new due time for a scheduled message, and returns that time. The new due time is at; if at is zero,
// it is the server's time plus delay. The message will not be delivered at the old due time.
//
// ErrNotScheduled: the message is ready, was delivered or cancelled, or never existed. ErrUncertain, lua.ErrNotDurable
// and lua.ErrUnavailable mean the same as with Cancel. Reschedule blocks like Cancel, and takes as many round trips.
func (p *Producer) Reschedule(ctx context.Context, queue, id string, delay time.Duration,
	at time.Time) (time.Time, error) {
	moved, err := p.reschedule(ctx, queue, id, delay, at)
	return moved, wrap("reschedule", queue, id, err)
}

func (p *Producer) reschedule(ctx context.Context, queue, id string, delay time.Duration,
	at time.Time) (time.Time, error) {
	when, err := dueWhen(delay, at)
	if err != nil {
		return time.Time{}, err
	}
	var mu sync.Mutex // partitions answer concurrently
	var to time.Time  // the earliest new due time of all partitions
	change := func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
		due, moved, err := lua.Reschedule(ctx, p.cfg.Client, k, ids[0], when, p.cfg.Durability)
		mu.Lock()
		defer mu.Unlock()
		if moved && (to.IsZero() || due.Before(to)) {
			to = due
		}
		return []bool{moved}, err
	}
	moved, err := p.lookup(ctx, queue, []string{id}, observe.Rescheduled, change)
	if err == nil && !moved[0] {
		err = ErrNotScheduled
	}
	return to, err
}
