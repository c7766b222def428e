package redistest

import (
	"testing"
	"time"
)

// Eventually waits for a multiple of its timeout before it fails. The timeout is how long something takes on a machine
// with nothing else to do. A busy machine is slower, and that is not a failure.
const (
	patience     = 3 // times the timeout, while why does not change
	mostPatience = 8 // times the timeout, while why changes, which means progress
)

// Eventually calls condition, at growing intervals of 1 to 50 ms, until condition returns true. It fails the test, with
// the last why, when why has not changed for three times the timeout, or after eight times the timeout. It calls
// condition at least once, and always from the goroutine of its caller, so that condition may call t.Fatal. It checks
// that something happens, and not how soon.
func Eventually(t testing.TB, timeout time.Duration, condition func() (ok bool, why string)) {
	t.Helper()
	start := time.Now()
	changed, last := start, ""
	pause := time.Millisecond
	for {
		ok, why := condition()
		if ok {
			return
		}
		now := time.Now()
		if why != last {
			changed, last = now, why
		}
		if now.Sub(changed) >= patience*timeout || now.Sub(start) >= mostPatience*timeout {
			t.Fatalf("not so after %v: %s", now.Sub(start).Round(time.Millisecond), why)
		}
		<-time.After(pause)
		pause = min(pause*3/2+time.Millisecond, 50*time.Millisecond)
	}
}
