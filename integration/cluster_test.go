package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// fleet is a stack with many queues, spread over the masters of a cluster, each with a ledger of its own.
type fleet struct {
	*stack
	cluster *redistest.ClusterNodes
	queues  []*stack
}

// newFleet makes a fleet of n queues with the group g. The prefix is one whose registry and defaults are on different
// masters, so that only one of the two can be out of reach.
func newFleet(t testing.TB, c *redistest.ClusterNodes, n int) *fleet {
	t.Helper()
	f := &fleet{stack: newStack(t, c.Server()), cluster: c}
	for {
		g := lua.NewGlobals(f.prefix)
		if c.Owner(c.Slot(g.Queues)) != c.Owner(c.Slot(g.Defaults)) {
			break
		}
		f.stack = newStack(t, c.Server())
	}
	owners := map[*redistest.Server]int{}
	for i := range n {
		one := *f.stack
		one.queue, one.ledger = fmt.Sprintf("%s-%d", f.queue, i), &redistest.Ledger{}
		one.groups("g")
		f.queues = append(f.queues, &one)
		owners[f.owner(&one)]++
	}
	if len(owners) < 3 {
		t.Fatalf("the queues are on %d masters", len(owners))
	}
	return f
}

// owner returns the master of a queue, or nil if it is down.
func (f *fleet) owner(s *stack) *redistest.Server {
	return f.cluster.Owner(f.cluster.Slot(s.keys().Due))
}

// workers runs a worker of the group g for each queue.
func (f *fleet) workers() {
	for _, s := range f.queues {
		s.worker("g", 10, nil)
	}
}

// loads starts one caller for each queue, which schedules messages.
func (f *fleet) loads(client *bridge.Client, name string) map[*stack]*load {
	loads := map[*stack]*load{}
	for _, s := range f.queues {
		loads[s] = s.load(client, name, 1, spreadOver(time.Second))
	}
	return loads
}

// each calls do for all loads concurrently.
func each(loads map[*stack]*load, do func(s *stack, l *load)) {
	var all sync.WaitGroup
	for s, l := range loads {
		all.Go(func() { do(s, l) })
	}
	all.Wait()
}

// empty reports whether nothing of a queue is left, as empty of a stack does. It asks only the queue's master, so it
// also works while another master is down.
func (f *fleet) empty(s *stack) (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	k, c := s.keys(), s.redis.Client
	replies := c.DoMulti(ctx, c.B().Zcard().Key(k.Due).Build(), c.B().Hlen().Key(k.Payload).Build(),
		c.B().Hlen().Key(k.Meta).Build(),
		c.B().Xlen().Key(k.Stream).Build())
	for i, reply := range replies {
		if n, err := reply.AsInt64(); n > 0 || err != nil {
			what := []string{"members", "bodies", "metas", "entries"}[i]
			return false, fmt.Sprintf("%s: %d %s are left: %v", s.queue, n, what, err)
		}
	}
	return true, ""
}

// awaitSettledQueue waits until the group g has got all messages of the queue, and nothing of the queue is left.
func (f *fleet) awaitSettledQueue(s *stack, timeout time.Duration) redistest.Result {
	f.t.Helper()
	redistest.Eventually(f.t, timeout, func() (bool, string) {
		if r := s.ledger.Summary("g"); r.Lost > 0 {
			return false, fmt.Sprintf("%s: %v", s.queue, r)
		}
		return f.empty(s)
	})
	return s.ledger.Check(f.t, "g")
}

// awaitSettled does the same for all queues, and adds up their results.
func (f *fleet) awaitSettled(timeout time.Duration) (sum redistest.Result) {
	f.t.Helper()
	for _, s := range f.queues {
		r := f.awaitSettledQueue(s, timeout)
		sum.Sent, sum.Delivered, sum.Duplicated = sum.Sent+r.Sent, sum.Delivered+r.Delivered, sum.Duplicated+r.Duplicated
		sum.Lost, sum.Early = sum.Lost+r.Lost, sum.Early+r.Early
	}
	return sum
}

// No message that was accepted with Replicated(1) is lost (guarantee G1) when one of three masters of a cluster is
// killed under load and its replica takes over. The queues of the other masters go on meanwhile.
func TestG1ClusterFailoverLosesNothingReplicated(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	f := newFleet(t, c, 12)
	f.bridge(quick())
	f.bridge(quick())
	f.workers()
	loads := f.loads(f.durably(bridge.Replicated(1)), "m")
	each(loads, func(_ *stack, l *load) { l.awaitMore(50) })
	slot := c.Slot(f.queues[0].keys().Due)
	master := c.Owner(slot)
	master.Kill()
	killed := time.Now()
	each(loads, func(s *stack, l *load) {
		if f.owner(s) != nil { // a live master
			l.awaitMore(50)
		}
	})
	c.Promoted(slot, master)
	master.Start() // it becomes the replica of the new master, which could not confirm Replicated(1) without one
	each(loads, func(_ *stack, l *load) { l.awaitMore(50) })
	t.Logf("all queues went on within %v", time.Since(killed).Round(time.Millisecond))
	failures := map[string]int{}
	for _, l := range loads {
		l.end()
		for kind, n := range l.failures {
			failures[kind] += n
		}
	}
	t.Logf("%v; failed calls: %v", f.awaitSettled(40*time.Second), failures)
}

// A failover of a cluster under load, with the default durability. Only messages that the killed master accepted after
// the replica was last in sync (IDs "window-…") may be lost. The test counts them.
func TestClusterFailoverLosesOnlyWhatWasNotReplicated(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	f := newFleet(t, c, 12)
	f.bridge(quick())
	f.workers()
	before := f.loads(f.client, "before")
	each(before, func(_ *stack, l *load) { l.awaitMore(50); l.end() })
	slot := c.Slot(f.queues[0].keys().Due)
	master := c.Owner(slot)
	hit := map[*stack]bool{} // the queues of the master that will be killed
	for _, s := range f.queues {
		hit[s] = f.owner(s) == master
	}
	c.InSync(master)
	window := f.loads(f.client, "window")
	each(window, func(_ *stack, l *load) { l.awaitMore(50) })
	master.Kill()
	c.Promoted(slot, master)
	each(window, func(_ *stack, l *load) { l.awaitMore(50); l.end() })
	lost, accepted := 0, int64(0)
	for _, s := range f.queues {
		redistest.Eventually(t, 40*time.Second, func() (bool, string) { return f.empty(s) })
		missing := s.ledger.Missing("g", 1e6)
		for _, id := range missing {
			if !hit[s] || id[0] == 'b' { // b: a message of the load "before", which the replica has
				t.Errorf("%s of %s is lost: it was replicated, or its master lives", id, s.queue)
			}
		}
		lost, accepted = lost+len(missing), accepted+window[s].accepted.Load()
		if r := s.ledger.Summary("g"); r.Early > 0 || r.Unexpected > 0 {
			t.Errorf("%s: %v", s.queue, r)
		}
	}
	t.Logf("lost %d of %d messages that were accepted around the failover", lost, accepted)
}

// A slot with a live queue moves to another master and back, key by key, under load. Messages of this queue may be
// late, but none is lost (guarantee G1). The other queues, on both masters, go on at every step.
func TestG1SlotMigrationLosesNothing(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	f := newFleet(t, c, 6)
	f.bridge(quick())
	f.bridge(quick())
	f.workers()
	loads := f.loads(f.client, "m")
	each(loads, func(_ *stack, l *load) { l.awaitMore(50) })
	moving := f.queues[0]
	slot := c.Slot(moving.keys().Due)
	home := f.owner(moving)
	var away *redistest.Server
	for _, s := range c.Servers {
		if s != home {
			away = s
		}
	}
	for _, to := range []*redistest.Server{away, home} {
		steps := 0
		keys := c.Migrate(slot, to, func() {
			steps++
			each(loads, func(s *stack, l *load) {
				if s != moving {
					l.awaitMore(5)
				}
			})
		})
		t.Logf("%d keys moved in %d steps", keys, steps)
		if keys < 3 {
			t.Errorf("only %d keys moved: the queue was not in use", keys)
		}
		loads[moving].awaitMore(20)
	}
	for _, l := range loads {
		l.end()
	}
	t.Logf("%v; of the moved queue: %v", f.awaitSettled(40*time.Second), loads[moving])
}

// One of three masters, which have no replicas, is away for longer than any timeout. In one case it is killed, and in
// the other it hangs, so that connections to it stay open and nothing answers. It is the master of a key that all
// queues share: the heartbeats or the registry. Meanwhile messages in the queues of the other masters are scheduled,
// delivered in time, reclaimed and freed. The queues of the lost master go on when it is back.
func TestQueuesOfOtherMastersGoOnWhileOneIsAway(t *testing.T) {
	t.Parallel()
	for _, away := range []struct {
		name     string
		of       func(lua.Globals) string // the shared key on that master
		go_, end func(*redistest.Server)
	}{
		{"killed", func(g lua.Globals) string { return g.Bridges }, (*redistest.Server).Kill, (*redistest.Server).Start},
		{"hanging", func(g lua.Globals) string { return g.Queues }, (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(away.name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Cluster(t, 3, 0, "--appendonly", "yes", "--appendfsync", "always")
			f := newFleet(t, c, 12)
			globals := lua.NewGlobals(f.prefix)
			f.bridge(quick())
			f.bridge(quick())
			f.workers()
			down := c.Owner(c.Slot(away.of(globals)))
			// Loads of queues on the masters that stay, and of queues on the master that goes down.
			here, there := map[*stack]*load{}, map[*stack]*load{}
			for s, l := range f.loads(f.client, "m") {
				if f.owner(s) == down {
					there[s] = l
				} else {
					here[s] = l
				}
			}
			each(here, func(_ *stack, l *load) { l.awaitMore(20) })
			each(there, func(_ *stack, l *load) { l.awaitMore(20) })
			away.go_(down)
			began := time.Now()
			fresh := f.durably(bridge.Accepted) // a client that starts now, and has read nothing from the lost master
			for s := range here {               // only one of these queues
				for i := range 20 { // without an ID, because a chosen ID waits until the registry can be read
					receipt, err := fresh.Schedule(t.Context(), s.queue, []byte(fmt.Sprint("fresh-", i)))
					if err != nil {
						t.Fatalf("a client that starts while a master is away: %v", err)
					}
					s.ledger.Sent(receipt.ID, receipt.Due.UnixMilli())
				}
				// The defaults, which a new worker needs, are on another master than the registry, so they can be read
				// in the case "hanging". In the case "killed" they may be on the lost master.
				if away.name == "hanging" {
					got, kept := make(chan string, 10000), time.Second*3/2 // kept: how long the handler keeps a message
					s.worker("late", 1, func(ctx context.Context, m *bridge.Message) error {
						// The first message is kept for longer than the visibility timeout, so the worker must extend
						// its delivery.
						timer := time.NewTimer(kept)
						defer timer.Stop()
						kept = 0
						select {
						case <-timer.C:
							got <- m.ID
							return nil
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					})
					select {
					case <-got:
					case <-time.After(10 * time.Second):
						t.Error("a worker that starts while the registry is away handles nothing")
					}
				}
				break
			}
			for time.Since(began) < 8*time.Second {
				each(here, func(_ *stack, l *load) { l.awaitMore(20) })
			}
			t.Logf("%d queues go on, %d wait", len(here), len(there))
			each(here, func(s *stack, l *load) { l.end() })
			for s := range here {
				f.awaitSettledQueue(s, 5*time.Second)
			}
			away.end(down)
			each(there, func(s *stack, l *load) { l.awaitMore(5); l.end() })
			t.Log(f.awaitSettled(40 * time.Second))
		})
	}
}

// The entries of a dead worker are reclaimed even while another master is down that holds the heartbeats, because a
// reclaim depends only on the master of its queue.
func TestAbandonedIsReclaimedWhileAnotherMasterIsAway(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	f := newFleet(t, c, 12)
	policy := quick()
	policy.VisibilityTimeout = 3 * time.Second // longer than bridges take to notice that a server is down
	f.bridge(policy)
	down := c.Owner(c.Slot(lua.NewGlobals(f.prefix).Bridges))
	var s *stack
	for _, one := range f.queues {
		if f.owner(one) != down {
			s = one
		}
	}
	// Three consumers read the message one after another, and none comes back. The reclaim after the first shows that
	// the bridge has read the policy, so the master is killed only after the second.
	c0 := s.redis.Client
	s.schedule(1, "m", spreadOver(0))
	for attempt := 1; attempt <= 3; attempt++ {
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			read := c0.B().Xreadgroup().Group("g",
				fmt.Sprint("gone-", attempt)).Count(1).Streams().Key(s.keys().Stream).Id(">").Build()
			found, err := c0.Do(t.Context(), read).AsXRead()
			for _, entry := range found[s.keys().Stream] {
				if got := entry.FieldValues["attempt"]; got != fmt.Sprint(attempt) {
					t.Errorf("attempt %s after %d deliveries", got, attempt)
				}
			}
			return len(found) == 1, fmt.Sprintf("attempt %d: nothing to read: %v", attempt, err)
		})
		if attempt == 2 {
			down.Kill()
		}
	}
}

// While the master of the defaults is away, workers still learn that their queue is resumed, and of a new time limit
// for handlers. Regression: workers read the settings of their queue together with the defaults, so they learned
// neither.
func TestWorkersHearOfNewSettingsWhileTheMasterOfTheDefaultsIsAway(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill, "hanging": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Cluster(t, 3, 0)
			f := newFleet(t, c, 12)
			f.bridge(patient())
			op := f.operator()
			down := c.Owner(c.Slot(lua.NewGlobals(f.prefix).Defaults))
			here := slices.DeleteFunc(slices.Clone(f.queues), func(s *stack) bool { return f.owner(s) == down })
			paused, limited := here[0], here[1]

			if _, err := op.PauseWorkers(t.Context(), paused.queue); err != nil {
				t.Fatal(err)
			}
			paused.worker("late", 1, nil)
			// The worker creates its group after it has read that its queue is paused.
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				var groups []view.GroupInfo
				err := view.Ask(t.Context(), f.redis.Client, view.GroupsOf(f.redis.Client, paused.keys().Stream, &groups))
				return slices.ContainsFunc(groups, func(g view.GroupInfo) bool { return g.Name == "late" }),
					fmt.Sprint("groups: ", groups, err)
			})
			began, ended := make(chan string, 100), make(chan error, 100)
			limited.worker("g", 1, func(ctx context.Context, m *bridge.Message) error {
				began <- m.ID
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil
			})
			limited.schedule(1, "limited", spreadOver(0))
			receive(t, began)

			leave(down)
			if _, err := op.Pause(t.Context(), paused.queue, false); err != nil {
				t.Fatal(err)
			}
			limit := 100 * time.Millisecond
			if err := op.WritePolicy(t.Context(), limited.queue, "", admin.PolicyUpdate{HandlerTimeout: &limit}); err != nil {
				t.Fatal(err)
			}
			paused.schedule(1, "paused", spreadOver(0))
			redistest.Want(t, "cause of the end of a handler", receive(t, ended), bridge.ErrHandlerTimeout)
			f.awaitSettledQueue(limited, 30*time.Second)
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				r := paused.ledger.Summary("late")
				return r.Lost == 0, fmt.Sprint("of the queue that was resumed: ", r)
			})
		})
	}
}

// receive waits for the next value of a channel, and returns it.
func receive[T any](t *testing.T, from <-chan T) (one T) {
	t.Helper()
	select {
	case one = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing has come for 30 s")
	}
	return one
}
