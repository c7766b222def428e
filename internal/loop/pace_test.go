package loop

import (
	"testing"
	"testing/synctest"
	"time"
)

// The bucket holds the work of one second: work that a stall held up does not come all at once.
func TestPaceIsExactAndMakesUpForASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pace{Rate: 50}
		begin := time.Now()
		for range 100 {
			p.Wait(t.Context(), 5)
		}
		if took := time.Since(begin); took != 9900*time.Millisecond {
			t.Errorf("500 at 50 a second, the last 5 of them not waited for, took %s", took)
		}
		Sleep(t.Context(), time.Minute) // a stall
		begin = time.Now()
		for range 20 {
			p.Wait(t.Context(), 5)
		}
		if took := time.Since(begin); took != 900*time.Millisecond {
			t.Errorf("100 after a stall, 50 of them saved, took %s", took)
		}
	})
}

func TestPaceWithoutARateDoesNotWait(t *testing.T) {
	var p Pace
	for range 1000 {
		if !p.Wait(t.Context(), 1000) || p.Batch(500) != 500 {
			t.Fatal("it waited")
		}
	}
	for rate, want := range map[float64]int{0.001: 1, 50: 5, 1e6: 500} {
		if got := (&Pace{Rate: rate}).Batch(500); got != want {
			t.Errorf("at %g a second: %d at once, want %d", rate, got, want)
		}
	}
}
