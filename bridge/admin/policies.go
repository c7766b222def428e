package admin

import (
	"context"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/stream"
)

// Names of the settings of a policy, in Redis and in PolicyUpdate.Clear.
const (
	SettingVisibility  = stream.SettingVisibility  // milliseconds
	SettingMaxAttempts = stream.SettingMaxAttempts // deliveries to a group
	SettingRetryMin    = stream.SettingRetryMin    // milliseconds
	SettingRetryMax    = stream.SettingRetryMax    // milliseconds
	SettingRetryDelays = stream.SettingRetryDelays // milliseconds, separated by commas; 0 = none
	SettingRetryFor    = stream.SettingRetryFor    // milliseconds; 0 = no limit
	SettingMaxSnoozes  = stream.SettingMaxSnoozes  // 0 = 1,000
	SettingMaxCrashes  = stream.SettingMaxCrashes  // 0 = a crash is a failed attempt
	SettingHeld        = stream.SettingHeld        // 1 = paused; of a whole queue only
	SettingHeldWorkers = stream.SettingHeldWorkers // 1 = workers take nothing new; of a whole queue only
	SettingRate        = stream.SettingRate        // 500/s, 30/m or 1/h, 0 = no limit; of a whole queue only
	SettingBurst       = stream.SettingBurst       // 0 = a tenth of a second's; of a whole queue only
	SettingFreeRetries = stream.SettingFreeRetries // 1 = retries do not count; of a whole queue only
	SettingReadyLimit  = stream.SettingReadyLimit  // 0 = none; of a whole queue only
	SettingHistory     = stream.SettingHistory     // changes of state to keep, 0 = none; of a whole queue only
	SettingHistoryAge  = stream.SettingHistoryAge  // milliseconds; of a whole queue only
	SettingKeyFailure  = stream.SettingKeyFailure  // block or skip; of a whole queue only

	SettingHandlerTimeout = stream.SettingHandlerTimeout // milliseconds; 0 = by the configuration of each worker
)

// WriteDefaults writes the defaults: the policy of all queues of the prefix without one of their own. A Bridge with
// Config.Defaults overwrites them at its start. ErrInvalid.
func (a *Admin) WriteDefaults(ctx context.Context, p bridge.Policy) error {
	return stream.WriteDefaults(ctx, a.redis.Client, a.prefix, p)
}

// PolicyUpdate holds the settings of a policy to change; nil fields stay as they are: see [stream.PolicyUpdate].
type PolicyUpdate = stream.PolicyUpdate

// ReadPolicy returns the policy in force for a group of a queue; "" stands for a group without settings of its own.
// Warning names settings in Redis that are invalid and therefore ignored.
func (a *Admin) ReadPolicy(ctx context.Context, queue, group string) (p bridge.Policy, warning, err error) {
	return stream.ReadPolicy(ctx, a.redis.Client, a.prefix, queue, group)
}

// WritePolicy changes settings of a queue, or of one group if group is not "". Bridges and workers follow within
// seconds. ErrInvalid: nothing was changed.
func (a *Admin) WritePolicy(ctx context.Context, queue, group string, u PolicyUpdate) error {
	if a.allowOldBridges {
		return stream.WritePolicyBeside(ctx, a.redis.Client, nil, a.prefix, queue, group, u)
	}
	return stream.WritePolicy(ctx, a.redis.Client, a.prefix, queue, group, u)
}
