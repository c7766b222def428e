package redistest

import (
	"testing"
	"time"
)

// How much longer than it says Eventually waits before it calls something stuck. A test names the time within which a thing
// happens on a machine with nothing else to do; one that does ten things at once is slow, and slow is no failure.
const (
	patience     = 3 // times the timeout, with nothing new
	mostPatience = 8 // times the timeout, as long as why changes: it comes nearer
)

// Eventually calls condition, at growing intervals of 1 to 50 ms, until it returns true, and fails the test with the last why
// when nothing has changed for three times the timeout, or it takes more than eight times of it. Condition is called at least
// once, and always from this goroutine, so it may call t.Fatal. It asserts that something happens, never how soon.
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
