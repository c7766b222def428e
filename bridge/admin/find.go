package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/lookup"
	"github.com/duestream/duestream/stream/sizes"
)

// This file holds the calls that find messages and list entries.

// Finding is the result of Find, with the places and the history of a message: see [lookup.Finding].
type Finding = lookup.Finding

// Sighting is a Place of a message, with its queue: see [lookup.Sighting].
type Sighting = lookup.Sighting

// Moment is a past or coming event of a message: see [lookup.Moment].
type Moment = lookup.Moment

// Window is the time until which a queue refuses the ID of an earlier message: see [lookup.Window].
type Window = lookup.Window

// Events of a Moment.
const (
	MomentMade      = lookup.MomentMade      // scheduled, by the producer's clock; known only if the ID is a ULID
	MomentDue       = lookup.MomentDue       // its due time, past or coming
	MomentReady     = lookup.MomentReady     // drained: added to the stream
	MomentDelivered = lookup.MomentDelivered // to a consumer; may be inexact: see PendingEntry.HeldSince
	MomentDead      = lookup.MomentDead      // dead-lettered for a group
	MomentExpires   = lookup.MomentExpires   // from then on it is dead-lettered instead of delivered
)

// FindOptions controls Find. The zero value searches all queues.
type FindOptions struct {
	Queues   []string                  // the queues to search; none = all queues of the prefix
	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called at intervals, one at a time; total may grow
}

// Find returns every place where Redis holds a message, in all queues of the prefix, and its known history.
// ErrNotFound: no place holds the message; the Finding lists the places that were searched.
func (a *Admin) Find(ctx context.Context, id string, o FindOptions) (Finding, error) {
	return lookup.Find(ctx, a.redis.Client, a.prefix, id, lookup.FindOptions{
		Queues: o.Queues, Seen: o.Seen, Progress: o.Progress,
	})
}

// State is the state of a message at a Place: see [lookup.State].
type State = lookup.State

// States of a Place.
const (
	StateScheduled = lookup.StateScheduled // for its first delivery, or redriven for all groups
	StateRetrying  = lookup.StateRetrying  // scheduled again for one group
	StateReady     = lookup.StateReady     // in the stream, and not yet read by the groups that the Place names
	StatePending   = lookup.StatePending   // held by a consumer
	StateDead      = lookup.StateDead      // a dead letter of a group
)

// Place is one place where Redis holds a message: see [lookup.Place].
type Place = lookup.Place

// Locate returns every place where one queue holds a message: scheduled, ready, pending (with its consumer), retrying,
// dead. ErrNotFound if there is none: it was acknowledged by every group, cancelled or purged, or never scheduled. A
// scheduled message is looked up; for the other states the queue is scanned in bounded steps. Prefer Find: it tells
// more about a message, and searches all queues.
func (a *Admin) Locate(ctx context.Context, queue, id string) ([]Place, error) {
	return lookup.Locate(ctx, a.redis.Client, a.prefix, queue, id)
}

// Peeked is the beginning of a queue's schedule, with the number of its members: see [lookup.Peeked].
type Peeked = lookup.Peeked

// Due is one member of a schedule: see [lookup.Due].
type Due = lookup.Due

// Consumer is a consumer of a group, over all partitions of a queue: see [sizes.Consumer].
type Consumer = sizes.Consumer

// Peek returns the n members of a queue's schedule that are due first, over all partitions, in the order of their due
// times. It also returns the number of all members. Payloads are included only if payloads is true. For a schedule of m
// members the cost is O(n log m).
func (a *Admin) Peek(ctx context.Context, queue string, n int, payloads bool) (Peeked, error) {
	return lookup.Peek(ctx, a.redis.Client, a.prefix, queue, n, payloads)
}

// DueBetween is Peek without payloads, for the members that are due at from or later, and before until, such as those
// of a bar of DueHistogram. Total is the number of these members. A zero from has no lower bound, and a zero until no
// upper bound. Members that wait for their ordering keys are left out. Times are rounded down to milliseconds.
func (a *Admin) DueBetween(ctx context.Context, queue string, from, until time.Time, n int) (Peeked, error) {
	return lookup.DueBetween(ctx, a.redis.Client, a.prefix, queue, from, until, n)
}

// Consumers lists the consumers of a queue's groups, or of one group if group is not "", sorted by group and name.
// ErrNoGroup: there is no such group.
func (a *Admin) Consumers(ctx context.Context, queue, group string) ([]Consumer, error) {
	return sizes.Consumers(ctx, a.redis.Client, a.prefix, queue, group)
}

// PendingCount returns how many entries the consumers of a group hold, or if consumer is not "", how many that consumer
// holds. ErrNoGroup: there is no such group.
func (a *Admin) PendingCount(ctx context.Context, queue, group, consumer string) (int64, error) {
	return sizes.PendingCount(ctx, a.redis.Client, a.prefix, queue, group, consumer)
}

// Pause pauses a queue: scheduled messages do not become ready; ready messages are still delivered. If held is false,
// Pause resumes the queue, also after PauseWorkers. No message is lost. changed is false if the queue was already in
// that state.
func (a *Admin) Pause(ctx context.Context, queue string, held bool) (changed bool, err error) {
	return stream.Pause(ctx, a.redis.Client, a.prefix, queue, a.Name(), held)
}

// PauseWorkers is Pause, and also stops the workers of all groups from taking new messages, within about two seconds.
// The workers finish the messages that they hold. Pause with held false resumes both.
func (a *Admin) PauseWorkers(ctx context.Context, queue string) (changed bool, err error) {
	return stream.PauseWorkers(ctx, a.redis.Client, a.prefix, queue, a.Name())
}

// Remembered returns until when an ID is refused because of an earlier message's dedup window (Dedup). It returns zero
// if the ID is not refused. Find tells whether the earlier message is done.
func (a *Admin) Remembered(ctx context.Context, queue, id string) (until time.Time, err error) {
	return lookup.Remembered(ctx, a.redis.Client, a.prefix, queue, id)
}
