package bridge

import (
	"context"

	"github.com/duestream/duestream/stream"
)

// This file holds what operators look at single messages with.

// What Find takes and returns.
type (
	Finding  = stream.Finding
	Sighting = stream.Sighting
	Moment   = stream.Moment
	Window   = stream.Window
)

// FindOptions change what Find does. The zero value is fine.
type FindOptions struct {
	Queues   []string                  // where to look; none = all queues of the prefix
	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called now and then, one at a time; total grows
}

// Find returns every place where Redis holds a message, in whatever queue of the prefix, and what is known of its history. ErrNotFound:
// there is none; the Finding says where was looked. It opens connections of its own for as long as it looks.
func Find(ctx context.Context, r *Redis, prefix, id string, o FindOptions) (Finding, error) {
	return stream.Find(ctx, r.Client, withPrefix(prefix), id, stream.FindOptions{
		Queues: o.Queues, Connect: r.connect, Seen: o.Seen, Progress: o.Progress,
	})
}
