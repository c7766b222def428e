package redistest

import (
	"testing"
	"time"
)

// Eventually calls condition, at growing intervals of 1 to 50 ms, until it returns true, and fails the test with the
// last why when that takes longer than timeout. Condition is called at least once, and always from this goroutine, so it
// may call t.Fatal.
func Eventually(t testing.TB, timeout time.Duration, condition func() (ok bool, why string)) {
	t.Helper()
	start := time.Now()
	pause := time.Millisecond
	for {
		ok, why := condition()
		if ok {
			return
		}
		if waited := time.Since(start); waited >= timeout {
			t.Fatalf("not so after %v: %s", waited.Round(time.Millisecond), why)
		}
		<-time.After(pause)
		pause = min(pause*3/2+time.Millisecond, 50*time.Millisecond)
	}
}
