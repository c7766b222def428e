package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Pace lets 50 a second pass. After a stall, at most the work of one second is made up for at once, so that work does
// not come in a flood.
func TestPaceIsExactAndMakesUpForASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pace{Rate: 50}
		begin := time.Now()
		for range 100 {
			p.Wait(t.Context(), 5)
		}
		if took := time.Since(begin); took != 9900*time.Millisecond { // 500/50 s, less the 5/50 s after the last call
			t.Errorf("500 at 50 a second, without the wait after the last 5, took %s", took)
		}
		Sleep(t.Context(), time.Minute) // a stall
		begin = time.Now()
		for range 20 {
			p.Wait(t.Context(), 5)
		}
		if took := time.Since(begin); took != 900*time.Millisecond { // 50 pass at once, then 45/50 s as above
			t.Errorf("100 after a stall, 50 of them at once, took %s", took)
		}
	})
}

// A rate near zero must not become no limit.
func TestPaceWaitsAtARateNearZero(t *testing.T) {
	for _, rate := range []float64{1e-12, 1e-300, 5e-324} {
		synctest.Test(t, func(t *testing.T) {
			p := Pace{Rate: rate}
			ctx, cancel := context.WithTimeout(t.Context(), 365*24*time.Hour)
			defer cancel()
			if !p.Wait(ctx, 1) || p.Wait(ctx, 1) {
				t.Errorf("at %g a second, the second item does not wait", rate)
			}
		})
	}
}

// Without a rate, Pace never waits and does not divide a batch. With a rate, a batch is the work of a tenth of a
// second, at least 1.
func TestPaceWithoutARateDoesNotWait(t *testing.T) {
	var p Pace
	for range 1000 {
		if !p.Wait(t.Context(), 1000) || p.Batch(500) != 500 {
			t.Fatal("a Pace without a rate waited")
		}
	}
	for rate, want := range map[float64]int{0.001: 1, 50: 5, 1e6: 500} {
		if got := (&Pace{Rate: rate}).Batch(500); got != want {
			t.Errorf("at %g a second: %d at once, want %d", rate, got, want)
		}
	}
}
