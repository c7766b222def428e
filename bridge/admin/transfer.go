package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream/transfer"
)

// This file holds what takes a queue into a file, and back.

// Record is a message as an export has it: all that Redis holds of it.
type Record = transfer.Record

// RecordKind says what a Record is.
type RecordKind = transfer.RecordKind

// Kinds of a Record.
const (
	RecordScheduled = transfer.RecordScheduled
	RecordReady     = transfer.RecordReady
	RecordDead      = transfer.RecordDead
)

// Export reads what a queue holds.
type Export = transfer.Export

// Export returns an export of these kinds of records.
func (a *Admin) Export(queue string, kinds ...RecordKind) *Export {
	return transfer.NewExport(a.redis.Client, a.prefix, queue, kinds...)
}

// Import writes records into a queue.
type Import = transfer.Import

// ErrKnown: a record is in the queue already, or was taken within the window.
var ErrKnown = transfer.ErrKnown

// Import registers a queue, and returns what writes records into it. Source names where they come from: dead letters of one name are the same
// only when they come from one source. Window is how long each message is remembered, so that it is not taken a second time when it has become
// ready; zero compares with what is scheduled, and with the dead letters that are there.
func (a *Admin) Import(ctx context.Context, queue, source string, window time.Duration) (*Import, error) {
	return transfer.NewImport(ctx, transfer.ImportConfig{Client: a.redis.Client, Prefix: a.prefix, Queue: queue, Source: source, Window: window})
}
