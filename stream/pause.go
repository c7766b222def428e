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

// Pause pauses a queue, in all partitions: scheduled messages do not become ready; ready ones are delivered. With held
// false it resumes the queue, also after PauseWorkers, and wakes the bridges. If every partition is in that state
// already, changed is false and nothing is written. Works on a full server; after an error repeat it. Costs one round
// trip per partition, plus the cost of WritePolicy if there is something to change.
func Pause(ctx context.Context, c rueidis.Client, prefix, queue string, held bool) (changed bool, err error) {
	update := PolicyUpdate{Clear: []string{SettingHeld, SettingHeldWorkers}}
	if held {
		update = PolicyUpdate{Held: &held}
	}
	return pause(ctx, c, prefix, queue, update, func(is [2]bool) bool { return is[0] != held || is[1] && !held })
}

// PauseWorkers pauses a queue like Pause. Besides, the workers of all groups take nothing new, within a second or two;
// they finish the messages that they hold.
func PauseWorkers(ctx context.Context, c rueidis.Client, prefix, queue string) (changed bool, err error) {
	yes := true
	update := PolicyUpdate{Held: &yes, HeldWorkers: &yes}
	return pause(ctx, c, prefix, queue, update, func(is [2]bool) bool { return !is[0] || !is[1] })
}

// pause writes an update if other reports that some partition is in another state.
func pause(ctx context.Context, c rueidis.Client, prefix, queue string, u PolicyUpdate, other func([2]bool) bool) (bool, error) {
	counts, err := Partitions(ctx, c, prefix, queue)
	if err != nil {
		return false, err
	}
	var others atomic.Int64
	err = view.EachPartition(counts.Names(queue), func(_ int, name string) error {
		is, err := isPaused(ctx, c, lua.NewKeys(prefix, name).Policy)
		if other(is) {
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
	return true, WritePolicy(ctx, c, prefix, queue, "", u)
}

// isPaused reads the two settings: held, which the drain obeys, and held_workers, which workers obey.
func isPaused(ctx context.Context, c rueidis.Client, policy string) (is [2]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	values, err := c.Do(ctx, c.B().Hmget().Key(policy).Field(SettingHeld, SettingHeldWorkers).Build()).ToArray()
	if err != nil {
		return is, lua.Classify("HMGET "+policy, err)
	}
	for i := range values {
		value, _ := values[i].ToString()
		is[i] = value == "1"
	}
	return is, nil
}
