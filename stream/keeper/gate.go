package keeper

import (
	"context"
	"time"
)

// gate lets one pass per interval, in the order in which they came. A turn is taken when it comes, never ahead: who leaves the line, because
// its queue went to another bridge or became busy, holds up nobody behind it.
type gate struct {
	interval time.Duration
	first    chan time.Time // holds the time of the next turn, while nobody is first in line
}

func newGate(interval time.Duration) *gate {
	g := &gate{interval: interval, first: make(chan time.Time, 1)}
	g.first <- time.Time{}
	return g
}

// pass waits for a turn. It returns early, without one, when poked. False: ctx ended.
func (g *gate) pass(ctx context.Context, poked <-chan struct{}) bool {
	var turn time.Time
	select {
	case <-ctx.Done():
		return false
	case <-poked:
		return ctx.Err() == nil
	case turn = <-g.first:
	}
	timer := time.NewTimer(time.Until(turn))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-poked:
	case <-timer.C:
		turn = time.Now().Add(g.interval)
	}
	g.first <- turn
	return ctx.Err() == nil
}
