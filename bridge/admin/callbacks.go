package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/push"
)

// PushTarget is the URL that the messages of a queue's group are posted to, with its settings: see [push.Target].
type PushTarget = push.Target

// PushState is a stored target without its secrets: see [push.State].
type PushState = push.State

// PushChange is the result of SetPushTarget: see [push.Change].
type PushChange = push.Change

func (a *Admin) pushStore() *push.Store { return push.NewStore(a.redis.Client, a.prefix) }

// CheckPushTarget returns ErrInvalid if SetPushTarget would refuse the target. Keys may be absent.
func CheckPushTarget(t PushTarget) error {
	if len(t.Keys) == 0 {
		t.Keys = []string{push.NewKey()}
	}
	return t.Check()
}

// CheckPushKey returns ErrInvalid unless the text is a signing key.
func CheckPushKey(key string) error { return push.CheckKey(key) }

// PushTargets returns the targets of a queue, in the order of their groups, without their secrets. One round trip.
func (a *Admin) PushTargets(ctx context.Context, queue string) ([]PushState, error) {
	return a.pushStore().List(ctx, queue)
}

// SetPushTarget adds a target, or replaces the one of its queue and group. Without Keys a target keeps the keys that it
// has, or gets a new one, which PushChange.Key returns; the key cannot be read again. SetPushTarget registers the queue
// and creates the group, which gets every message from then on. ErrInvalid: a value of the target is invalid.
func (a *Admin) SetPushTarget(ctx context.Context, t PushTarget) (PushChange, error) {
	return a.pushStore().Set(ctx, t)
}

// ReplacePushTarget is SetPushTarget for a caller who has read the targets. It returns ErrTargetChanged unless the
// stored target has this PushState.Version. The version "" means that there must be no target.
func (a *Admin) ReplacePushTarget(ctx context.Context, t PushTarget, version string) (PushChange, error) {
	return a.pushStore().Replace(ctx, t, version)
}

// RemovePushTarget removes a target. Posting to it ends within seconds. The group stays, and messages still wait for
// it. ErrNoTarget: there is no such target.
func (a *Admin) RemovePushTarget(ctx context.Context, queue, group string) error {
	return a.pushStore().Remove(ctx, queue, group)
}

// RotatePushKey gives a target a new signing key and returns it; "" generates one. Until DropOldPushKey or the next
// rotation, requests are also signed with the key that was the newest before. ErrNoTarget, ErrInvalid.
func (a *Admin) RotatePushKey(ctx context.Context, queue, group, key string) (string, error) {
	return a.pushStore().Rotate(ctx, queue, group, key)
}

// RotatePushVersion is RotatePushKey with a generated key, for a caller who has read the targets. It returns
// ErrTargetChanged unless the stored target has this PushState.Version. A target keeps only two keys, so a second
// rotation would drop a key that receivers still need.
func (a *Admin) RotatePushVersion(ctx context.Context, queue, group, version string) (string, error) {
	return a.pushStore().RotateVersion(ctx, queue, group, version)
}

// DropOldPushKey removes a target's old key: requests are then signed with the newest key only. ErrNoTarget, ErrOneKey.
func (a *Admin) DropOldPushKey(ctx context.Context, queue, group string) error {
	return a.pushStore().DropOldKey(ctx, queue, group)
}
