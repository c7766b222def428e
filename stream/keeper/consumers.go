package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const dropBatch = 500 // consumers deleted per call

// DropIdleConsumers deletes consumers that hold no entries and have not read for longer than idle, in all groups of a
// partition. It returns their number. A consumer that comes back is created again by its next read. It takes one round
// trip per group, and one per 500 deleted consumers.
func DropIdleConsumers(ctx context.Context, c rueidis.Client, prefix, queue string, idle time.Duration) (int, error) {
	keys := lua.NewKeys(prefix, queue)
	stream, err := view.ReadStream(ctx, c, keys.Stream)
	if err != nil {
		return 0, fmt.Errorf("drop consumers of %s: %w", queue, err)
	}
	dropped := 0
	for _, g := range stream.Groups {
		n, err := dropIdle(ctx, c, keys, g.Name, idle)
		dropped += n
		if err != nil && !errors.Is(err, lua.ErrNoGroup) {
			return dropped, fmt.Errorf("drop consumers of %s/%s: %w", queue, g.Name, err)
		}
	}
	return dropped, nil
}

func dropIdle(
	ctx context.Context, c rueidis.Client, keys lua.Keys, group string, idle time.Duration,
) (dropped int, err error) {
	consumers, err := view.ReadConsumers(ctx, c, keys.Stream, group)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, one := range consumers {
		// The reclaimer's consumer is deleted however short its idle time is: it holds entries only inside a script.
		if one.Pending == 0 && (time.Duration(one.Idle) > idle || one.Name == lua.ReclaimConsumer) {
			names = append(names, one.Name)
		}
	}
	for batch := range slices.Chunk(names, dropBatch) {
		n, err := lua.DropConsumers(ctx, c, keys, group, batch)
		dropped += n
		if err != nil {
			return dropped, err
		}
	}
	return dropped, nil
}
