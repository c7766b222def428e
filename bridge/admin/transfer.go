package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream/transfer"
)

// This file holds export and import of queues.

// Record is an exported message, with everything that Redis holds of it: see [transfer.Record].
type Record = transfer.Record

// RecordKind is the kind of a Record: see [transfer.RecordKind].
type RecordKind = transfer.RecordKind

// Kinds of a Record.
const (
	RecordScheduled = transfer.RecordScheduled // a scheduled message, retry or redriven dead letter
	// RecordReady is an entry that a group has not acknowledged. If the stream has no group, it is any entry.
	RecordReady = transfer.RecordReady
	RecordDead  = transfer.RecordDead // a dead letter
	// RecordRecurrence is a recurrence: its name is in ID, its spec in Payload, and its planning state in Plan.
	RecordRecurrence = transfer.RecordRecurrence
)

// Export reads the contents of a queue: see [transfer.Export].
type Export = transfer.Export

// Export returns an export of the given kinds of records. Redis is not touched before Records is iterated over.
func (a *Admin) Export(queue string, kinds ...RecordKind) *Export {
	return transfer.NewExport(a.redis.Client, a.prefix, queue, kinds...)
}

// Import writes records into a queue, each with its own result: see [transfer.Import].
type Import = transfer.Import

// ErrKnown: a record is in the queue already, or was imported within the window.
var ErrKnown = transfer.ErrKnown

// Import registers a queue, and returns an Import that writes records into it. The source names the origin of the
// records: dead letters with the same name count as the same only if their source is the same. The window is how long
// each imported message is remembered, so that it is not imported again after it has become ready. If window is zero, a
// record is only compared with the scheduled messages and the dead letters in the queue.
func (a *Admin) Import(ctx context.Context, queue, source string, window time.Duration) (*Import, error) {
	im, err := transfer.NewImport(ctx, a.redis.Client, a.prefix, queue, source, window)
	if err == nil && a.allowOldBridges {
		im.AllowOldBridges()
	}
	return im, err
}
