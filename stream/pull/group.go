package pull

import (
	"context"
	"sync"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// MaxGroups is the number of groups of a queue beyond which a receive creates none: each group keeps every message of
// the queue until it has acknowledged it.
const MaxGroups = 100

// makeGroup creates the group of a request in one partition, after partition 0. A group that exists in partition 0
// belongs to the queue, however many there are. Several Pullers at the same moment may each create one beyond
// MaxGroups.
func (p *Puller) makeGroup(ctx context.Context, r *Request, l *line) error {
	defer p.making.lock(l.source.queue)() // concurrent receives would all find room for one more
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
	// If partition 0 cannot be read, its master is away: the other partitions go on.
	_, err = lua.EnsureGroup(ctx, p.cfg.Client, l.keys, r.Group)
	return err
}

// queueLocks is one lock per queue: a queue whose server does not answer delays no other.
type queueLocks struct {
	mu    sync.Mutex
	locks map[string]*queueLock
}

type queueLock struct {
	sync.Mutex
	users int // its holder and the waiting goroutines
}

// lock locks a queue, and returns the function that unlocks it.
func (q *queueLocks) lock(queue string) (unlock func()) {
	q.mu.Lock()
	if q.locks == nil {
		q.locks = map[string]*queueLock{}
	}
	l := q.locks[queue]
	if l == nil {
		l = &queueLock{}
		q.locks[queue] = l
	}
	l.users++
	q.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(q.locks, queue)
		}
	}
}
