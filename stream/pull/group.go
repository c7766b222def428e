package pull

import (
	"context"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// MaxGroups is the number of groups of a queue beyond which a receive creates no group, because a message is kept until
// every group has acknowledged it.
const MaxGroups = 100

// makeGroup creates the group of a request in one partition. If partition 0 does not have the group, makeGroup creates
// the group in all partitions, because a group never gets messages that other groups acknowledge in a partition before
// the group exists there. If partition 0 has the group, it is a group of the queue, and MaxGroups does not apply.
// Several Pullers may each create one group beyond MaxGroups at the same moment.
func (p *Puller) makeGroup(ctx context.Context, r *Request, l *line) error {
	// Without the lock, each of several concurrent receives would find room for its group.
	defer p.making.Lock(l.source.queue)()
	if info, err := p.groupsOf(ctx, l.keys.Stream); err == nil {
		if _, exists := info.Group(r.Group); exists { // another receive created the group meanwhile
			return nil
		}
	}
	info, err := p.groupsOf(ctx, lua.NewKeys(p.cfg.Prefix, l.source.queue).Stream)
	if _, known := info.Group(r.Group); err == nil && !known {
		if n := len(info.Groups); n >= MaxGroups {
			return lua.Invalid("group", r.Group,
				"must exist: the queue has %d groups, and a receive creates none beyond %d", n, MaxGroups)
		}
		limited, cancel := context.WithTimeout(ctx, shortTimeout)
		_, err := stream.EnsureGroup(limited, p.cfg.Client, p.cfg.Prefix, l.source.queue, r.Group)
		cancel()
		if err == nil {
			return nil
		}
	}
	// If another partition cannot be reached, create the group at least in this partition.
	_, err = lua.EnsureGroup(ctx, p.cfg.Client, l.keys, r.Group)
	return err
}

// groupsOf reads the groups of a stream. Its time limit is short, because the receive needs its time for the partition.
func (p *Puller) groupsOf(ctx context.Context, stream string) (view.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	return view.ReadStream(ctx, p.cfg.Client, stream)
}
