package transfer

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file holds an import's memory of IDs, for the transfer of a queue in use: there, a message that was scheduled
// may be a dead letter at the next look, and is still the same.

// moved returns the member of the sorted set seen under which an import remembers an ID. It differs from those of
// messages and dead letters.
func (im *Import) moved(id string) string {
	return lua.Separator + "moved" + lua.Separator + im.source + "/" + id
}

// Remember stores IDs for the window, so that Known reports them whatever was imported under them and whatever becomes
// of it. One round trip, O(log n) for each; may be repeated.
func (im *Import) Remember(ctx context.Context, ids []string) error {
	now, err := view.ServerTimeOf(ctx, im.c, im.keys(0).Seen)
	if err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	var cmds rueidis.Commands
	for _, id := range ids {
		cmds = append(cmds, im.c.B().Zadd().Key(im.keys(im.counts.Of(id)).Seen).ScoreMember().
			ScoreMember(float64(now.Add(im.window).UnixMilli()), im.moved(id)).Build())
	}
	for _, answer := range im.c.DoMulti(call, cmds...) {
		if err := answer.Error(); err != nil {
			return fmt.Errorf("import into %s: %w", im.queue, lua.Classify("ZADD", err))
		}
	}
	return nil
}

// Known reports for each ID whether an import from this source has remembered it within its window. It looks in the
// partition of the ID by each count that the queue ever had. One round trip, O(1) for each ID and count.
func (im *Import) Known(ctx context.Context, ids []string) ([]bool, error) {
	now, err := view.ServerTimeOf(ctx, im.c, im.keys(0).Seen)
	if err != nil {
		return nil, fmt.Errorf("import into %s: %w", im.queue, err)
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	var cmds rueidis.Commands
	var asked []int // index in ids, by command
	for i, id := range ids {
		for _, count := range im.counts {
			seen := im.keys(lua.Counts{count}.Of(id)).Seen
			cmds, asked = append(cmds, im.c.B().Zscore().Key(seen).Member(im.moved(id)).Build()), append(asked, i)
		}
	}
	known := make([]bool, len(ids))
	for i, answer := range im.c.DoMulti(call, cmds...) {
		until, err := answer.AsFloat64()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, fmt.Errorf("import into %s: %w", im.queue, lua.Classify("ZSCORE", err))
		}
		known[asked[i]] = known[asked[i]] || err == nil && until > float64(now.UnixMilli())
	}
	return known, nil
}
