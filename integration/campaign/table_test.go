package campaign

import (
	"strings"
	"testing"
	"time"
)

// The table names every column that must be zero and every kind of fault, with observed faults separately.
func TestTableNamesEverything(t *testing.T) {
	t.Parallel()
	r := &Result{Seed: 7, Server: "redis 7.0.15", Load: 10 * time.Second, Took: 12 * time.Second, Faults: []Fault{
		faultAt(faultKillWorker, 1, 1, "A1"), faultAt(faultKillWorker, 2, 2, "A2"), faultAt(faultCut, 3, 3),
		{Kind: faultOverload, Observed: true},
	}}
	r.Tally = play(t, okID, taken+doneA, r.Faults, State{})
	var b strings.Builder
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range append([]string{"| seed | 7 |", "| **lost** | **1** |", "| messages accepted | 1 |", "| " +
		faultKillWorker + " | 2 |",
		"| " + faultOverload + " (seen, not ours) | 1 |", "| **2 kinds** | **3** |"}, columns...) {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	line := r.Line()
	if !strings.Contains(line, "accepted=1 ") || !strings.Contains(line, " lost=1 ") ||
		!strings.Contains(line, "faults=3 kinds=2") || r.Bad() != 1 {
		t.Errorf("%d violations in %s", r.Bad(), line)
	}
	b.Reset()
	if err := r.Report(&b); err != nil || !strings.Contains(b.String(), "LOST: "+okID+" in group b") ||
		strings.Count(b.String(), "\n") != 6 {
		t.Errorf("%v\n%s", err, &b)
	}
}

// A slow server explains losses of a worker with many messages, but not if a fault of ours made it slow.
func TestOnlyOverloadThatIsNotOursExplains(t *testing.T) {
	t.Parallel()
	slow := faultAt(faultOverload, 1000, 1900)
	slow.Observed = true
	ours := faultAt(faultStopServer, 900, 1900)
	if got := sortOut([]Fault{ours, slow}); len(got) != 1 || got[0].Kind != faultStopServer {
		t.Errorf("slow by our doing: %v", got)
	}
	if got := sortOut([]Fault{slow, faultAt(faultKillWorker, 1000, 1900, "A1")}); len(got) != 2 {
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
