package keeper

import (
	"context"
	"time"
)

// turns gives queues one turn per interval, in the order of their requests. A queue takes a turn when it comes, and
// reserves none: a queue that stops waiting, because it moved to another bridge or became busy, delays no other.
type turns struct {
	interval time.Duration
	first    chan time.Time // holds the time of the next turn, while no queue waits for it
}

func newTurns(interval time.Duration) *turns {
	t := &turns{interval: interval, first: make(chan time.Time, 1)}
	t.first <- time.Time{}
	return t
}

// wait waits for a turn, or until poked. It returns false if ctx ended.
func (t *turns) wait(ctx context.Context, poked <-chan struct{}) bool {
	var turn time.Time
	select {
	case <-ctx.Done():
		return false
	case <-poked:
		return ctx.Err() == nil
	case turn = <-t.first:
	}
	timer := time.NewTimer(time.Until(turn))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-poked:
	case <-timer.C:
		turn = time.Now().Add(t.interval)
	}
	t.first <- turn
	return ctx.Err() == nil
}
