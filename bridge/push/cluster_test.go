package push

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// newRigOnMasters returns a rig on a cluster. The queue away is on master, which holds none of the keys that all queues
// share. The queue here is on another master.
func newRigOnMasters(t *testing.T) (g *rig, away string, master *redistest.Server, here string) {
	t.Helper()
	c := redistest.Cluster(t, 3, 0)
	g = newRigOn(t, c.Server())
	owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
	globals := lua.NewGlobals(g.prefix)
	shared := []*redistest.Server{owner(globals.Queues), owner(globals.Defaults)}
	for i := 0; away == "" || here == ""; i++ {
		queue := fmt.Sprint("q-", i)
		if one := owner(lua.NewKeys(g.prefix, queue).Stream); slices.Contains(shared, one) {
			here = queue
		} else {
			away, master = queue, one
		}
	}
	return g, away, master, here
}

// newRunner starts a Runner, which stops with the test.
func (g *rig) newRunner() *Runner {
	g.t.Helper()
	r, err := NewRunner(Config{Redis: g.r, Prefix: g.prefix, LookInterval: 20 * time.Millisecond, Logger: g.log.Logger()})
	if err != nil {
		g.t.Fatal(err)
	}
	g.start(r.Run)
	return r
}

// awaitServed waits until a Runner has workers for these targets and no others.
func (g *rig) awaitServed(r *Runner, want ...targetID) {
	g.t.Helper()
	redistest.Eventually(g.t, 60*time.Second, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		served := map[targetID]bool{}
		for _, at := range r.workers {
			served[at] = true
		}
		all := len(served) == len(want)
		for _, at := range want {
			all = all && served[at]
		}
		return all, fmt.Sprint("served: ", served, ", want ", want, g.log.Lines("reading"))
	})
}

// While a master is away, targets of queues on other masters can be changed and are posted to, also by a process that
// starts then. Regression: every read of the targets failed, so no change of a target took effect, and a process that
// started posted nothing.
func TestAMasterThatIsAwayKeepsNoTargetOfOthersFromChanging(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"hangs": (*redistest.Server).Pause, "is killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, away, master, here := newRigOnMasters(t)
			v := newReceiver(t, nil)
			one := to(v.URL)
			one.Queue = away
			g.set(one)
			one.Queue = here
			g.set(one)
			before := g.newRunner()
			g.awaitServed(before, targetID{away, "g"}, targetID{here, "g"})
			leave(master)
			started := g.newRunner()
			g.awaitServed(started, targetID{here, "g"})
			g.schedule(here, bridge.NewMessage{ID: "m"})
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				return len(v.requests()) > 0, "nothing is posted"
			})
			one.Group = "added"
			g.set(one)
			g.awaitServed(before, targetID{away, "g"}, targetID{here, "g"}, targetID{here, "added"})
			g.awaitServed(started, targetID{here, "g"}, targetID{here, "added"})
			redistest.Want(t, "removed", g.store.Remove(t.Context(), here, "g"), nil)
			g.awaitServed(before, targetID{away, "g"}, targetID{here, "added"})
			g.awaitServed(started, targetID{here, "added"})
			redistest.Want(t, "ready, with no target on the master that is away", started.Ready(), nil)
		})
	}
}

// While the master of the defaults is away, probes and changed targets are posted to. Each of them needs a new worker.
// Regression: a new worker waited for the defaults, so a target that was changed, or whose circuit had opened, received
// no requests.
func TestAMasterOfTheDefaultsThatIsAwayKeepsNoTargetFromBeingPosted(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"hangs": (*redistest.Server).Pause, "is killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Cluster(t, 3, 0)
			owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
			g := newRigOn(t, c.Server())
			for owner(lua.NewGlobals(g.prefix).Queues) == owner(lua.NewGlobals(g.prefix).Defaults) {
				g = newRigOn(t, c.Server())
			}
			master, queue := owner(lua.NewGlobals(g.prefix).Defaults), "q"
			for i := 0; owner(lua.NewKeys(g.prefix, queue).Stream) == master; i++ {
				queue = fmt.Sprint("q-", i)
			}
			var down atomic.Bool
			v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) {
				if down.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			awaitPosted := func(what string, enough func([]request) bool) {
				t.Helper()
				redistest.Eventually(t, 30*time.Second, func() (bool, string) {
					all := v.requests()
					return enough(all), fmt.Sprint(what, ": ", len(all), " requests", g.log.Lines("circuit"))
				})
			}
			target := to(v.URL)
			target.Queue, target.Failures, target.Interval, target.MaxInterval = queue, 1, 100*time.Millisecond, time.Second
			g.set(target)
			g.newRunner()
			g.schedule(queue, bridge.NewMessage{ID: "before"})
			// After the first request, the worker of the target has read the defaults.
			awaitPosted("before", func(all []request) bool { return len(all) > 0 })

			leave(master)
			down.Store(true)
			g.schedule(queue, bridge.NewMessage{ID: "probe"})
			awaitPosted("a probe while the target is down", func(all []request) bool { return len(all) >= 3 })
			down.Store(false)
			before := len(v.requests())
			awaitPosted("a probe of a target that is well again", func(all []request) bool { return len(all) > before })
			target.Headers = map[string]string{"Version": "2"}
			g.set(target)
			g.schedule(queue, bridge.NewMessage{ID: "after"})
			awaitPosted("a changed target", func(all []request) bool {
				return slices.ContainsFunc(all, func(r request) bool { return r.Get("Version") == "2" })
			})
		})
	}
}
