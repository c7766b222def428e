package admin

import "github.com/duestream/duestream/scheduler/bulk"

// Bulk cancels, moves or expires many scheduled messages, in bounded steps: one request reads a thousand members, one
// script changes 250, and other commands run in between. A message that becomes ready before its turn is delivered,
// and counted as gone. When ctx ends, the running step is finished first, so that the result counts every change.
// Repeat the same call to continue, also after an error or a kill: a changed message is not found again, or is
// counted as unchanged.
//
// The filter is applied to a message when it is read, a moment before the change. If a rate delays the change, and
// the filter is about due times or headers, these are read again before the change. Messages given by ID are looked
// up. For any other filter the whole schedule is read once. A message that is scheduled meanwhile may be found or
// not.
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

// BulkFilter selects messages of a schedule. A message must match all fields that are set. The zero value selects every
// message that waits for its first delivery or was redriven for all groups.
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

// BulkOptions control a bulk change. The zero value changes all messages, as fast as possible.
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

// BulkResult counts the results of a bulk change.
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

// BulkMessage is a scheduled message or retry.
//
//	type BulkMessage struct {
//		ID        string
//		Group     string    // for which it waits to be tried again; "" = all
//		Due       time.Time // zero: it was not found
//		Partition int
//	}
type BulkMessage = bulk.Message
