package campaign

import (
	"maps"
	"strings"
	"testing"
)

// A worker behind two gateways uses the other one when one fails. So a fault of one gateway explains only a lost
// answer, unless it stops the gateway for so long that the worker gets a message late.
//
// In the scripts (see play), "s #1 1 - @0" starts a handler: entry, attempt, group of a retry ("-" = a first delivery),
// due time. "e #1 ok" is the end of the handler, and "x #1 …" the result of settling the entry. W is a worker over
// HTTP, and B1 a worker of the same group without a gateway.
func TestOneGatewayExplainsOnlyLostAnswers(t *testing.T) {
	t.Parallel()
	const (
		again = "2 W s #1 1 - @0\n 3 W e #1 ok\n 3000 B1 s #2900 2 b @2900\n 3001 B1 e #2900 ok\n" +
			"3002 B1 x #2900 acknowledged"
		untold = "2 W s #1 1 - @0\n 3 W e #1 ok\n 4 W x #1 unknown"
		unseen = "2900 W s #2890 2 b @2890\n 2901 W e #2890 ok\n 2902 W x #2890 acknowledged"
	)
	both := map[string]int{columnUnexplained: 1, columnBurnt: 1}
	first, second := faultAt(faultKillGateway, 3, 5, "G1.0"), faultAt(faultCutGateway, 100, 2500, "G2.1")
	for name, c := range map[string]struct {
		script string
		faults []Fault
		want   map[string]int
	}{
		"taken away from a worker, without a fault": {again, nil, both},
		"taken away, and one gateway was killed":    {again, []Fault{first}, both},
		"taken away, and one gateway failed twice": {again, []Fault{faultAt(faultTermGateway, 3, 5, "G2.0"), second},
			both},
		"taken away, and both were away": {again, []Fault{first, second}, map[string]int{}},
		"taken away, and both were cut off": {again,
			[]Fault{faultAt(faultStall, 100, 2500, "G1.0", "G2.1")}, map[string]int{}},
		"taken away, and both failed at other times": {again,
			[]Fault{faultAt(faultKillGateway, -9000, -8000, "G1.0"), second}, both},
		"taken away, and one gateway was stopped for long": {again,
			[]Fault{faultAt(faultStopGateway, -500, 1200, "G1.0")}, map[string]int{}},
		"taken away, and one gateway was stopped for a moment": {again,
			[]Fault{faultAt(faultStopGateway, 900, 1200, "G1.0")}, both},
		"taken away from a worker that was killed": {again, []Fault{faultAt(faultKillHTTP, 4, 4, "W")}, map[string]int{}},
		"taken away while a bridge was killed":     {again, []Fault{faultAt(faultKillBridge, 4, 4, "P")}, both},
		"no answer, without a fault":               {untold, nil, map[string]int{columnWrong: 1}},
		"no answer of a gateway that was killed":   {untold, []Fault{first}, map[string]int{}},
		"no answer, and the gateway was killed later": {untold,
			[]Fault{faultAt(faultKillGateway, 9000, 9000, "G1.0")}, map[string]int{columnWrong: 1}},
		"first attempt seen by nobody, without a fault":          {unseen, nil, map[string]int{columnBurnt: 1}},
		"first attempt seen by nobody, and a gateway was killed": {unseen, []Fault{first}, map[string]int{}},
		"first attempt seen by nobody, and another worker was killed": {unseen,
			[]Fault{faultAt(faultKillWorker, 3, 5, "A1")}, map[string]int{columnBurnt: 1}},
		"acknowledged over HTTP, and still delivered again": {
			strings.Replace(again, "3 W e #1 ok", "3 W e #1 ok\n 3 W x #1 acknowledged", 1),
			[]Fault{first, second}, map[string]int{columnOwners: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tally := play(t, okID, taken+doneA+c.script, c.faults, State{}); !maps.Equal(tally.Zero, c.want) {
				t.Errorf("found %v, planted %v: %+v", tally.Zero, c.want, tally.Findings)
			}
		})
	}
}

// A producer behind gateways repeats a request whose answer was lost. The audit counts its message as accepted once,
// and finds it if it was taken twice or lost. It excuses a delivery after a cancel only if a request that was sent
// before the cancel may have been executed after it.
func TestARepeatedPublishIsPromisedOnce(t *testing.T) {
	t.Parallel()
	if tally := play(t, okID, strings.ReplaceAll(taken, "P", "S")+"5 S try 0\n 6 S taken @5\n"+doneA+doneB, nil,
		State{}); tally.Zero[columnTwice] != 1 || tally.PublishedHTTP != 1 {
		t.Errorf("taken twice: %v", tally)
	}
	if tally := play(t, okID, strings.ReplaceAll(taken, "P", "S")+doneA, nil, State{}); tally.Zero[columnLost] != 1 {
		t.Errorf("lost: %v", tally)
	}
	const delivered = " 4000 A1 s #3990 1 - @3990\n 4001 A1 e #3990 ok\n 4002 A1 x #3990 acknowledged"
	stopped := []Fault{faultAt(faultStopGateway, 5, 3900, "G1.0")}
	for name, c := range map[string]struct {
		script string
		faults []Fault
		found  int // violations
	}{
		// The first request was given up after callWait, and the stopped gateway may still execute it.
		"a gateway was stopped, and the answer came after callWait": {
			"0 S try 10\n 2100 S taken @2100\n 2200 S cancel asked\n 2201 S cancel ok\n", stopped, 0},
		"a gateway was stopped, and the answer came within callWait": {
			"0 S try 10\n 900 S taken @900\n 2200 S cancel asked\n 2201 S cancel ok\n", stopped, 1},
		"no gateway was stopped, and the answer came after callWait": {
			"0 S try 10\n 2100 S taken @2100\n 2200 S cancel asked\n 2201 S cancel ok\n", nil, 1},

		"the cancel came before the producer gave up": {
			"0 S try 10\n 200 S cancel asked\n 201 S cancel ok\n 2300 S maybe\n", nil, 0},
		"the cancel came before the answer": {
			"0 S try 10\n 200 S cancel asked\n 201 S cancel ok\n 2300 S taken @2300\n", nil, 0},
		"the cancel came after the producer gave up": {
			"0 S try 10\n 2300 S maybe\n 2400 S cancel asked\n 2401 S cancel ok\n", nil, 1},
		"the cancel came after the answer": {
			"0 S try 10\n 2300 S taken @2300\n 2400 S cancel asked\n 2401 S cancel ok\n", nil, 1},
		"the cancel came before a producer without a gateway gave up": {
			"0 P try 10\n 200 P cancel asked\n 201 P cancel ok\n 2300 P maybe\n", nil, 1},
	} {
		if tally := play(t, "p-1-mc", c.script+delivered, c.faults, State{}); tally.Zero[columnCancelled] != c.found {
			t.Errorf("delivered after a cancel, %s: %v", name, tally)
		}
	}
	r := &Result{}
	if text := r.unused(); !strings.Contains(text, "none over HTTP") {
		t.Error(text)
	}
}
