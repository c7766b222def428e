package crashpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sweepWidth is how many runs of a sweep go on side by side: most of what they do is wait.
const sweepWidth = 32

// operation is something of duestream that makes several requests, under a load that needs all of them.
type operation struct {
	name   string
	modes  []mode
	serial bool   // requests come in one order: a point is the n-th of all
	first  point  // see fuse
	only   string // the one kind of request that matters; "" = all
	width  int    // default sweepWidth
	run    func(t *testing.T, f *fuse)
}

// sweep runs the operation once undisturbed, and then once for every point it has, in every mode. Where goroutines of a component
// send requests in no certain order, each kind of request is counted for itself. A kind is done with when a run goes through
// without reaching the next of it. The points that the undisturbed run had are tried side by side, those behind them one after
// the other.
func (o operation) sweep(t *testing.T) {
	clean := newFuse("", point{}, o.first)
	t.Run(o.name+"/undisturbed", func(t *testing.T) { o.run(t, clean) })
	if t.Failed() {
		return
	}
	kinds := slices.Sorted(maps.Keys(clean.kinds()))
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
	points := map[mode]map[string]int{}
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
	for _, m := range o.modes { // what needs one thing to happen before another, a busy machine may have kept from happening
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
