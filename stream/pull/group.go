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

// makeGroup creates the group of a request in one partition. If partition 0 does not have the group, makeGroup creates
// it in all partitions: a group that is missing in some never gets messages that other groups acknowledge there
// meanwhile. If partition 0 has the group, it is a group of the queue, and MaxGroups does not apply. Several Pullers
// may each create one group beyond MaxGroups at the same moment.
func (p *Puller) makeGroup(ctx context.Context, r *Request, l *line) error {
	defer p.making.Lock(l.source.queue)() // else each of several concurrent receives would find room for its group
	if info, err := p.groupsOf(ctx, l.keys.Stream); err == nil {
		if _, made := info.Group(r.Group); made { // another receive created it meanwhile
			return nil
		}
	}
	info, err := p.groupsOf(ctx, lua.NewKeys(p.cfg.Prefix, l.source.queue).Stream)
	if _, known := info.Group(r.Group); err == nil && !known {
		if n := len(info.Groups); n >= MaxGroups {
			return lua.Invalid("group", r.Group, "must exist: the queue has %d groups, and a receive creates none beyond %d", n,
				MaxGroups)
		}
		limited, cancel := context.WithTimeout(ctx, lookWait)
		_, err := stream.EnsureGroup(limited, p.cfg.Client, p.cfg.Prefix, l.source.queue, r.Group)
		cancel()
		if err == nil {
			return nil
		}
	}
	// A partition that cannot be reached, partition 0 or another one, does not keep this partition from its group.
	_, err = lua.EnsureGroup(ctx, p.cfg.Client, l.keys, r.Group)
	return err
}

// groupsOf reads the groups of a stream. Its time limit is short, because the receive needs its time for the partition.
func (p *Puller) groupsOf(ctx context.Context, stream string) (view.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	return view.ReadStream(ctx, p.cfg.Client, stream)
}
