package campaign

import "testing"

// A frozen master wakes, and adds an entry before it learns that another master has added one for the same message. Of
// the two entries, the one of the new master stays. On a slow machine a handler may start seconds later, when the
// failover is over, and that of the second entry first.
func TestAFailoverExplainsTwoEntriesOfOneMessage(t *testing.T) {
	t.Parallel()
	const twice = "4900 A2 s #2000 1 - @0\n 4901 A2 e #2000 ok\n 7600 A1 s #1000 1 - @0\n 7601 A1 e #1000 ok\n" +
		"8300 A1 x #1000 acknowledged\n 9000 A2 x #2000 lost"
	for name, c := range map[string]struct {
		faults []Fault
		want   int
	}{
		"a frozen master":                 {[]Fault{faultAt(faultFreezeMaster, 0, 2000)}, 0},
		"no failover":                     {nil, 1},
		"a failover before both entries":  {[]Fault{faultAt(faultFreezeMaster, -9000, -2000)}, 1},
		"a failover behind both handlers": {[]Fault{faultAt(faultFreezeMaster, 7700, 9000)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tally := play(t, okID, taken+doneB+twice, c.faults, State{})
			if tally.Zero[columnOwners] != c.want {
				t.Errorf("found %v, want %d owners too many: %+v", tally.Zero, c.want, tally.Findings)
			}
		})
	}
}
