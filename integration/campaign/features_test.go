package campaign

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
)

// The auditor finds planted violations in the histories of messages that use special features, and nothing in correct
// histories. See play for the form of a script. The ID of a message names its kind: z is snoozed, q is tried for a
// limited time, k crashes, u hangs, n is cancelled in any state, v has versions, j has a key.
func TestAuditorJudgesMessagesWithFeatures(t *testing.T) {
	t.Parallel()
	const (
		snoozeID, ageID, crashID, hangID, haltID = "p-1-mz1", "p-1-mq", "p-1-mk1", "p-1-mu1", "p-1-mn"

		hung = "2 A1 s #1 1 - @0\n 2.1 A1 e #1 hang\n 3 A1 x #1 dead\n" +
			"2 B1 s #1 1 - @0\n 2.1 B1 e #1 hang\n 3 B1 x #1 dead\n"
		hungLate = "2 A1 s #1 1 - @0\n 2.1 A1 e #1 hang\n 7000 A1 x #1 lost\n" +
			"2 B1 s #1 1 - @0\n 2.1 B1 e #1 hang\n 3 B1 x #1 dead\n"
		again    = "2 A1 s #1 1 - @0\n 2.1 A1 e #1 snooze\n 3 A1 x #1 snoozed\n"
		atLast   = "2 B1 s #1 1 - @0\n 2.1 B1 e #1 ok\n 3 B1 x #1 acknowledged\n"
		versions = "0 P try 100\n 1 P taken @100\n 10 P over asked\n 20 P over ok\n id p-1-mv2!2\n" +
			"10 P try 300\n 19 P taken @310\n"
		newest = "312 A1 s #311 1 - @310\n 313 A1 e #311 ok\n 314 A1 x #311 acknowledged\n" +
			"312 B1 s #311 1 - @310\n 313 B1 e #311 ok\n 314 B1 x #311 acknowledged\n"
	)
	const retried = "7 B1 s #6 2 b @6\n 8 B1 e #6 ok\n 9 B1 x #6 acknowledged\n"
	const takenLater = "0 P try 0\n 1 P taken @0\n"
	keyedID := "p-1-mj2"
	sameKey := keyedID
	for n := 2; sameKey == keyedID || keyOf(sameKey) != keyOf(keyedID); n++ {
		sameKey = fmt.Sprintf("p-%d-mj1", n)
	}
	letters := func(ms int, id, reason string, attempt int) State {
		return State{Letters: []Letter{letterAt(ms, id, "a", reason, attempt), letterAt(ms, id, "b", reason, attempt)}}
	}
	for name, c := range map[string]struct {
		id, script string
		state      State
		want       map[string]int
	}{
		"snoozed once": {snoozeID, taken + atLast + again +
			"400 A1 s #390 1 a @390\n 401 A1 e #390 ok\n 402 A1 x #390 acknowledged", State{}, nil},
		"a snooze that used an attempt up": {snoozeID, taken + atLast + again +
			"400 A1 s #390 2 a @390\n 401 A1 e #390 ok\n 402 A1 x #390 acknowledged", State{},
			map[string]int{columnBurnt: 1}},
		"given up in time": {ageID, taken, letters(1700, ageID, lua.ReasonRetryFor, 0), nil},
		"given up for another reason": {ageID, taken, letters(1700, ageID, lua.ReasonMaxAttempts, 0),
			map[string]int{columnWrong: 2}},
		"too old, and of another kind": {okID, taken, letters(1700, okID, lua.ReasonRetryFor, 0),
			map[string]int{columnWrong: 2}},
		"a crash": {crashID, taken + doneA + "2 B2 s #1 1 - @0\n 3 B2 e #1 abandon",
			State{Letters: []Letter{letterAt(2600, crashID, "b", lua.ReasonCrashes, 1)}}, nil},
		"a crash that used an attempt up": {crashID, taken + doneA + "2 B2 s #1 1 - @0\n 3 B2 e #1 abandon",
			State{Letters: []Letter{letterAt(2600, crashID, "b", lua.ReasonCrashes, 2)}}, map[string]int{columnWrong: 1}},
		"the newest version is lost": {"p-1-mv2!1", versions, State{}, map[string]int{columnLost: 2}},
		"a version that was replaced comes, too": {"p-1-mv2!1", "102 A1 s #101 1 - @100\n 103 A1 e #101 ok\n" +
			"104 A1 x #101 acknowledged\n" + versions + newest, State{}, map[string]int{columnCancelled: 1}},
		"one of a key after the other": {keyedID, taken + "2 A1 s #1 1 - @0\n 2.1 A1 e #1 ok\n 3 A1 x #1 acknowledged\n" +
			"2 B1 s #1 1 - @0\n 2.1 B1 e #1 fail\n 3 B1 x #1 retried\n" + retried + "id " + sameKey + "\n" + takenLater +
			"12 A1 s #11 1 - @10\n 13 A1 e #11 ok\n 14 A1 x #11 acknowledged\n12 B1 s #11 1 - @10\n 13 B1 e #11 ok\n" +
			"14 B1 x #11 acknowledged\n", State{}, nil},
		"two of a key at once": {keyedID, taken + "2 A1 s #1 1 - @0\n 2.1 A1 e #1 ok\n 3 A1 x #1 acknowledged\n" +
			"2 B1 s #1 1 - @0\n 2.1 B1 e #1 fail\n 3 B1 x #1 retried\n" + retried + "id " + sameKey + "\n" + takenLater +
			"4 A1 s #4 1 - @0\n 5 A1 e #4 ok\n 6 A1 x #4 acknowledged\n4 B1 s #4 1 - @0\n 5 B1 e #4 ok\n" +
			"6 B1 x #4 acknowledged\n", State{}, map[string]int{columnOwners: 1}},
		"a handler that hung": {hangID, taken + hung, letters(5, hangID, lua.ReasonHandlerTimeout, 1), nil},
		"a handler that hung, and one attempt too many": {hangID, taken + hung, letters(5, hangID, lua.ReasonHandlerTimeout, 2),
			map[string]int{columnWrong: 2, columnBurnt: 2}},
		"a handler that hung, and was told too late": {hangID, taken + hungLate,
			State{Letters: []Letter{letterAt(5000, hangID, "a", lua.ReasonVisibilityTimeout, 1),
				letterAt(5, hangID, "b", lua.ReasonHandlerTimeout, 1)}}, nil},
		"a handler that hung, and lost its delivery within its limit": {hangID, taken + hungLate,
			State{Letters: []Letter{letterAt(250, hangID, "a", lua.ReasonVisibilityTimeout, 1),
				letterAt(5, hangID, "b", lua.ReasonHandlerTimeout, 1)}}, map[string]int{columnBurnt: 1}},
		"a limit that the message does not have": {okID, taken, letters(5, okID, lua.ReasonHandlerTimeout, 0),
			map[string]int{columnWrong: 2}},
		"cancelled while it ran, and tried again": {haltID, taken + "2 A1 s #1 1 - @0\n 3 P halt asked\n 4 P halt running\n" +
			"5 A1 e #1 fail\n 6 A1 x #1 retried\n 7 A1 s #6 2 a @6\n 8 A1 e #6 ok\n 9 A1 x #6 acknowledged", State{},
			map[string]int{columnCancelled: 1}},
		"an occurrence twice": {"every-1-mo@1800000000000", taken + doneA + doneB + "12 A2 s #10 1 - @0\n 13 A2 e #10 ok\n" +
			"14 A2 x #10 acknowledged", State{}, map[string]int{columnOwners: 1, columnUnexplained: 1}},
		"an occurrence that nobody expects": {"every-1-mo@1800000000777", doneA, State{}, map[string]int{columnWrong: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tally := play(t, c.id, c.script, nil, c.state)
			if c.want == nil {
				c.want = map[string]int{}
			}
			if !maps.Equal(tally.Zero, c.want) {
				t.Errorf("found %v, planted %v: %+v", tally.Zero, c.want, tally.Findings)
			}
		})
	}
}

// The occurrences that the campaign computes by counting are those of the planner. Otherwise the auditor would report
// right occurrences as unexpected, and not miss others.
func TestOccurrencesAreThoseOfTheSpec(t *testing.T) {
	t.Parallel()
	start := time.UnixMilli(1_800_000_000_250).UTC()
	for _, r := range recurring(start, start.Add(5*time.Second)) {
		s, err := r.Compile()
		if err != nil {
			t.Fatal(err)
		}
		want := occurrences(r)
		if len(want) != 5 {
			t.Errorf("%s: %v", r.Name, want)
		}
		at := start.Add(-time.Millisecond)
		for _, one := range want {
			if at, _ = s.Next(at); !at.Equal(one) {
				t.Errorf("%s: %s, counted %s", r.Name, at, one)
			}
		}
	}
}
