package outbox

import (
	"math"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A relay looks at the first rows in every second search while it finds rows, and at all rows before it pauses.
func TestASearchReachesAllRows(t *testing.T) {
	t.Parallel()
	const rows, size = 10, 4
	for name, c := range map[string]struct {
		free []int64 // Behind of the windows with a row that may be taken
		want []int64 // Behind of the window of each search
		more bool    // goesOn after the last search
	}{
		"nothing":       {nil, []int64{0, 4, 8}, false},
		"first rows":    {[]int64{0}, []int64{0, 4, 8}, true},
		"later rows":    {[]int64{4}, []int64{0, 4, 0, 8}, true},
		"first and all": {[]int64{0, 4, 8}, []int64{0, 4, 0, 8}, true},
	} {
		var s search
		for i, want := range c.want {
			if i > 0 && !s.goesOn {
				t.Fatalf("%s: it pauses before search %d", name, i)
			}
			one := window{Queue: "q", Until: math.MaxInt64}
			if s.onward {
				one.Behind = s.behind["q"]
			}
			if one.Behind+size < rows {
				one.Until = one.Behind + size
			}
			redistest.Want(t, name, one.Behind, want)
			found := false
			for _, free := range c.free {
				found = found || free == one.Behind
			}
			s.note([]window{one, {Queue: "short", Until: math.MaxInt64}}, found)
		}
		redistest.Want(t, name+": more", s.goesOn, c.more)
		redistest.Want(t, name+": next", s.onward, false)
	}
}

// A window with more free rows than a search may take from it is looked at again.
func TestAWindowWithMoreRowsIsNotLeft(t *testing.T) {
	t.Parallel()
	windows := []window{{"full", 10, 90}, {"last", 0, math.MaxInt64}, {"few", 0, 50}, {"none", 0, 70}}
	rows := []*row{{queue: "full", seq: 20}, {queue: "few", seq: 30}, {queue: "full", seq: 40},
		{queue: "last", seq: 60}, {queue: "last", seq: 61}}
	shorten(windows, rows, 2)
	for i, want := range []int64{40, 61, 50, 70} {
		redistest.Want(t, "end of "+windows[i].Queue, windows[i].Until, want)
	}
}
