package admin

import (
	"context"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/stream"
)

// Names of the settings of a policy, as Redis and PolicyUpdate.Clear have them.
const (
	SettingVisibility  = stream.SettingVisibility
	SettingMaxAttempts = stream.SettingMaxAttempts
	SettingRetryMin    = stream.SettingRetryMin
	SettingRetryMax    = stream.SettingRetryMax
	SettingHeld        = stream.SettingHeld
)

// WriteDefaults writes the policy of all queues of a prefix that have none of their own. A Bridge does so by itself.
func (a *Admin) WriteDefaults(ctx context.Context, p bridge.Policy) error {
	return stream.WriteDefaults(ctx, a.redis.Client, a.prefix, p)
}

// PolicyUpdate names the settings of a policy to change.
type PolicyUpdate = stream.PolicyUpdate

// ReadPolicy returns the policy in force for a group of a queue; group "" means one without settings of its own. Warning names what is
// written in Redis but does not count.
func (a *Admin) ReadPolicy(ctx context.Context, queue, group string) (p bridge.Policy, warning, err error) {
	return stream.ReadPolicy(ctx, a.redis.Client, a.prefix, queue, group)
}

// WritePolicy changes settings of a queue, or with a group those of one group alone.
func (a *Admin) WritePolicy(ctx context.Context, queue, group string, u PolicyUpdate) error {
	return stream.WritePolicy(ctx, a.redis.Client, a.prefix, queue, group, u)
}
