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
	countPatience = time.Second // how long a new group of partition 0 waits for the registry
	findPatience  = time.Second // time limit of a look at partitions that may exist
	findBatch     = 16          // partitions in such a look
)

// createElsewhere creates a group that is new in partition 0 in the other partitions too, while the registry cannot be
// read. Else, until the registry is back, the other groups would free messages of those partitions that this group
// never got. A growth gives each new partition groups before it publishes the count, so the partitions end at the first
// one without a group. Partitions that cannot be reached get the group when the registry has been read.
func (w *Worker) createElsewhere(ctx context.Context) error {
	wait := time.NewTimer(countPatience)
	defer wait.Stop()
	select {
	case <-w.counted: // each partition has a worker, which creates the group
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

// findGroups returns those of some partitions that have groups. end means that one of them has none; those behind it
// are left out.
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
