package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/keeper"
)

// This file holds what repairs what bridges keep in order, for when they cannot.

// OrphanAge is how long a body must have been without a member of the schedule before it is deleted.
const OrphanAge = keeper.OrphanAge

// DeleteOrphans deletes bodies of one partition, fields of its payload and of its meta, that are without a member of the schedule now and
// whenever it looks until age from now. It says how many. Wait is called between the looks.
func (a *Admin) DeleteOrphans(ctx context.Context, keys lua.Keys, payload, meta []string, age time.Duration, wait func(time.Duration) error) (int, error) {
	return keeper.DeleteOrphans(ctx, a.redis.Client, keys, payload, meta, age, wait)
}

// CheckSettings says what is wrong with the fields of a queue's policy, or of the defaults, as they are in Redis.
func CheckSettings(fields map[string]string, defaults bool) (bad map[string]error, unknown []string) {
	return stream.CheckSettings(fields, defaults)
}

// Gather moves the messages of a partition that the queue does not have to where they belong, as bridges do. An error names how many stay,
// because others with the same ID are there; when the queue has the partition it does nothing.
func (a *Admin) Gather(ctx context.Context, queue string, partition int) error {
	return scheduler.Gather(ctx, a.redis.Client, a.prefix, queue, partition)
}

// GrownTo returns how many partitions a queue has, also when the registry has lost the count: as many as a growth has prepared, by their
// groups, settings and what they hold. It is what bridges make known again.
func (a *Admin) GrownTo(ctx context.Context, queue string) (int, error) {
	return scheduler.GrownTo(ctx, a.redis.Client, a.prefix, queue)
}

// Trim frees, in one partition of a queue (its name is that of lua.PartitionName), what no group needs, and ended dedup windows.
func (a *Admin) Trim(ctx context.Context, name string) (freed, windows int, err error) {
	t := keeper.NewTrimmer(a.redis.Client, a.prefix, name)
	for {
		done, err := t.Trim(ctx)
		freed, windows = freed+done.Freed, windows+done.Windows
		if err != nil || !done.More {
			return freed, windows, err
		}
	}
}
