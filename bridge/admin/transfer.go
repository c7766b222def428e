package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream/transfer"
)

// This file holds what takes a queue into a file, and back.

// Record is a message as an export has it: all that Redis holds of it.
//
//	type Record struct {
//		Kind        RecordKind
//		ID          string
//		Due         int64
//		Payload     Payload // a string, {"base64": "…"} when it is not UTF-8, null when it was lost
//		Headers     map[string]string
//		Attempt     int    // absent = 1
//		For         string // scheduled, ready: the only group it is for
//		Entry       string // of a retry, ready or dead: the stream entry
//		MaxAttempts int
//		Expires     int64
//		Error       string
//		Letter      string // dead: its name; scheduled: ID of the dead letter that was redriven
//		Group       string // dead only, as the three below
//		Reason      string
//		Dead        int64
//		Extra       map[string]string // fields nobody knows
//		Plan        string            // of a recurrence: "" = it begins anew
//		Member      []byte            // scheduled: the member of the schedule
//		Meta        []byte            // scheduled: its meta
//		Fields      [][]byte          // dead: fields and values in turn
//	}
//
//	func (Record) Check() error
type Record = transfer.Record

// RecordKind says what a Record is.
//
//	type RecordKind string
type RecordKind = transfer.RecordKind

// Kinds of a Record.
const (
	RecordScheduled = transfer.RecordScheduled // waits for its due time; also a retry or a redriven letter
	RecordReady     = transfer.RecordReady     // an entry that one group, or none yet, has not acknowledged
	RecordDead      = transfer.RecordDead      // a dead letter
	// RecordRecurrence is a recurrence: its name stands in ID, its spec in Payload, and in Plan what is remembered of it.
	RecordRecurrence = transfer.RecordRecurrence
)

// Export reads what a queue holds: Records walks through it, while it is in use.
//
//	type Export struct {
//		// LeftOut counts, once Records is through, entries of the stream that could not be delivered a second time: their
//		// body is lost, or malformed. They are not among the records. Recurrences that nobody could write elsewhere are
//		// counted too: their name is no text.
//		LeftOut int
//	}
//
//	func (*Export) Records(ctx context.Context) iter.Seq2[Record, error]
//	func (*Export) Recurrences(ctx context.Context) ([]string, error)
//	func (*Export) Time(ctx context.Context) (time.Time, error)
type Export = transfer.Export

// Export returns an export of these kinds of records, and of no others. Redis is not touched before it is walked.
func (a *Admin) Export(queue string, kinds ...RecordKind) *Export {
	return transfer.NewExport(a.redis.Client, a.prefix, queue, kinds...)
}

// Import writes records into a queue, each with its own verdict.
//
//	type Import struct {
//		// contains no exported fields
//	}
//
//	func (*Import) AllowOldBridges()
//	func (*Import) Groups(ctx context.Context, groups []string) error
//	func (*Import) GroupsMade() []string
//	func (*Import) Known(ctx context.Context, ids []string) ([]bool, error)
//	func (*Import) Recurrences(names []string)
//	func (*Import) Remember(ctx context.Context, ids []string) error
//	func (*Import) Write(ctx context.Context, records []Record) []error
type Import = transfer.Import

// ErrKnown: a record is in the queue already, or was taken within the window.
var ErrKnown = transfer.ErrKnown

// Import registers a queue, and returns what writes records into it. Source names where they come from: dead letters of one name
// are the same only when they come from one source. Window is how long each message is remembered, so that it is not taken a
// second time when it has become ready; zero compares with what is scheduled, and with the dead letters that are there.
func (a *Admin) Import(ctx context.Context, queue, source string, window time.Duration) (*Import, error) {
	im, err := transfer.NewImport(ctx, a.redis.Client, a.prefix, queue, source, window)
	if err == nil && a.old {
		im.AllowOldBridges()
	}
	return im, err
}
