package keeper

import (
	"context"
	"time"
)

// takeTurns gives queues one turn per interval, in the order of their requests. A queue takes a turn only when the time
// of the turn has come, and reserves none. So a queue that stops waiting, because it moved to another bridge or became
// busy, delays no other.
type takeTurns struct {
	interval time.Duration

	// next holds the time of the next turn. The queue that waits for this time has taken it out of the channel; the
	// other queues wait for the channel.
	next chan time.Time
}

func newTakeTurns(interval time.Duration) *takeTurns {
	t := &takeTurns{interval: interval, next: make(chan time.Time, 1)}
	t.next <- time.Time{} // the first turn is at once
	return t
}

// wait waits for a turn, or until poked. It returns false if ctx ended.
func (t *takeTurns) wait(ctx context.Context, poked <-chan struct{}) bool {
	var turn time.Time
	select {
	case <-ctx.Done():
		return false
	case <-poked:
		return ctx.Err() == nil
	case turn = <-t.next:
	}
	timer := time.NewTimer(time.Until(turn))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-poked:
	case <-timer.C:
		turn = time.Now().Add(t.interval)
	}
	t.next <- turn
	return ctx.Err() == nil
}
