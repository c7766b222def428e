package loop

import (
	"context"
	"time"
)

// Pace limits work to a rate. After a stall it allows at most the work of one second at once. The zero value does not
// limit. It is for one goroutine.
type Pace struct {
	Rate float64 // per second; 0 = no limit
	paid time.Time
}

// Wait waits until the next n may be done. It returns false if ctx ended first.
func (p *Pace) Wait(ctx context.Context, n int) bool {
	if p.Rate > 0 {
		now := time.Now()
		if p.paid.IsZero() {
			p.paid = now
		}
		if !Sleep(ctx, p.paid.Sub(now)) {
			return false
		}
		if saved := time.Now().Add(-time.Second); p.paid.Before(saved) {
			p.paid = saved
		}
		p.paid = p.paid.Add(time.Duration(float64(n) / p.Rate * float64(time.Second)))
	}
	return ctx.Err() == nil
}

// Batch returns how many to do at once: the work of about a tenth of a second, at least one and at most most.
func (p *Pace) Batch(most int) int {
	if p.Rate == 0 {
		return most
	}
	return int(max(1, min(float64(most), p.Rate/10)))
}
