package stream

import "time"

// vigil judges by a caller's own calls since when a server has been there without an interruption. On a cluster each server has
// outages of its own, and the heartbeat, which knows about one of them, says nothing about the others.
//
// An outage that hides between two calls is shorter than the gap that is allowed between them. Workers extend at a third of the
// visibility timeout, so with a gap of half of it no entry of a living worker looks abandoned.
type vigil struct {
	since, last time.Time // zero: not there at the last call
}

// seen takes a call that succeeded, began at a time.
func (v *vigil) seen(began time.Time, gap time.Duration) {
	now := time.Now()
	if v.last.IsZero() || now.Sub(v.last) > gap || now.Sub(began) > gap {
		v.since = now
	}
	v.last = now
}

// missed takes a call that failed.
func (v *vigil) missed() { v.last = time.Time{} }

// calmSince is the zero time when the last call failed.
func (v *vigil) calmSince() time.Time {
	if v.last.IsZero() {
		return time.Time{}
	}
	return v.since
}
