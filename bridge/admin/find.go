package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds the calls that find messages and list entries.

// Finding is the result of Find, with the places and the history of a message: see [inspect.Finding].
type Finding = inspect.Finding

// Sighting is a Place of a message, with its queue: see [inspect.Sighting].
type Sighting = inspect.Sighting

// Moment is a past or coming event of a message: see [inspect.Moment].
type Moment = inspect.Moment

// Window is the time until which a queue refuses the ID of an earlier message: see [inspect.Window].
type Window = inspect.Window

// Events of a Moment.
const (
	MomentMade      = inspect.MomentMade      // scheduled, by the producer's clock; known only if the ID is a ULID
	MomentDue       = inspect.MomentDue       // its due time, past or coming
	MomentReady     = inspect.MomentReady     // drained: added to the stream
	MomentDelivered = inspect.MomentDelivered // to a consumer; may be inexact: see PendingEntry.HeldSince
	MomentDead      = inspect.MomentDead      // dead-lettered for a group
	MomentExpires   = inspect.MomentExpires   // from then on it is dead-lettered instead of delivered
)

// FindOptions controls Find. The zero value searches all queues.
type FindOptions struct {
	Queues   []string                  // where to look; none = all queues of the prefix
	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called at intervals, one at a time; total may grow
}

// Find returns every place where Redis holds a message, in all queues of the prefix, and its known history.
// ErrNotFound: there is none; the Finding tells what was searched. Find opens connections of its own and closes them
// at its end.
func (a *Admin) Find(ctx context.Context, id string, o FindOptions) (Finding, error) {
	return inspect.Find(ctx, a.redis.Client, a.prefix, id, inspect.FindOptions{
		Queues: o.Queues, Connect: a.redis.Connect(), Seen: o.Seen, Progress: o.Progress,
	})
}

// State is the state of a message at a Place: see [inspect.State].
type State = inspect.State

// States of a Place.
const (
	StateScheduled = inspect.StateScheduled // for its first delivery, or redriven for all groups
	StateRetrying  = inspect.StateRetrying  // scheduled again for one group
	StateReady     = inspect.StateReady     // in the stream, and not yet read by the groups that the Place names
	StatePending   = inspect.StatePending   // held by a consumer
	StateDead      = inspect.StateDead      // a dead letter of a group
)

// Place is one place where Redis holds a message: see [inspect.Place].
type Place = inspect.Place

// Locate returns every place where one queue holds a message: scheduled, ready, pending (with its consumer),
// retrying, dead. ErrNotFound if there is none: it was acknowledged by every group, cancelled or purged, or never
// scheduled. A scheduled message is looked up; for the other states the queue is scanned in bounded steps. Find tells
// more, for all queues, and is faster.
func (a *Admin) Locate(ctx context.Context, queue, id string) ([]Place, error) {
	return inspect.Locate(ctx, a.redis.Client, a.prefix, queue, id)
}

// Peeked is the beginning of a queue's schedule, with the number of its members: see [inspect.Peeked].
type Peeked = inspect.Peeked

// Due is one member of a schedule: see [inspect.Due].
type Due = inspect.Due

// Consumer is a consumer of a group, over all partitions of a queue: see [inspect.Consumer].
type Consumer = inspect.Consumer

// Peek returns the n members of a queue's schedule that are due first, over all partitions, in the order of their due
// times. It also returns the number of all members. Payloads are included only with payloads. O(n log m) for a
// schedule of m.
func (a *Admin) Peek(ctx context.Context, queue string, n int, payloads bool) (Peeked, error) {
	return inspect.Peek(ctx, a.redis.Client, a.prefix, queue, n, payloads)
}

// Consumers lists the consumers of a queue's groups, or of one group if group is not "", sorted by group and name.
// ErrNoGroup.
func (a *Admin) Consumers(ctx context.Context, queue, group string) ([]Consumer, error) {
	return inspect.Consumers(ctx, a.redis.Client, a.prefix, queue, group)
}

// PendingCount returns how many entries the consumers of a group hold, or how many one consumer holds. ErrNoGroup.
func (a *Admin) PendingCount(ctx context.Context, queue, group, consumer string) (int64, error) {
	return inspect.PendingCount(ctx, a.redis.Client, a.prefix, queue, group, consumer)
}

// Pause pauses a queue: scheduled messages do not become ready; ready ones are still delivered. With held false it
// resumes the queue, also after PauseWorkers; no message is lost. changed is false if the queue was already in that
// state.
func (a *Admin) Pause(ctx context.Context, queue string, held bool) (changed bool, err error) {
	return stream.Pause(ctx, a.redis.Client, a.prefix, queue, held)
}

// PauseWorkers is Pause, and also stops the workers of all groups from taking new messages, within about two seconds.
// They finish the messages that they hold. Pause with held false resumes both.
func (a *Admin) PauseWorkers(ctx context.Context, queue string) (changed bool, err error) {
	return stream.PauseWorkers(ctx, a.redis.Client, a.prefix, queue)
}

// Remembered returns until when an ID is refused because of an earlier message's dedup window (Dedup); zero if it is
// not refused. Find tells whether that message is done.
func (a *Admin) Remembered(ctx context.Context, queue, id string) (until time.Time, err error) {
	return inspect.Remembered(ctx, a.redis.Client, a.prefix, queue, id)
}
