package stream

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// heal creates the worker's group again if it was lost, and logs that.
func (p *partitionWorker) heal(ctx context.Context) error {
	created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
	if err != nil {
		return err
	}
	if created {
		p.start = view.EntryID{} // it reads from the beginning, and no consumer holds entries
		p.log.Warn("consumer group was lost: created again at 0", slog.String("consumer", p.cfg.Consumer))
	}
	p.registerAgain() // the loss may also have removed the registration
	return nil
}

const (
	countPatience = time.Second // wait of a worker with a new group for the registry
	findPatience  = time.Second // time limit of one look for further partitions
	findBatch     = 16          // partitions in one look
)

// createElsewhere creates the worker's group in the other partitions, after the worker has created it in partition 0
// and while the registry cannot be read. Otherwise the other groups would acknowledge messages of these partitions, and
// the messages would be freed before this group got them. The registry would tell the partitions. Without it,
// createElsewhere stops at the first partition without a group, because a growth gives each new partition groups before
// it publishes the count. A partition whose server cannot be reached gets the group as soon as the registry has been
// read.
func (w *Worker) createElsewhere(ctx context.Context) error {
	wait := time.NewTimer(countPatience)
	defer wait.Stop()
	select {
	case <-w.counted: // each partition has a partitionWorker, which creates the group
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
	}
	names := lua.Counts{lua.MaxPartitions}.Names(w.cfg.Queue)
	for from := 1; from < len(names); from += findBatch {
		there, end := w.findGroups(ctx, names[from:min(from+findBatch, len(names))])
		err := view.EachPartition(there, func(_ int, name string) error {
			_, err := ensureGroup(ctx, w.cfg.Client, w.cfg.Prefix, name, w.cfg.Group)
			return err
		})
		if err != nil || end {
			return err
		}
	}
	return nil
}

// findGroups returns the given partitions that have groups, up to the first one without a group. end is true if it
// found such a partition. Partitions whose servers cannot be reached are left out.
func (w *Worker) findGroups(ctx context.Context, names []string) (there []string, end bool) {
	ctx, cancel := context.WithTimeout(ctx, findPatience)
	defer cancel()
	groups, errs := make([][]view.GroupInfo, len(names)), make([]error, len(names))
	var looks sync.WaitGroup
	for i, name := range names {
		question := view.GroupsOf(w.cfg.Client, lua.NewKeys(w.cfg.Prefix, name).Stream, &groups[i])
		looks.Go(func() { errs[i] = view.Ask(ctx, w.cfg.Client, question) })
	}
	looks.Wait()
	for i, name := range names {
		switch {
		case len(groups[i]) > 0:
			there = append(there, name)
		case errs[i] == nil:
			return there, true
		}
	}
	return there, false
}
