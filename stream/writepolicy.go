package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// WritePolicy changes settings of a queue, or of one of its groups if group is not "", and wakes the bridges. Held is a
// setting of a whole queue. If retry_max is below the retry_min of another level, readers of the policy raise it to
// retry_min. WritePolicy works on a full server, and may be repeated.
//
// A history that is switched off is deleted.
//
// Partition 0 is written first, and its policy is then copied to the other partitions. After an error some partitions
// may have the old policy: repeat the call. It takes one round trip, one to the registry, and about two per further
// partition.
//
// A rate or a ready limit is refused with lua.ErrOldBridge while a live bridge does not serve it.
func WritePolicy(ctx context.Context, c rueidis.Client, prefix, queue, group string, u policy.Update) error {
	return WritePolicyOver(ctx, c, lua.NewLevels(c, prefix), prefix, queue, PolicyChange{Group: group, Update: u})
}

// PolicyChange is a change of settings.
type PolicyChange struct {
	Group  string // "" = the whole queue
	Update policy.Update
	Before map[string]string // stored values that the caller has seen, by setting; "" stands for no value
	By     string            // who makes the change, for its record; "" = unknown
}

// ErrPolicyChanged: another client changed the settings in between. Nothing was written.
var ErrPolicyChanged = errors.New("the settings were changed by somebody else")

// WritePolicyOver is WritePolicy for a caller who has read the settings, and who gives the reader of the live bridges'
// protocol levels; if levels is nil, the levels are not checked. It returns ErrPolicyChanged if a setting in
// change.Before has another stored value in the queue or group. It does not compare other settings. It accepts a
// setting that already has its new value, so the call may be repeated.
func WritePolicyOver(ctx context.Context, c rueidis.Client, levels *lua.Levels, prefix, queue string,
	change PolicyChange) error {
	u := change.Update
	var expected []lua.FieldValue
	for setting, value := range change.Before {
		expected = append(expected, lua.FieldValue{Field: policy.FieldOf(change.Group, setting), Value: value})
	}
	values, err := u.Fields(change.Group)
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), err); err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	setsRate := u.Rate != nil && u.Rate.Interval() > 0
	setsReadyLimit := u.ReadyLimit != nil && *u.ReadyLimit > 0
	if setsRate || setsReadyLimit {
		if err := levels.Allow(ctx, lua.LevelFlow, "release rates and ready limits"); err != nil {
			return fmt.Errorf("write policy of %s: %w", queue, err)
		}
	}
	keys := lua.NewKeys(prefix, queue).As(change.By)
	done, err := lua.SetPolicy(ctx, c, keys, expected, values)
	if err == nil && !done {
		err = ErrPolicyChanged
	}
	if err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	// The partition counts are read after the write. So either this call sees the new partitions of a growth, or the
	// growth sees the new policy.
	parts := &partitionSync{c: c, prefix: prefix, queue: queue}
	err = parts.copyPolicy(ctx)
	endsHistory := u.History != nil && *u.History == 0 || slices.Contains(u.Clear, policy.SettingHistory)
	if err == nil && endsHistory {
		err = parts.dropHistories(ctx)
	}
	if err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	return nil
}
