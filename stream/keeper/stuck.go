package keeper

import (
	"context"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// maxStuck is the number of stuck entries of a group that are remembered. Further entries are not reported.
const maxStuck = 10_000

// reportStuck reports the stuck entries of a group to the observer, each once, although a pass finds the same entries
// again after every visibility timeout. Stuck entries are pending for the reclaimer's own consumer. found is the number
// that the pass found; if it is 0, or if there is no observer, reportStuck sends no command.
func (r *Reclaimer) reportStuck(ctx context.Context, group string, found int) error {
	if r.cfg.Observer == nil || found == 0 {
		return nil
	}
	reported, current := r.stuckEntries[group], map[view.EntryID]bool{}
	added := 0
	heldByReclaimer := view.PendingRange{Count: 1000, Consumer: lua.ReclaimConsumer}
	for p, err := range view.WalkPending(ctx, r.cfg.Client, r.keys.Stream, group, heldByReclaimer) {
		if err != nil {
			return err
		}
		if len(current) == maxStuck {
			break
		}
		current[p.ID] = true
		if !reported[p.ID] {
			added++
		}
	}
	r.stuckEntries[group] = current
	if added > 0 {
		queue, _, _ := lua.SplitPartition(r.cfg.Queue)
		r.cfg.Observer.Series(observe.Bridge, queue, group).Add(observe.Stuck, added)
	}
	return nil
}
