package pull

import (
	"context"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// MaxGroups is the number of groups of a queue beyond which a receive creates none: each group keeps every message of
// the queue until it has acknowledged it.
const MaxGroups = 100

// makeGroup creates the group of a request in one partition, and in all others if partition 0 does not have it: a group
// that only some partitions have never gets what is acknowledged in the others meanwhile. A group that exists in
// partition 0 belongs to the queue, however many there are. Several Pullers at the same moment may each create one
// beyond MaxGroups.
func (p *Puller) makeGroup(ctx context.Context, r *Request, l *line) error {
	defer p.making.Lock(l.source.queue)() // concurrent receives would all find room for one more
	if info, err := p.groupsOf(ctx, l.keys.Stream); err == nil {
		if _, made := info.Group(r.Group); made { // by another receive meanwhile
			return nil
		}
	}
	info, err := p.groupsOf(ctx, lua.NewKeys(p.cfg.Prefix, l.source.queue).Stream)
	if _, known := info.Group(r.Group); err == nil && !known {
		if n := len(info.Groups); n >= MaxGroups {
			return lua.Invalid("group", r.Group, "must be there: the queue has %d groups, and a receive makes none beyond %d", n,
				MaxGroups)
		}
		limited, cancel := context.WithTimeout(ctx, lookWait)
		_, err := stream.EnsureGroup(limited, p.cfg.Client, p.cfg.Prefix, l.source.queue, r.Group)
		cancel()
		if err == nil {
			return nil
		}
	}
	// If partition 0, or another one, cannot be reached, its master is away: this one goes on.
	_, err = lua.EnsureGroup(ctx, p.cfg.Client, l.keys, r.Group)
	return err
}

// groupsOf reads the groups of a stream. It gives up soon: the time of the receive is needed for the partition itself.
func (p *Puller) groupsOf(ctx context.Context, stream string) (view.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	return view.ReadStream(ctx, p.cfg.Client, stream)
}
