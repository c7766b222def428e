package admin

import (
	"context"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Names of the settings of a policy, in Redis and in PolicyUpdate.Clear.
const (
	SettingVisibility  = policy.SettingVisibility  // milliseconds
	SettingMaxAttempts = policy.SettingMaxAttempts // deliveries to a group
	SettingRetryMin    = policy.SettingRetryMin    // milliseconds
	SettingRetryMax    = policy.SettingRetryMax    // milliseconds
	SettingRetryDelays = policy.SettingRetryDelays // milliseconds, separated by commas; 0 = none
	SettingRetryFor    = policy.SettingRetryFor    // milliseconds; 0 = no limit
	SettingMaxSnoozes  = policy.SettingMaxSnoozes  // 0 = 1,000
	SettingMaxCrashes  = policy.SettingMaxCrashes  // 0 = a crash is a failed attempt
	SettingHeld        = policy.SettingHeld        // 1 = paused; of a whole queue only
	SettingHeldWorkers = policy.SettingHeldWorkers // 1 = workers take nothing new; of a whole queue only
	SettingRate        = policy.SettingRate        // 500/s, 30/m or 1/h, 0 = no limit; of a whole queue only
	SettingBurst       = policy.SettingBurst       // 0 = as many as in a tenth of a second; of a whole queue only
	SettingFreeRetries = policy.SettingFreeRetries // 1 = retries do not count; of a whole queue only
	SettingReadyLimit  = policy.SettingReadyLimit  // 0 = no limit; of a whole queue only
	SettingHistory     = policy.SettingHistory     // changes of state to keep, 0 = no history; of a whole queue only
	SettingHistoryAge  = policy.SettingHistoryAge  // milliseconds; of a whole queue only
	SettingKeyFailure  = policy.SettingKeyFailure  // block or skip; of a whole queue only

	SettingHandlerTimeout = policy.SettingHandlerTimeout // milliseconds; 0 = by the configuration of each worker
)

// WriteDefaults writes the defaults: the policy of all queues of the prefix that have no policy of their own. A Bridge
// with Config.Defaults overwrites the defaults at its start. ErrInvalid: nothing was changed.
func (a *Admin) WriteDefaults(ctx context.Context, p bridge.Policy) error {
	return policy.WriteDefaults(ctx, a.redis.Client, a.prefix, p)
}

// PolicyUpdate holds the settings of a policy to change; nil fields stay as they are: see [policy.Update].
type PolicyUpdate = policy.Update

// SettingInForce is a setting of a queue or group, with the level that its value comes from: see [policy.InForce].
type SettingInForce = policy.InForce

// Settings returns all settings of a group or, if group is "", of a queue, each with the level that its value comes
// from, and with the value that would be in force without a setting of its own.
func (a *Admin) Settings(ctx context.Context, queue, group string) ([]SettingInForce, error) {
	return policy.ReadInForce(ctx, a.redis.Client, a.prefix, queue, group)
}

// SettingChange is a recorded change of a setting of a queue or group: see [policy.Change].
type SettingChange = policy.Change

// SettingChanges returns the last changes of the settings of a queue and its groups, including pauses, the newest
// first, at most 50. Each change has the name of its author, if the program gave one: see As. Changes that a program
// made without this package are absent, so compare the newest change with the present value. The record expires a year
// after the last change, and is deleted with the queue.
func (a *Admin) SettingChanges(ctx context.Context, queue string) ([]SettingChange, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	return policy.ReadChanges(ctx, a.redis.Client, a.prefix, queue)
}

// GroupsWithSettings returns the groups of a queue that have settings of their own, sorted. Some of them may not exist.
func (a *Admin) GroupsWithSettings(ctx context.Context, queue string) ([]string, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	return policy.GroupsWithSettings(ctx, a.redis.Client, a.prefix, queue)
}

// ReadPolicy returns the policy in force for a group of a queue; "" stands for a group without settings of its own.
// Warning names settings in Redis that are invalid and therefore ignored.
func (a *Admin) ReadPolicy(ctx context.Context, queue, group string) (p bridge.Policy, warning, err error) {
	return policy.Read(ctx, a.redis.Client, a.prefix, queue, group)
}

// WritePolicy changes settings of a queue, or of one group if group is not "". Bridges and workers follow within
// seconds. ErrInvalid: nothing was changed.
func (a *Admin) WritePolicy(ctx context.Context, queue, group string, u PolicyUpdate) error {
	return a.WritePolicyOver(ctx, queue, group, nil, u)
}

// WritePolicyOver is WritePolicy for a caller who has read the settings. before has the stored values that the caller
// has seen, by setting (SettingInForce.Stored). ErrPolicyChanged: somebody else has changed one of them meanwhile, and
// nothing was written.
func (a *Admin) WritePolicyOver(
	ctx context.Context, queue, group string, before map[string]string, u PolicyUpdate,
) error {
	levels := lua.NewLevels(a.redis.Client, a.prefix)
	if a.allowOldBridges {
		levels = nil
	}
	return stream.WritePolicyOver(ctx, a.redis.Client, levels, a.prefix, queue,
		stream.PolicyChange{Group: group, Update: u, Before: before, By: a.Name()})
}
