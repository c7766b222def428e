package keeper

import (
	"context"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// mostStuck is the number of stuck entries of a group that are distinguished; further ones are not reported.
const mostStuck = 10_000

// tellStuck reports stuck entries of a group to the observer, except those reported before: each is retried after every
// visibility timeout. Stuck entries are those that the reclaimer's own consumer holds. It sends a command only with an
// observer, and only if a pass found some.
func (r *Reclaimer) tellStuck(ctx context.Context, group string, found int) error {
	if r.cfg.Observer == nil || found == 0 {
		return nil
	}
	known, now, fresh := r.told[group], map[view.EntryID]bool{}, 0
	held := view.PendingRange{Count: 1000, Consumer: lua.ReclaimConsumer}
	for p, err := range view.WalkPending(ctx, r.cfg.Client, r.keys.Stream, group, held) {
		if err != nil {
			return err
		}
		if len(now) == mostStuck {
			break
		}
		now[p.ID] = true
		if !known[p.ID] {
			fresh++
		}
	}
	r.told[group] = now
	if fresh > 0 {
		queue, _, _ := lua.SplitPartition(r.cfg.Queue)
		r.cfg.Observer.Series(observe.Bridge, queue, group).Add(observe.Stuck, fresh)
	}
	return nil
}
