package lua

import (
	"fmt"
	"testing"
	"time"
)

// SpreadOf computes what docs/reference/protocol.md says, so that a client in another language can do the same, and IDs
// like people's fall evenly.
func TestSpreadIsEvenAndByTheIDAlone(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{1000 * time.Millisecond, 1024 * time.Millisecond, 10 * time.Minute, MaxDelay} {
		const n, parts = 20_000, 20
		var counts [parts]int
		for i := range n {
			id := fmt.Sprintf("order-%d", i)
			at := SpreadOf(id, d)
			if at < 0 || at >= d || at%time.Millisecond != 0 || at != SpreadOf(id, d) {
				t.Fatalf("%s in %s: %s", id, d, at)
			}
			counts[int(at/time.Millisecond)*parts/int(d/time.Millisecond)]++
		}
		for i, count := range counts {
			if count < n/parts*8/10 || count > n/parts*12/10 {
				t.Errorf("%s: part %d of %d has %d of %d", d, i, parts, count, n)
			}
		}
	}
	for _, d := range []time.Duration{0, -time.Second, time.Millisecond - 1, time.Millisecond} {
		if at := SpreadOf("m", d); at != 0 {
			t.Errorf("in %s: %s", d, at)
		}
	}
	// The example of docs/reference/protocol.md.
	if at := SpreadOf("order-42", 10*time.Minute); at != 126_703*time.Millisecond {
		t.Errorf("order-42: %s", at)
	}
}

// Later adds a duration to a relative and to an absolute due time.
func TestLaterThanAPointInTime(t *testing.T) {
	t.Parallel()
	for from, want := range map[When]When{After(0): "+1500", After(time.Second): "+2500",
		At(time.UnixMilli(5e12)): "5000000001500"} {
		if got := from.Later(1500 * time.Millisecond); got != want {
			t.Errorf("%s: %s, want %s", from, got, want)
		}
	}
}
