package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds what operators look at single messages with.

// What Find takes and returns.
type (
	Finding  = inspect.Finding
	Sighting = inspect.Sighting
	Moment   = inspect.Moment
	Window   = inspect.Window
)

// What happened at a Moment.
const (
	MomentMade      = inspect.MomentMade      // by the ID, a ULID as the Go client makes them: scheduled, by the clock of the producer
	MomentDue       = inspect.MomentDue       // or will be
	MomentReady     = inspect.MomentReady     // drained: added to the stream
	MomentDelivered = inspect.MomentDelivered // to a consumer, or last extended by it
	MomentDead      = inspect.MomentDead
	MomentExpires   = inspect.MomentExpires
)

// FindOptions change what Find does. The zero value is fine.
type FindOptions struct {
	Queues   []string                  // where to look; none = all queues of the prefix
	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called now and then, one at a time; total grows
}

// Find returns every place where Redis holds a message, in whatever queue of the prefix, and what is known of its history. ErrNotFound:
// there is none; the Finding says where was looked. It opens connections of its own for as long as it looks.
func (a *Admin) Find(ctx context.Context, id string, o FindOptions) (Finding, error) {
	return inspect.Find(ctx, a.redis.Client, a.prefix, id, inspect.FindOptions{
		Queues: o.Queues, Connect: a.redis.Connect(), Seen: o.Seen, Progress: o.Progress,
	})
}

// Place is one place where Redis holds a message.
type Place = inspect.Place

// Locate returns every place where one queue holds a message: scheduled, ready, pending and with whom, retrying, dead. ErrNotFound when
// there is none: acknowledged by every group, cancelled or purged, or never scheduled. A scheduled message is found at once; for the
// rest the queue is walked in bounded steps. Find says more, of all queues, and sooner.
func (a *Admin) Locate(ctx context.Context, queue, id string) ([]Place, error) {
	return inspect.Locate(ctx, a.redis.Client, a.prefix, queue, id)
}

// What Peek and Members return.
type (
	Peeked = inspect.Peeked
	Due    = inspect.Due
	Member = inspect.Consumer
)

// Peek returns the n members of a queue's schedule that are due first, of all partitions together, and how many there are; with payloads
// if they are asked for.
func (a *Admin) Peek(ctx context.Context, queue string, n int, payloads bool) (Peeked, error) {
	return inspect.Peek(ctx, a.redis.Client, a.prefix, queue, n, payloads)
}

// Consumers lists the consumers of a queue's groups, or of one group, by group and name. ErrNoGroup.
func (a *Admin) Consumers(ctx context.Context, queue, group string) ([]Member, error) {
	return inspect.Consumers(ctx, a.redis.Client, a.prefix, queue, group)
}

// PendingCount says how many entries a group holds, or with a consumer, how many that one holds. ErrNoGroup.
func (a *Admin) PendingCount(ctx context.Context, queue, group, consumer string) (int64, error) {
	return inspect.PendingCount(ctx, a.redis.Client, a.prefix, queue, group, consumer)
}

// Pause pauses a queue: what is scheduled does not become ready, while what is ready is delivered. With held false it takes that back.
// changed is false when it was so already.
func (a *Admin) Pause(ctx context.Context, queue string, held bool) (changed bool, err error) {
	return stream.Pause(ctx, a.redis.Client, a.prefix, queue, held)
}

// Remembered says until when the ID of a message is refused because a message had it before (Dedup); zero when it is not. It does not say
// whether that one is finished: Find does.
func (a *Admin) Remembered(ctx context.Context, queue, id string) (until time.Time, err error) {
	return inspect.Remembered(ctx, a.redis.Client, a.prefix, queue, id)
}
