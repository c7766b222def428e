package crashpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sweepWidth is how many runs of a sweep are concurrent: they mostly wait.
const sweepWidth = 32

// operation is a part of duestream that makes several requests, with a load that needs all of them.
type operation struct {
	name   string
	modes  []mode
	serial bool   // requests come in a fixed order, so a point is the n-th of all requests
	first  point  // a request whose reply is always lost, before the counting begins; see fuse
	only   string // the only kind of request to interrupt; "" = all
	width  int    // number of concurrent runs; 0 = sweepWidth
	run    func(t *testing.T, f *fuse)
}

// sweep runs the operation once undisturbed, and then once for each of its points, in each mode. If goroutines send
// requests in no fixed order, each kind of request is counted separately. The points of the undisturbed run are tried
// concurrently. A disturbed run may send more requests than the undisturbed one, so the points beyond are tried one by
// one, until a run ends before it reaches its point. The test fails if no run reached a point of some kind.
func (o operation) sweep(t *testing.T) {
	clean := newFuse("", point{}, o.first)
	t.Run(o.name+"/undisturbed", func(t *testing.T) { o.run(t, clean) })
	if t.Failed() {
		return
	}
	kinds := slices.Sorted(maps.Keys(clean.kinds())) // each kind, and "" for all requests together
	if o.serial {
		kinds = []string{""}
	} else if o.only != "" {
		kinds = []string{o.only}
	} else {
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == "" })
	}
	if o.width == 0 {
		o.width = sweepWidth
	}
	slots := make(chan struct{}, o.width)
	var runs sync.WaitGroup
	var mu sync.Mutex
	points := map[mode]map[string]int{} // number of reached points, by mode and kind
	try := func(m mode, kind string, n int) (reached bool) {
		f := newFuse(m, point{kind, n}, o.first)
		slots <- struct{}{}
		ok := t.Run(fmt.Sprintf("%s/%s/%s %d", o.name, m, kind, n), func(t *testing.T) { o.run(t, f) })
		<-slots
		if !f.blown() || !ok {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		points[m][kind]++
		return true
	}
	for _, m := range o.modes {
		points[m] = map[string]int{}
		for _, kind := range kinds {
			known := clean.kinds()[kind]
			for n := range known {
				runs.Go(func() { try(m, kind, n+1) })
			}
			runs.Go(func() {
				for n := known + 1; try(m, kind, n); n++ {
				}
			})
		}
	}
	runs.Wait()
	for _, m := range o.modes { // on a busy machine, all runs of a kind may have missed their point: try again
		for _, kind := range kinds {
			for again := 0; again < 3 && points[m][kind] == 0 && !t.Failed(); again++ {
				try(m, kind, 1)
			}
		}
	}
	for _, m := range o.modes {
		total, list := 0, []string{}
		for _, kind := range kinds {
			total += points[m][kind]
			list = append(list, fmt.Sprintf("%s %d", kind, points[m][kind]))
			if points[m][kind] == 0 {
				t.Errorf("%s/%s: %q was never reached", o.name, m, kind)
			}
		}
		t.Logf("%s: %d points %s: %s", o.name, total, m, strings.TrimSpace(strings.Join(list, ", ")))
	}
}
