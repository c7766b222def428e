package stream

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Pause pauses a queue, in all partitions: scheduled messages do not become ready, but ready messages are delivered.
// With paused false it resumes the queue, also after PauseWorkers, and wakes the bridges. If every partition is in the
// wanted state already, changed is false and nothing is written. It works on a full server; repeat it after an error.
// It takes one round trip per partition, and those of WritePolicy if there is something to change.
func Pause(
	ctx context.Context, c rueidis.Client, prefix, queue, by string, paused bool,
) (changed bool, err error) {
	if paused {
		return pause(ctx, c, prefix, queue, by, policy.Update{Held: &paused}, func(p pauses) bool { return p.queue })
	}
	resume := policy.Update{Clear: []string{policy.SettingHeld, policy.SettingHeldWorkers}}
	return pause(ctx, c, prefix, queue, by, resume, func(p pauses) bool { return p == pauses{} })
}

// PauseWorkers pauses a queue like Pause. In addition, the workers of all groups take no new messages, within a second
// or two; they finish the messages that they hold.
func PauseWorkers(ctx context.Context, c rueidis.Client, prefix, queue, by string) (changed bool, err error) {
	yes := true
	update := policy.Update{Held: &yes, HeldWorkers: &yes}
	return pause(ctx, c, prefix, queue, by, update, func(p pauses) bool { return p.queue && p.workers })
}

// pauses tells which parts of a partition are paused.
type pauses struct {
	queue   bool // setting held: no message becomes ready
	workers bool // setting held_workers: workers take no new messages
}

// pause writes an update unless all partitions are in the wanted state.
func pause(
	ctx context.Context, c rueidis.Client, prefix, queue, by string, u policy.Update, isWanted func(pauses) bool,
) (changed bool, err error) {
	counts, err := Partitions(ctx, c, prefix, queue)
	if err != nil {
		return false, err
	}
	var unwanted atomic.Int64 // partitions in another state
	err = view.EachPartition(counts.Names(queue), func(_ int, name string) error {
		state, err := readPauses(ctx, c, lua.NewKeys(prefix, name).Policy)
		if !isWanted(state) {
			unwanted.Add(1)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("hold %s: %w", queue, err)
	}
	if unwanted.Load() == 0 {
		return false, nil
	}
	return true, WritePolicyOver(ctx, c, lua.NewLevels(c, prefix), prefix, queue, PolicyChange{Update: u, By: by})
}

// readPauses reads the two settings from the policy of a partition.
func readPauses(ctx context.Context, c rueidis.Client, key string) (pauses, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	cmd := c.B().Hmget().Key(key).Field(policy.SettingHeld, policy.SettingHeldWorkers).Build()
	values, err := c.Do(ctx, cmd).ToArray()
	if err != nil {
		return pauses{}, lua.Classify("HMGET "+key, err)
	}
	held, _ := values[0].ToString() // "" if the setting is missing
	heldWorkers, _ := values[1].ToString()
	return pauses{queue: held == "1", workers: heldWorkers == "1"}, nil
}
