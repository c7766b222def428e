package stream

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Pause pauses a queue, in all partitions: what is scheduled does not become ready, while what is ready is delivered. With held
// false it takes that back, and wakes the bridges. changed is false when every partition was so already; then nothing is written.
// Passes on a full server; after an error repeat it. Costs one round trip per partition, and what WritePolicy costs when there is
// something to do.
func Pause(ctx context.Context, c rueidis.Client, prefix, queue string, held bool) (changed bool, err error) {
	counts, err := Partitions(ctx, c, prefix, queue)
	if err != nil {
		return false, err
	}
	var others atomic.Int64
	err = view.EachPartition(counts.Names(queue), func(_ int, name string) error {
		is, err := isPaused(ctx, c, lua.NewKeys(prefix, name).Policy)
		if is != held {
			others.Add(1)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("hold %s: %w", queue, err)
	}
	if others.Load() == 0 {
		return false, nil
	}
	update := PolicyUpdate{Clear: []string{SettingHeld}}
	if held {
		update = PolicyUpdate{Held: &held}
	}
	return true, WritePolicy(ctx, c, prefix, queue, "", update)
}

// isPaused reads what the drain reads.
func isPaused(ctx context.Context, c rueidis.Client, policy string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	value, err := c.Do(ctx, c.B().Hget().Key(policy).Field(SettingHeld).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return false, lua.Classify("HGET "+policy, err)
	}
	return value == "1", nil
}
