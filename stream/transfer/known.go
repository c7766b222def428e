package transfer

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file holds an import's memory of IDs, for the transfer of a queue in use. In such a queue, a message that was
// scheduled when it was exported may be a dead letter at the next export, and is still the same message.

// movedMember returns the member of the sorted set seen under which an import remembers an ID. It differs from the
// members of messages and dead letters.
func (im *Import) movedMember(id string) string {
	return lua.Separator + "moved" + lua.Separator + im.source + "/" + id
}

// Remember stores IDs for the window, so that Known reports them, whatever kind of record was imported and whatever
// happens to it later. It takes one round trip and O(log n) for each ID. It may be repeated.
func (im *Import) Remember(ctx context.Context, ids []string) error {
	now, err := view.ServerTimeOf(ctx, im.c, im.keys(0).Seen)
	if err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	ends := now.Add(im.window).UnixMilli()
	names := make([]lua.Remembered, len(ids))
	for i, id := range ids {
		names[i] = lua.Remembered{Keys: im.keys(im.counts.Of(id)), Name: im.movedMember(id), Ends: ends}
	}
	if err := lua.Remember(call, im.c, names); err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	return nil
}

// Known reports for each ID whether an import from this source has remembered the ID within the window. It looks in the
// partition of the ID by each count that the queue ever had. It takes one round trip, and O(1) for each ID and count.
func (im *Import) Known(ctx context.Context, ids []string) ([]bool, error) {
	now, err := view.ServerTimeOf(ctx, im.c, im.keys(0).Seen)
	if err != nil {
		return nil, fmt.Errorf("import into %s: %w", im.queue, err)
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	var cmds rueidis.Commands
	var indexes []int // for each command, the index in ids
	for i, id := range ids {
		for _, count := range im.counts {
			seen := im.keys(lua.Counts{count}.Of(id)).Seen
			cmds = append(cmds, im.c.B().Zscore().Key(seen).Member(im.movedMember(id)).Build())
			indexes = append(indexes, i)
		}
	}
	known := make([]bool, len(ids))
	for n, reply := range im.c.DoMulti(call, cmds...) {
		ends, err := reply.AsFloat64()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("import into %s: %w", im.queue, lua.Classify("ZSCORE", err))
		}
		if ends > float64(now.UnixMilli()) {
			known[indexes[n]] = true
		}
	}
	return known, nil
}
