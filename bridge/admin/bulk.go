package admin

import "github.com/duestream/duestream/scheduler/bulk"

// Bulk cancels, moves or expires many scheduled messages at once, in bounded steps: one request looks at a thousand members, one
// script changes 250, and others are served in between. What became ready before its turn is counted as gone, and is delivered.
// When ctx ends, the call under way is finished first, so that the result counts all that was done; the same call goes on with
// the rest, because what was changed is not found again, or counted as unchanged. So it is after an error, and after a kill.
//
// A message is judged by what it was when it was read, a moment before it is changed: where a rate has it wait, its due time and
// headers are read again when it is its turn, if the filter asks for them. IDs are looked up; for all else the whole schedule is
// read once. What is scheduled while that goes on may be met or not.
//
//	type Bulk struct {
//		// contains no exported fields
//	}
//
//	func (*Bulk) Cancel(ctx context.Context, queue string, f BulkFilter, o BulkOptions) (BulkResult, error)
//	func (*Bulk) Expire(ctx context.Context, queue string, f BulkFilter, o BulkOptions) (BulkResult, error)
//	func (*Bulk) Observed(o bridge.Observer) *Bulk
//	func (*Bulk) Reschedule(ctx context.Context, queue string, f BulkFilter, delay time.Duration, at time.Time,
//		o BulkOptions) (BulkResult, error)
type Bulk = bulk.Bulk

// Bulk returns a handle on the schedules of the prefix. Redis is not touched.
func (a *Admin) Bulk() *Bulk { return bulk.New(a.redis.Client, a.prefix).Observed(a.observer) }

// BulkFilter says which messages of a schedule are meant; what is set must hold together. The zero value is every message that
// waits for the first time, or was redriven for all groups.
//
//	type BulkFilter struct {
//		IDs     []string          // one of these; empty = any
//		Prefix  string            // the ID begins with it
//		Headers map[string]string // it has all of these, with these values
//		From    time.Time         // due then, or later
//		Until   time.Time         // due before
//		Retries bool              // also what waits to be tried again, for whichever group
//		Group   string            // only what waits to be tried again for this group
//	}
type BulkFilter = bulk.Filter

// BulkOptions say how messages are changed. The zero value: all of them, as fast as possible.
//
//	type BulkOptions struct {
//		// messages per second, over any time; after a stall at most one second's worth is changed at once; 0 = no limit
//		Rate   float64
//		DryRun bool // changes nothing, and counts what would be changed
//		// to reschedule: each is due at some moment of so long after that, which follows from its ID alone; in whole
//		// milliseconds
//		Spread   time.Duration
//		Selected func(BulkMessage) // called for each message that is meant, before anything is done with it
//		Missed   func(BulkMessage) // called for each that was gone, or refused
//		Progress func(BulkResult)  // called after each step
//	}
type BulkOptions = bulk.Options

// BulkResult counts what became of messages.
//
//	type BulkResult struct {
//		Looked    int64 // members of schedules that were read
//		Total     int64 // how many there were to read
//		Changed   int   // cancelled, moved or expired; in a dry run, what would be
//		Unchanged int   // due at that time, or expired, before
//		// when it was their turn not scheduled any more: ready meanwhile, or cancelled; or not meant any more: moved, or
//		// replaced; and IDs that were not found
//		Gone    int
//		Refused int       // to expire: no room for an expiry among headers of 512 KiB
//		To      time.Time // rescheduled: when they are due now, or the Spread begins
//	}
type BulkResult = bulk.Result

// BulkMessage is a message, or a retry, that waits in the schedule.
//
//	type BulkMessage struct {
//		ID        string
//		Group     string    // for which it waits to be tried again; "" = all
//		Due       time.Time // zero: it was not found
//		Partition int
//	}
type BulkMessage = bulk.Message
