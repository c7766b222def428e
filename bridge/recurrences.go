package bridge

import (
	"context"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// Recurrence is a message that is scheduled repeatedly, by a cron expression or at an interval: see [recurrence.Spec].
type Recurrence = recurrence.Spec

// Values of Recurrence.Missed: which occurrences are made up for if no bridge was alive to plan them in time.
const (
	MissedOnce = recurrence.MissedOnce // the last one; the default
	MissedSkip = recurrence.MissedSkip // none
	MissedAll  = recurrence.MissedAll  // all, but at most the last 100
)

// Values of Recurrence.Overlap, for an occurrence that is due while a group still works on the occurrence before it.
const (
	OverlapAllow = recurrence.OverlapAllow // the occurrence is scheduled; the default
	OverlapSkip  = recurrence.OverlapSkip  // the occurrence is left out
)

// RecurrenceState is a recurrence with its next and last occurrences: see [planner.State].
type RecurrenceState = planner.State

// RecurrenceChange is the result of Recur: see [planner.Change].
type RecurrenceChange = planner.Change

// Errors of recurrences.
var (
	// ErrNoRecurrence: the queue has no recurrence of that name.
	ErrNoRecurrence = planner.ErrNoRecurrence
	// ErrChanged: another client changed the recurrence meanwhile. Nothing was written.
	ErrChanged = planner.ErrChanged
)

// Recur adds a recurrence, or replaces the recurrence with its name. Messages of the replaced recurrence that are not
// yet due are cancelled. When Recur returns, the next occurrence is scheduled, as an ordinary message with the ID
// <name>@<Unix ms of the occurrence>. A bridge that serves the queue schedules each later occurrence once. After an
// outage of all bridges it makes up for missed occurrences as the field Missed says. ErrInvalid names every wrong
// field. Recur may be repeated without harm. It does not wait for the Client's Durability.
//
// The methods about recurrences need more rights than a producer has: see docs/operations/users.md.
func (c *Client) Recur(ctx context.Context, r Recurrence) (RecurrenceChange, error) {
	return retry(ctx, c, func(ctx context.Context) (RecurrenceChange, error) { return c.planner.Put(ctx, r) })
}

// Recurrences returns the recurrences of a queue, in the order of their names, each with its next three times.
func (c *Client) Recurrences(ctx context.Context, queue string) ([]RecurrenceState, error) {
	return retry(ctx, c, func(ctx context.Context) ([]RecurrenceState, error) { return c.planner.List(ctx, queue) })
}

// PauseRecurrence stops a recurrence until it is resumed, and cancels its scheduled messages. It returns
// ErrNoRecurrence or ErrChanged.
func (c *Client) PauseRecurrence(ctx context.Context, queue, name string) error {
	return c.setPaused(ctx, queue, name, true)
}

// ResumeRecurrence resumes a paused recurrence from now on. Occurrences during the pause are not made up for. It
// returns ErrNoRecurrence or ErrChanged.
func (c *Client) ResumeRecurrence(ctx context.Context, queue, name string) error {
	return c.setPaused(ctx, queue, name, false)
}

func (c *Client) setPaused(ctx context.Context, queue, name string, paused bool) error {
	_, err := retry(ctx, c, func(ctx context.Context) (bool, error) { return c.planner.Pause(ctx, queue, name, paused) })
	return err
}

// RemoveRecurrence removes a recurrence and cancels its scheduled messages, but not messages of RunRecurrence. If a
// reply is lost, RemoveRecurrence repeats the call, and may then return ErrNoRecurrence although it removed the
// recurrence.
func (c *Client) RemoveRecurrence(ctx context.Context, queue, name string) error {
	_, err := retry(ctx, c, func(ctx context.Context) (int, error) { return c.planner.Remove(ctx, queue, name) })
	return err
}

// RunRecurrence schedules a message of a recurrence for now, even if it is paused, with the ID <name>@<Unix ms>-run.
// With OverlapSkip, occurrences that fall due before this message is settled are skipped. RunRecurrence returns
// ErrNoRecurrence if there is no such recurrence. After ErrUnavailable the message may have been scheduled; repeating
// the call schedules another one.
func (c *Client) RunRecurrence(ctx context.Context, queue, name string) (Receipt, error) {
	if c.closed.Load() {
		return Receipt{}, ErrClosed
	}
	id, due, err := c.planner.Run(ctx, queue, name)
	return Receipt{ID: id, Due: due}, err
}

// retry repeats a call after temporary errors, for at most the Client's RetryTimeout. The call must do no harm if it
// runs twice.
func retry[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (T, error) {
	pause := 50 * time.Millisecond
	for began := time.Now(); ; pause = min(2*pause, time.Second) {
		var zero T
		if c.closed.Load() {
			return zero, ErrClosed
		}
		result, err := call(ctx)
		if !lua.Temporary(err) || ctx.Err() != nil || time.Since(began)+pause > c.retryTimeout {
			return result, err
		}
		select {
		case <-ctx.Done():
			return result, err
		case <-time.After(pause):
		}
	}
}
