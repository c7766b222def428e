package pull

import (
	"context"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// MaxGroups is how many groups a queue may have before a receive makes no further one: each keeps every message of the queue
// until it has acknowledged it.
const MaxGroups = 100

// makeGroup creates the group of a request in one partition, and in partition 0 before. A group that partition 0 has is one of
// the queue, however many there are. Several Pullers at the same moment may each make one beyond MaxGroups.
func (p *Puller) makeGroup(ctx context.Context, r *Request, l *line) error {
	p.making.Lock() // receives at the same moment would all find room for one more
	defer p.making.Unlock()
	first := lua.NewKeys(p.cfg.Prefix, l.source.queue)
	info, err := view.ReadStream(ctx, p.cfg.Client, first.Stream)
	if _, known := info.Group(r.Group); err == nil && !known {
		if n := len(info.Groups); n >= MaxGroups {
			return lua.Invalid("group", r.Group, "must be there: the queue has %d groups, and a receive makes none beyond %d", n,
				MaxGroups)
		}
		if _, err := lua.EnsureGroup(ctx, p.cfg.Client, first, r.Group); err != nil || l.partition == 0 {
			return err
		}
	}
	// Where partition 0 cannot be read, its master is away: others go on.
	_, err = lua.EnsureGroup(ctx, p.cfg.Client, l.keys, r.Group)
	return err
}
