package loop

import (
	"context"
	"time"
)

// Pace limits work to a rate of items per second. After a stall it allows at most the work of one second at once. The
// zero value does not limit. A Pace is for one goroutine.
type Pace struct {
	Rate float64   // items per second; 0 = no limit
	next time.Time // when the next item may be done
}

// longestWait is the longest wait for one call's items: 30 years. A time.Duration has no more than 292 years.
const longestWait = 30 * 365 * 24 * time.Hour

// Wait waits until the next n items may be done. It returns false if ctx ends first.
func (p *Pace) Wait(ctx context.Context, n int) bool {
	if p.Rate > 0 {
		now := time.Now()
		if p.next.IsZero() {
			p.next = now
		}
		if !Sleep(ctx, p.next.Sub(now)) {
			return false
		}
		if oldest := time.Now().Add(-time.Second); p.next.Before(oldest) {
			p.next = oldest
		}
		seconds := min(float64(n)/p.Rate, longestWait.Seconds())
		p.next = p.next.Add(time.Duration(seconds * float64(time.Second)))
	}
	return ctx.Err() == nil
}

// Batch returns how many items to do at once: the work of about a tenth of a second, at least one item, and no more
// than most.
func (p *Pace) Batch(most int) int {
	if p.Rate == 0 {
		return most
	}
	return int(max(1, min(float64(most), p.Rate/10)))
}
