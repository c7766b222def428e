package bridge

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// Retry is a scheduled retry for one group, or a redriven dead letter: see [producer.Retry].
type Retry = producer.Retry

// Scope makes Cancel and Reschedule also act on scheduled retries, or on retries alone. Without a Scope they act only
// on a message that waits for its first delivery.
type Scope struct {
	group string
	alone bool
	into  *[]Retry
}

// Retries selects the scheduled message and all retries with its ID, of all groups.
//
// A scheduled message is looked up by its ID. Retries have no such index, so the call scans the whole schedule in steps
// of a thousand, and other commands run in between. A million messages take seconds. That is why Cancel looks for
// retries only with this option.
func Retries() Scope { return Scope{} }

// RetriesOf selects only the retries of one group. The scheduled message is for all groups, and stays. It costs as much
// as Retries.
func RetriesOf(group string) Scope { return Scope{group: group, alone: true} }

// Into returns a Scope that appends the cancelled or moved retries to a list.
func (s Scope) Into(taken *[]Retry) Scope {
	s.into = taken
	return s
}

// Cancel removes a message from the schedule, in every partition that may hold it. After nil it will never be
// delivered. ErrNotScheduled: the message became ready, was cancelled before, or never was scheduled. ErrUnavailable:
// also when one of the partitions, or the registry that lists them, does not answer; the message is then cancelled in
// the partitions that answered.
//
// With Retries or RetriesOf it also removes retries. After nil no retry is delivered that waited from the beginning of
// the call to its end. ErrNotScheduled: nothing waited. Cancel does not stop a handler that already works on the
// message: if that handler fails, the message is retried.
func (c *Client) Cancel(ctx context.Context, queue, id string, scopes ...Scope) error {
	first, wide, err := selected(scopes)
	if err != nil {
		return fmt.Errorf("cancel %s/%s: %w", queue, id, err)
	}
	done := false
	if first {
		done, err = c.producer.Cancel(ctx, queue, id)
	}
	for _, s := range wide {
		taken, failed := c.producer.CancelRetries(ctx, queue, s.group, id)
		done, err = s.record(taken) || done, errors.Join(err, failed)
	}
	if err == nil && !done {
		err = fmt.Errorf("cancel %s/%s: %w", queue, id, ErrNotScheduled)
	}
	return err
}

// Reschedule moves a scheduled message to a new due time, given by In or At, and returns that time. After nil the
// message will not be delivered at the old one. ErrNotScheduled as for Cancel. With Retries or RetriesOf it also
// moves retries: In(0) retries now. When it moves several it returns the earliest due time.
func (c *Client) Reschedule(ctx context.Context, queue, id string, to Option, scopes ...Scope) (time.Time, error) {
	var m NewMessage
	if to != nil {
		to(&m)
	}
	if onlyDue := (NewMessage{Delay: m.Delay, At: m.At}); to == nil || !reflect.DeepEqual(m, onlyDue) {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, lua.Invalid("to", "", "must be In or At"))
	}
	first, wide, err := selected(scopes)
	if err != nil {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, err)
	}
	if len(wide) == 0 {
		return c.producer.Reschedule(ctx, queue, id, m.Delay, m.At)
	}
	var due time.Time
	if first {
		if due, err = c.producer.Reschedule(ctx, queue, id, m.Delay, m.At); errors.Is(err, ErrNotScheduled) {
			err = nil
		}
	}
	for _, s := range wide {
		taken, failed := c.producer.RescheduleRetries(ctx, queue, s.group, m.Delay, m.At, id)
		s.record(taken)
		for _, r := range taken {
			if due.IsZero() || r.Due.Before(due) {
				due = r.Due
			}
		}
		err = errors.Join(err, failed)
	}
	if err == nil && due.IsZero() {
		err = fmt.Errorf("reschedule %s/%s: %w", queue, id, ErrNotScheduled)
	}
	return due, err
}

// selected returns whether the scopes select the scheduled message, and the scopes that select retries.
func selected(scopes []Scope) (first bool, wide []Scope, err error) {
	first = len(scopes) == 0
	for _, s := range scopes {
		first = first || !s.alone
		if s.alone {
			err = errors.Join(err, lua.CheckGroup(s.group))
		}
	}
	return first, scopes, err
}

func (s Scope) record(taken []Retry) bool {
	if s.into != nil {
		*s.into = append(*s.into, taken...)
	}
	return len(taken) > 0
}
