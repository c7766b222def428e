package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream/transfer"
)

// This file holds export and import of queues.

// Record is an exported message, with everything that Redis holds of it.
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

// RecordKind is the kind of a Record.
//
//	type RecordKind string
type RecordKind = transfer.RecordKind

// Kinds of a Record.
const (
	RecordScheduled = transfer.RecordScheduled // a scheduled message, retry or redriven dead letter
	RecordReady     = transfer.RecordReady     // an entry that a group has not acknowledged, or of a stream without one
	RecordDead      = transfer.RecordDead      // a dead letter
	// RecordRecurrence is a recurrence: its name is in ID, its spec in Payload, and its planning state in Plan.
	RecordRecurrence = transfer.RecordRecurrence
)

// Export reads the contents of a queue. Records iterates over them, and the queue may be in use meanwhile.
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

// Export returns an export of the given kinds of records. Redis is not touched before Records is iterated over.
func (a *Admin) Export(queue string, kinds ...RecordKind) *Export {
	return transfer.NewExport(a.redis.Client, a.prefix, queue, kinds...)
}

// Import writes records into a queue, each with its own result.
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

// ErrKnown: a record is in the queue already, or was imported within the window.
var ErrKnown = transfer.ErrKnown

// Import registers a queue, and returns an Import that writes records into it. Source names the origin of the
// records: dead letters with the same name count as the same only if their source is the same. Window is how long
// each imported message is remembered, so that it is not imported again after it became ready. With zero, a record is
// only compared with the scheduled messages and the dead letters in the queue.
func (a *Admin) Import(ctx context.Context, queue, source string, window time.Duration) (*Import, error) {
	im, err := transfer.NewImport(ctx, a.redis.Client, a.prefix, queue, source, window)
	if err == nil && a.old {
		im.AllowOldBridges()
	}
	return im, err
}
