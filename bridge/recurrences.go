package bridge

import (
	"context"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// Recurrence is a message that is scheduled again and again: by a cron expression in a time zone, or every so often.
//
//	type Recurrence struct {
//		Name, Queue string
//		Payload     []byte
//		Headers     map[string]string
//		Cron        string        // five fields, six with seconds in front, or @daily and the like
//		Zone        string        // of Cron, as Europe/Paris; "" = UTC
//		Every       time.Duration // instead of Cron: whole milliseconds, from a second to ten years
//		// of Every: occurrences are at 1970-01-01T00:00:00Z + Phase + n × Every; below Every
//		Phase      time.Duration
//		Start, End time.Time     // no occurrence before, or after; zero = no bound
//		Count      int           // so many occurrences at most; zero = no bound
//		Jitter     time.Duration // each is due so much later at most, by its ID
//		Missed     recurrence.Missed
//		Overlap    recurrence.Overlap
//		Paused     bool
//		Owner      string // label of who keeps it: Apply changes and removes only its own
//	}
//
//	func (Recurrence) Compile() (*recurrence.Schedule, error)
//	func (Recurrence) Due(at time.Time) time.Time
//	func (Recurrence) Equal(o Recurrence) bool
//	func (Recurrence) ID(at time.Time) string
//	func (Recurrence) WithDefaults() Recurrence
type Recurrence = recurrence.Spec

// What becomes of occurrences that nobody planned in time, because no bridge lived: of Recurrence.Missed.
const (
	MissedOnce = recurrence.MissedOnce // the last one is made up for: the default
	MissedSkip = recurrence.MissedSkip // none is
	MissedAll  = recurrence.MissedAll  // all are, the last 100 at most
)

// What happens while the one before is not done, in any group: of Recurrence.Overlap.
const (
	OverlapAllow = recurrence.OverlapAllow // nothing: the default
	OverlapSkip  = recurrence.OverlapSkip  // the occurrence is left out
)

// RecurrenceState is a recurrence, and what is known of it.
//
//	type RecurrenceState struct {
//		Spec Recurrence
//		// Next are the next occurrences, three at most, in the recurrence's own zone; also of one that is paused.
//		Next []time.Time
//		// Last and LastID are of the last message whose time has come; zero = none that is remembered.
//		Last    time.Time
//		LastID  string
//		Used    int    // occurrences planned, or past, since it was added
//		Problem string // why nothing of it is planned: the spec is wrong
//		// Unplanned is the first occurrence whose time came 20s ago, or before, and that nobody has planned; zero = none.
//		// Bridges plan at least 20s ahead.
//		Unplanned time.Time
//	}
type RecurrenceState = planner.State

// RecurrenceChange is what Recur did.
//
//	type RecurrenceChange struct {
//		Added, Changed bool // neither: it was there as it is
//		TakenBack      int  // messages that had been planned of the former spec
//	}
type RecurrenceChange = planner.Change

// Errors of recurrences.
var (
	// ErrNoRecurrence: the queue has no recurrence of that name.
	ErrNoRecurrence = planner.ErrNoRecurrence
	// ErrChanged: somebody else changed the recurrence meanwhile. Nothing was written.
	ErrChanged = planner.ErrChanged
)

// Recur writes a recurrence, or changes the one of its name; what was planned of the former one for later is taken back. Its next
// occurrence is scheduled when Recur returns, as an ordinary message with the ID <name>@<Unix ms of the occurrence>; those behind
// it are scheduled by whichever bridge serves the queue, each once, and a bridge that was away makes up for what Missed says.
// A message whose time has come is not taken back. ErrInvalid names every field that is wrong. Repeating is harmless. The
// Durability of the Client is not waited for.
//
// This and the other methods about recurrences need rights that docs/OPERATIONS.md lists beside those of a producer.
func (c *Client) Recur(ctx context.Context, r Recurrence) (RecurrenceChange, error) {
	return tried(ctx, c, func(ctx context.Context) (RecurrenceChange, error) { return c.planner.Put(ctx, r) })
}

// Recurrences returns the recurrences of a queue by name, each with its next three times.
func (c *Client) Recurrences(ctx context.Context, queue string) ([]RecurrenceState, error) {
	return tried(ctx, c, func(ctx context.Context) ([]RecurrenceState, error) { return c.planner.List(ctx, queue) })
}

// PauseRecurrence has nothing of a recurrence scheduled until it is resumed, and takes back what is. ErrNoRecurrence, ErrChanged.
func (c *Client) PauseRecurrence(ctx context.Context, queue, name string) error {
	return c.hold(ctx, queue, name, true)
}

// ResumeRecurrence has a paused recurrence go on from now: what it would have had meanwhile is not made up for. ErrNoRecurrence,
// ErrChanged.
func (c *Client) ResumeRecurrence(ctx context.Context, queue, name string) error {
	return c.hold(ctx, queue, name, false)
}

func (c *Client) hold(ctx context.Context, queue, name string, paused bool) error {
	_, err := tried(ctx, c, func(ctx context.Context) (bool, error) { return c.planner.Pause(ctx, queue, name, paused) })
	return err
}

// RemoveRecurrence removes a recurrence, and takes back what is scheduled of it; what somebody ran stays. ErrNoRecurrence, also
// when a repeated call finds it gone.
func (c *Client) RemoveRecurrence(ctx context.Context, queue, name string) error {
	_, err := tried(ctx, c, func(ctx context.Context) (int, error) { return c.planner.Remove(ctx, queue, name) })
	return err
}

// RunRecurrence schedules a message of a recurrence for now, also of a paused one, with the ID <name>@<Unix ms>-run. With
// OverlapSkip the next occurrence waits for it, too. ErrNoRecurrence. After ErrUnavailable it may have been done, and repeating
// schedules another one.
func (c *Client) RunRecurrence(ctx context.Context, queue, name string) (Receipt, error) {
	if c.closed.Load() {
		return Receipt{}, ErrClosed
	}
	id, due, err := c.planner.Run(ctx, queue, name)
	return Receipt{ID: id, Due: due}, err
}

// tried repeats a harmless call after errors that may pass, as long as the Client does so.
func tried[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (T, error) {
	pause := 50 * time.Millisecond
	for began := time.Now(); ; pause = min(2*pause, time.Second) {
		var none T
		if c.closed.Load() {
			return none, ErrClosed
		}
		got, err := call(ctx)
		if !lua.Temporary(err) || ctx.Err() != nil || time.Since(began)+pause > c.patience {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(pause):
		}
	}
}
