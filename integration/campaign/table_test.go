package campaign

import (
	"testing"
)

// A slow server explains that a worker with many messages lost some of them, but not if a fault of ours made the server
// slow. A clean stop of a worker explains a used attempt only during an outage, when the worker cannot release its
// messages.
func TestOnlyOverloadThatIsNotOursExplains(t *testing.T) {
	t.Parallel()
	slow := faultAt(faultOverload, 1000, 1900)
	slow.Observed = true
	ours := faultAt(faultStopServer, 900, 1900)
	if got := withoutOurSlowness([]Fault{ours, slow}); len(got) != 1 || got[0].Kind != faultStopServer {
		t.Errorf("slow by our doing: %v", got)
	}
	if got := withoutOurSlowness([]Fault{slow, faultAt(faultKillWorker, 1000, 1900, "A1")}); len(got) != 2 {
		t.Errorf("slow by itself: %v", got)
	}
	burnt := "2 A1 s #1 1 - @0\n 3 A1 e #1 ok\n 3000 A2 s #2900 2 a @2900\n 3001 A2 e #2900 ok\n 3002 A2 x #2900 acknowledged"
	stop := faultAt(faultTermWorker, 10, 50, "A1")
	for name, c := range map[string]struct {
		faults []Fault
		burnt  int
	}{
		"overload":     {[]Fault{slow}, 0},
		"a clean stop": {[]Fault{stop}, 1}, "a stop in an outage": {[]Fault{stop, faultAt(faultKillServer, 20, 900)}, 0},
	} {
		if tally := play(t, okID, taken+doneB+burnt, c.faults, State{}); tally.Zero[columnBurnt] != c.burnt {
			t.Errorf("%s: %v", name, tally.Zero)
		}
	}
}
