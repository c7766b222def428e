package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// Retry is a delivery that waits to be tried again: a retry for a group that failed, or a redriven dead letter; Group is ""
// where it was redriven for all groups.
//
//	type Retry struct {
//		ID    string
//		Group string    // "" = redriven for all groups
//		Due   time.Time // when it is due now; of a cancelled one, when it would have been
//	}
type Retry = producer.Retry

// Scope says what Cancel and Reschedule take beside, or instead of, the message that is scheduled for the first time.
type Scope struct {
	group string
	alone bool
	into  *[]Retry
}

// Retries takes the scheduled message, and whatever waits to be tried again under its ID, of all groups.
//
// A scheduled message is looked up by its ID. No key says where retries are, so the call looks through the whole schedule:
// seconds for a million messages, in steps of a thousand that let others in between. That is why Cancel does not do it unless
// asked to.
func Retries() Scope { return Scope{} }

// RetriesOf takes only what waits to be tried again for one group, and costs the same. The message itself is for all groups, and
// stays.
func RetriesOf(group string) Scope { return Scope{group: group, alone: true} }

// Into has the retries that were taken appended to a list.
func (s Scope) Into(taken *[]Retry) Scope {
	s.into = taken
	return s
}

// Cancel takes a message out of the schedule, of every partition that may hold it: after nil it will never be delivered.
// ErrNotScheduled: it is not scheduled any more, because it became ready or was cancelled before, or never was. ErrUnavailable
// also when a partition that may hold it does not answer, or the registry, which says where else it may be; then it is cancelled
// where the server answered.
//
// With Retries or RetriesOf it takes what waits to be tried again: after nil nothing that waited from the beginning of the call
// to its end is delivered. ErrNotScheduled: nothing waited. Cancel does not stop a handler that works on the message meanwhile;
// the message may fail there, and be tried again.
func (c *Client) Cancel(ctx context.Context, queue, id string, scopes ...Scope) error {
	first, wide, err := widths(scopes)
	if err != nil {
		return fmt.Errorf("cancel %s/%s: %w", queue, id, err)
	}
	done := false
	if first {
		done, err = c.producer.Cancel(ctx, queue, id)
	}
	for _, s := range wide {
		taken, failed := c.producer.CancelRetries(ctx, queue, s.group, id)
		done, err = s.took(taken) || done, errors.Join(err, failed)
	}
	if err == nil && !done {
		err = fmt.Errorf("cancel %s/%s: %w", queue, id, ErrNotScheduled)
	}
	return err
}

// Reschedule moves a scheduled message to another due time, given by In or At: after nil it will never be delivered at the old
// one. ErrNotScheduled as for Cancel. With Retries or RetriesOf it moves what waits to be tried again: In(0) has it tried now.
// When it moves several it returns the earliest due time.
func (c *Client) Reschedule(ctx context.Context, queue, id string, to Option, scopes ...Scope) (time.Time, error) {
	var m producer.Message
	if to != nil {
		to(&m)
	}
	if to == nil || m.ID != "" || m.Headers != nil || m.MaxAttempts != 0 || m.RetryDelays != "" || m.RetryFor != 0 ||
		m.MaxSnoozes != 0 || m.MaxCrashes != 0 || m.HandlerTimeout != 0 || m.Key != "" || m.Spread != 0 || !m.Expires.IsZero() ||
		m.ExpiresIn != 0 ||
		m.Dedup != 0 || m.Replace != "" {
		return time.Time{}, fmt.Errorf("reschedule %s/%s: %w", queue, id, lua.Invalid("to", "", "must be In or At"))
	}
	first, wide, err := widths(scopes)
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
		s.took(taken)
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

// widths says what scopes take: whether the scheduled message, and which retries.
func widths(scopes []Scope) (first bool, wide []Scope, err error) {
	first = len(scopes) == 0
	for _, s := range scopes {
		first = first || !s.alone
		if s.alone {
			err = errors.Join(err, lua.CheckGroup(s.group))
		}
	}
	return first, scopes, err
}

func (s Scope) took(taken []Retry) bool {
	if s.into != nil {
		*s.into = append(*s.into, taken...)
	}
	return len(taken) > 0
}
