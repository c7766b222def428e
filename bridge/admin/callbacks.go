package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/push"
)

// PushTarget is the URL that the messages of a queue's group are posted to, with its settings: see package bridge/push.
//
//	type PushTarget struct {
//		Queue string
//		Group string
//		// URL is https://…, without user, password or fragment; http://… only with AllowHTTP.
//		URL       string
//		AllowHTTP bool
//		// Keys are one or two signing keys, "whsec_" and the base64 of 24 to 64 bytes: with two a request has two
//		// signatures.
//		Keys []string
//		// Networks are those outside of the public internet that may be dialled, like 10.1.0.0/16; none by default.
//		Networks    []netip.Prefix
//		Headers     map[string]string // to add to each request
//		DeadStatus  []int             // status codes that dead-letter at once, besides 410
//		Timeout     time.Duration     // of a request, its answer included; default 10s, at most 1m
//		Concurrency int               // requests under way from each process; default 8, at most 1,000
//		// The circuit opens after so many failures in a row that say that the target is down; default 10, -1 = never.
//		Failures int
//		// Interval is how long after that the first probe is sent; default 5s. It doubles from probe to probe, up to
//		// MaxInterval; default 5m.
//		Interval, MaxInterval time.Duration
//		// Rate is how many requests there may be, of all processes together: 50/s, 30/m, 1/h; empty = no limit. Burst is
//		// how many at once, 0 = a tenth of a second's, at least one.
//		Rate  bridge.Rate
//		Burst int
//	}
//
//	func (PushTarget) Check() error
//	func (PushTarget) WithDefaults() PushTarget
type PushTarget = push.Target

// PushState is a stored target without its secrets: Keys is nil, the values of Headers are empty, and the URL has no
// query.
//
//	type PushState struct {
//		PushTarget
//		KeyCount int
//		Problem  string // why nothing is posted to it: it is wrong
//	}
type PushState = push.State

// PushChange is the result of SetPushTarget.
//
//	type PushChange struct {
//		Added, Changed bool   // neither: it was there as it is
//		Key            string // that was made, because none was given and there was none
//	}
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

// SetPushTarget adds a target, or replaces the one of its queue and group. Without Keys a target keeps the keys that
// it has, or gets a new one, which PushChange.Key returns; it cannot be read again. SetPushTarget registers the queue
// and creates the group, which gets every message from then on. ErrInvalid.
func (a *Admin) SetPushTarget(ctx context.Context, t PushTarget) (PushChange, error) {
	return a.pushStore().Set(ctx, t)
}

// RemovePushTarget removes a target. Posting to it ends within seconds. The group stays, and messages still wait for
// it. ErrNoTarget.
func (a *Admin) RemovePushTarget(ctx context.Context, queue, group string) error {
	return a.pushStore().Remove(ctx, queue, group)
}

// RotatePushKey gives a target a new signing key and returns it; "" generates one. Until DropOldPushKey or the next
// rotation, requests are also signed with the key that was the newest before. ErrNoTarget, ErrInvalid.
func (a *Admin) RotatePushKey(ctx context.Context, queue, group, key string) (string, error) {
	return a.pushStore().Rotate(ctx, queue, group, key)
}

// DropOldPushKey removes a target's old key: requests are then signed with the newest key only. ErrNoTarget, ErrOneKey.
func (a *Admin) DropOldPushKey(ctx context.Context, queue, group string) error {
	return a.pushStore().DropOldKey(ctx, queue, group)
}
