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

// Scope makes Cancel and Reschedule also act on scheduled retries, or only on retries. Without a Scope they act only on
// a message that waits for its first delivery.
type Scope struct {
	group       string
	onlyRetries bool
	into        *[]Retry
}

// Retries selects the scheduled message and all retries with its ID, of all groups.
//
// A scheduled message is looked up by its ID. Retries have no index, so the call scans the whole schedule in steps of a
// thousand members, and other commands run in between. A scan of a million messages takes seconds. For this reason
// Cancel looks for retries only if it is asked to.
func Retries() Scope { return Scope{} }

// RetriesOf selects only the retries of one group. It does not select the scheduled message, because that message is
// for all groups. It costs as much as Retries.
func RetriesOf(group string) Scope { return Scope{group: group, onlyRetries: true} }

// Into returns a Scope that appends the cancelled or moved retries to a list.
func (s Scope) Into(retries *[]Retry) Scope {
	s.into = retries
	return s
}

// Cancel removes a message from the schedule, in every partition that may hold it. If Cancel returns nil, the message
// will never be delivered. ErrNotScheduled: the message became ready, was cancelled before, or never was scheduled.
// ErrUnavailable: the server, one of the partitions, or the registry that lists them does not answer. The message is
// then cancelled in the partitions that answered.
//
// With Retries or RetriesOf, Cancel also removes retries. If it returns nil, no retry is delivered that waited from the
// beginning of the call to its end. ErrNotScheduled: nothing waited. Cancel does not stop a handler that already works
// on the message: if that handler fails, the message is retried.
func (c *Client) Cancel(ctx context.Context, queue, id string, scopes ...Scope) error {
	withMessage, err := checkScopes(scopes)
	if err != nil {
		return fmt.Errorf("cancel %s/%s: %w", queue, id, err)
	}
	done := false
	if withMessage {
		done, err = c.producer.Cancel(ctx, queue, id)
	}
	for _, s := range scopes {
		cancelled, failed := c.producer.CancelRetries(ctx, queue, s.group, id)
		s.record(cancelled)
		done, err = done || len(cancelled) > 0, errors.Join(err, failed)
	}
	if err == nil && !done {
		err = fmt.Errorf("cancel %s/%s: %w", queue, id, ErrNotScheduled)
	}
	return err
}

// Reschedule moves a scheduled message to a new due time, given by In or At, and returns that time. If Reschedule
// returns a nil error, the message will not be delivered at the old due time. ErrNotScheduled means the same as for
// Cancel. With Retries or RetriesOf, Reschedule also moves retries; In(0) retries now. If it moves several deliveries,
// it returns the earliest new due time.
func (c *Client) Reschedule(ctx context.Context, queue, id string, to Option, scopes ...Scope) (time.Time, error) {
	var m NewMessage
	if to != nil {
		to(&m)
	}
	if err := m.Refused(); err != nil {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, err)
	}
	if onlyDue := (NewMessage{Delay: m.Delay, At: m.At}); to == nil || !reflect.DeepEqual(m, onlyDue) {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, lua.Invalid("to", "", "must be In or At"))
	}
	withMessage, err := checkScopes(scopes)
	if err != nil {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, err)
	}
	if len(scopes) == 0 {
		return c.producer.Reschedule(ctx, queue, id, m.Delay, m.At)
	}
	var due time.Time
	if withMessage {
		if due, err = c.producer.Reschedule(ctx, queue, id, m.Delay, m.At); errors.Is(err, ErrNotScheduled) {
			err = nil
		}
	}
	for _, s := range scopes {
		moved, failed := c.producer.RescheduleRetries(ctx, queue, s.group, m.Delay, m.At, id)
		s.record(moved)
		for _, r := range moved {
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

// checkScopes checks the scopes, and reports whether they select the scheduled message. Each scope selects retries.
func checkScopes(scopes []Scope) (withMessage bool, err error) {
	withMessage = len(scopes) == 0
	for _, s := range scopes {
		if s.onlyRetries {
			err = errors.Join(err, lua.CheckGroup(s.group))
		} else {
			withMessage = true
		}
	}
	return withMessage, err
}

func (s Scope) record(retries []Retry) {
	if s.into != nil {
		*s.into = append(*s.into, retries...)
	}
}
