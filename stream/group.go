package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// EnsureGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless the group
// exists. The group gets every ready message that is still in the streams. After an error the group may exist in some
// partitions: repeat the call. It takes one round trip per partition, and one to the registry. It works on a full
// server.
func EnsureGroup(ctx context.Context, c rueidis.Client, prefix, queue, group string) (created bool, err error) {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckGroup(group)); err != nil {
		return false, err
	}
	var anywhere atomic.Bool
	create := func(_ int, name string) error {
		created, err := ensureGroup(ctx, c, prefix, name, group)
		if created {
			anywhere.Store(true)
		}
		return err
	}
	// Read the registry after creating the group: a growth that is published later finds the group and copies it.
	if err = create(0, queue); err == nil {
		var counts lua.Counts
		if counts, err = view.ReadCounts(ctx, c, prefix, queue); err == nil && counts.Latest() > 1 {
			err = view.EachPartition(counts.Names(queue)[1:], create)
		}
	}
	if err != nil {
		return false, fmt.Errorf("create group %s/%s: %w", queue, group, err)
	}
	return anywhere.Load(), nil
}

func ensureGroup(ctx context.Context, c rueidis.Client, prefix, name, group string) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return lua.EnsureGroup(ctx, c, lua.NewKeys(prefix, name), group)
}

// recreateGroup creates the worker's group again if it was lost, and logs that.
func (p *partitionWorker) recreateGroup(ctx context.Context) error {
	created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
	if err != nil {
		return err
	}
	p.joinedAt = view.EntryID{} // the new group reads from the beginning
	if created {
		p.log.Warn("consumer group was lost: created again at 0", slog.String("consumer", p.cfg.Consumer))
	}
	p.queue.registerAgain() // the loss may also have removed the registration
	loop.Poke(p.refresh)
	return nil
}

const (
	countPatience = time.Second // how long a worker with a new group waits for a read of the registry
	findPatience  = time.Second // time limit of one search for partitions
	findBatch     = 16          // partitions in one search
)

// createElsewhere creates the worker's group in the other partitions, after the worker has created it in partition 0
// and while the registry cannot be read. Otherwise the other groups would acknowledge messages of these partitions, and
// the messages would be freed before this group got them. The registry would tell the partitions. Without it,
// createElsewhere stops at the first partition without a group, because a growth gives each new partition groups before
// it publishes the count. A partition whose server cannot be reached gets the group as soon as the registry has been
// read.
func (q *queueWorker) createElsewhere(ctx context.Context) error {
	wait := time.NewTimer(countPatience)
	defer wait.Stop()
	select {
	case <-q.registry.read: // each partition has a partitionWorker, which creates the group
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
	}
	names := lua.Counts{lua.MaxPartitions}.Names(q.cfg.Queue)
	for from := 1; from < len(names); from += findBatch {
		withGroups, end := q.findGroups(ctx, names[from:min(from+findBatch, len(names))])
		err := view.EachPartition(withGroups, func(_ int, name string) error {
			_, err := ensureGroup(ctx, q.cfg.Client, q.cfg.Prefix, name, q.cfg.Group)
			return err
		})
		if err != nil || end {
			return err
		}
	}
	return nil
}

// findGroups returns the given partitions that have groups, up to the first partition without a group. end is true if
// it found a partition without a group. It leaves out partitions whose servers cannot be reached.
func (q *queueWorker) findGroups(ctx context.Context, names []string) (withGroups []string, end bool) {
	ctx, cancel := context.WithTimeout(ctx, findPatience)
	defer cancel()
	groups, errs := make([][]view.GroupInfo, len(names)), make([]error, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		question := view.GroupsOf(q.cfg.Client, lua.NewKeys(q.cfg.Prefix, name).Stream, &groups[i])
		asking.Go(func() { errs[i] = view.Ask(ctx, q.cfg.Client, question) })
	}
	asking.Wait()
	for i, name := range names {
		switch {
		case len(groups[i]) > 0:
			withGroups = append(withGroups, name)
		case errs[i] == nil:
			return withGroups, true
		}
	}
	return withGroups, false
}
