// Package clock lets a test kit give its own clock to code that measures or waits for time beside a message, such as a
// batch that waits for more messages. Without a test kit it is the clock of this machine.
package clock

import (
	"context"
	"time"
)

// Clock tells the time and runs functions later.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f when d has passed, unless stop was called before. It calls f in a goroutine of its own, or in
	// the goroutine that moves the clock.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
	// Wait notes that n more handlers wait for such a call. With n below 0, it notes that -n handlers do not wait any
	// more. A test kit moves its clock although these handlers run.
	Wait(n int)
	// WaitToRead waits until a time, or until ctx ends. A worker calls it before it reads a stream for a group. A test
	// kit may then move its clock to that time, although messages of the stream are ready.
	WaitToRead(ctx context.Context, stream, group string, until time.Time)
}

type key struct{}

// With returns a context whose clock is c.
func With(ctx context.Context, c Clock) context.Context { return context.WithValue(ctx, key{}, c) }

// Of returns the clock of a context. Without one it returns the clock of this machine.
func Of(ctx context.Context) Clock {
	if c, ok := ctx.Value(key{}).(Clock); ok {
		return c
	}
	return machine{}
}

type machine struct{}

func (machine) Now() time.Time { return time.Now() }

func (machine) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}

func (machine) Wait(int) {}

func (machine) WaitToRead(ctx context.Context, _, _ string, until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
}

// IsMachine reports whether a clock is the clock of this machine.
func IsMachine(c Clock) bool {
	_, ok := c.(machine)
	return ok
}
