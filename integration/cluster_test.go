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

func newFleet(t testing.TB, c *redistest.ClusterNodes, n int) *fleet {
	t.Helper()
	f := &fleet{stack: newStack(t, c.Server()), cluster: c}
	for { // registry and defaults on different servers, so that only one of them can be down
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

func (f *fleet) owner(s *stack) *redistest.Server {
	return f.cluster.Owner(f.cluster.Slot(s.keys().Due))
}

// workers runs a worker for each queue.
func (f *fleet) workers() {
	for _, s := range f.queues {
		s.worker("g", 10, nil)
	}
}

// loads starts one caller for each queue.
func (f *fleet) loads(client *bridge.Client, name string) map[*stack]*load {
	loads := map[*stack]*load{}
	for _, s := range f.queues {
		loads[s] = s.load(client, name, 1, within(time.Second))
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

// empty is the empty of a stack, with commands that go only to the queue's master.
func (f *fleet) empty(s *stack) (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	k, c := s.keys(), s.redis.Client
	replies := c.DoMulti(ctx, c.B().Zcard().Key(k.Due).Build(), c.B().Hlen().Key(k.Payload).Build(),
		c.B().Hlen().Key(k.Meta).Build(),
		c.B().Xlen().Key(k.Stream).Build())
	for i, reply := range replies {
		if n, err := reply.AsInt64(); n > 0 || err != nil {
			return false, fmt.Sprintf("%s: %d members, bodies, metas or entries (%d) are left: %v", s.queue, n, i, err)
		}
	}
	return true, ""
}

// settle waits until the queue's group has all messages, and nothing of the queue is left.
func (f *fleet) settle(s *stack, timeout time.Duration) redistest.Result {
	f.t.Helper()
	redistest.Eventually(f.t, timeout, func() (bool, string) {
		if r := s.ledger.Summary("g"); r.Lost > 0 {
			return false, fmt.Sprintf("%s: %v", s.queue, r)
		}
		return f.empty(s)
	})
	return s.ledger.Check(f.t, "g")
}

// settled waits for all queues, and adds up their results.
func (f *fleet) settled(timeout time.Duration) (sum redistest.Result) {
	f.t.Helper()
	for _, s := range f.queues {
		r := f.settle(s, timeout)
		sum.Sent, sum.Delivered, sum.Duplicated = sum.Sent+r.Sent, sum.Delivered+r.Delivered, sum.Duplicated+r.Duplicated
		sum.Lost, sum.Early = sum.Lost+r.Lost, sum.Early+r.Early
	}
	return sum
}

// G1 with a failover of a cluster: the master of a third of the queues is killed under load. No message accepted with
// Replicated(1) is lost. The queues of the other masters go on meanwhile.
func TestG1ClusterFailoverLosesNothingReplicated(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	f := newFleet(t, c, 12)
	f.bridge(quick())
	f.bridge(quick())
	f.workers()
	loads := f.loads(f.durably(bridge.Replicated(1)), "m")
	each(loads, func(_ *stack, l *load) { l.more(50) })
	slot := c.Slot(f.queues[0].keys().Due)
	master := c.Owner(slot)
	master.Kill()
	killed := time.Now()
	each(loads, func(s *stack, l *load) {
		if f.owner(s) != nil { // a live master
			l.more(50)
		}
	})
	c.Promoted(slot, master)
	master.Start() // as a replica: before that, the new master has nothing to replicate to
	each(loads, func(_ *stack, l *load) { l.more(50) })
	t.Logf("all queues went on within %v", time.Since(killed).Round(time.Millisecond))
	others := map[string]int{}
	for _, l := range loads {
		l.end()
		for kind, n := range l.others {
			others[kind] += n
		}
	}
	t.Logf("%v; refused: %v", f.settled(40*time.Second), others)
}

// The default durability with a failover of a cluster under load: lost messages are counted. Only messages that the
// killed master accepted in the last moments may be lost.
func TestClusterFailoverLosesOnlyWhatWasNotReplicated(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	f := newFleet(t, c, 12)
	f.bridge(quick())
	f.workers()
	before := f.loads(f.client, "before")
	each(before, func(_ *stack, l *load) { l.more(50); l.end() })
	slot := c.Slot(f.queues[0].keys().Due)
	master := c.Owner(slot)
	hit := map[*stack]bool{}
	for _, s := range f.queues {
		hit[s] = f.owner(s) == master
	}
	c.InSync(master)
	window := f.loads(f.client, "window")
	each(window, func(_ *stack, l *load) { l.more(50) })
	master.Kill()
	c.Promoted(slot, master)
	each(window, func(_ *stack, l *load) { l.more(50); l.end() })
	lost, accepted := 0, int64(0)
	for _, s := range f.queues {
		redistest.Eventually(t, 40*time.Second, func() (bool, string) { return f.empty(s) })
		missing := s.ledger.Missing("g", 1e6)
		for _, id := range missing {
			if !hit[s] || id[0] == 'b' {
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

// A slot with a live queue moves to another master and back, key by key, under load. Its messages are late, none is
// lost, and the other queues, on both masters, go on at every step.
func TestG1SlotMigrationLosesNothing(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	f := newFleet(t, c, 6)
	f.bridge(quick())
	f.bridge(quick())
	f.workers()
	loads := f.loads(f.client, "m")
	each(loads, func(_ *stack, l *load) { l.more(50) })
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
					l.more(5)
				}
			})
		})
		t.Logf("%d keys moved in %d steps", keys, steps)
		if keys < 3 {
			t.Errorf("only %d keys moved: the queue was not in use", keys)
		}
		loads[moving].more(20)
	}
	for _, l := range loads {
		l.end()
	}
	t.Logf("%v; of the moved queue: %v", f.settled(40*time.Second), loads[moving])
}

// One of three masters is down for longer than any timeout, without a replica: once killed, and once hanging, which
// no client is told. Meanwhile the queues of the others are scheduled, delivered in time, reclaimed and freed,
// whichever shared key is out of reach. The queues of the lost master go on when it is back.
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
			here, there := map[*stack]*load{}, map[*stack]*load{}
			for s, l := range f.loads(f.client, "m") {
				if f.owner(s) == down {
					there[s] = l
				} else {
					here[s] = l
				}
			}
			each(here, func(_ *stack, l *load) { l.more(20) })
			each(there, func(_ *stack, l *load) { l.more(20) })
			away.go_(down)
			began := time.Now()
			fresh := f.durably(bridge.Accepted) // a client that starts now
			for s := range here {
				for i := range 20 { // without an ID, because a chosen ID waits until the registry can be read
					receipt, err := fresh.Schedule(t.Context(), s.queue, []byte(fmt.Sprint("fresh-", i)))
					if err != nil {
						t.Fatalf("a client that starts while a master is away: %v", err)
					}
					s.ledger.Sent(receipt.ID, receipt.Due.UnixMilli())
				}
				if away.name == "hanging" { // a worker needs the defaults, which are elsewhere
					got, kept := make(chan string, 10000), time.Second*3/2
					s.worker("late", 1, func(ctx context.Context, m *bridge.Message) error {
						timer := time.NewTimer(kept) // longer than the visibility timeout: it must be extended
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
				each(here, func(_ *stack, l *load) { l.more(20) })
			}
			t.Logf("%d queues go on, %d wait", len(here), len(there))
			each(here, func(s *stack, l *load) { l.end() })
			for s := range here {
				f.settle(s, 5*time.Second)
			}
			away.end(down)
			each(there, func(s *stack, l *load) { l.more(5); l.end() })
			t.Log(f.settled(40 * time.Second))
		})
	}
}

// The entries of a dead worker are reclaimed even while another master is down, and even if that one holds the
// heartbeats: each queue depends only on its own server.
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
	// Consumers read it one after another, and none comes back. The first reclaim shows that the bridge knows the
	// policy.
	c0 := s.redis.Client
	s.schedule(1, "m", within(0))
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

// Workers used to read the settings of their queue together with the defaults. While the master of the defaults was
// away, messages of a resumed queue were not delivered, and a new time limit ended no handler.
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
			redistest.Eventually(t, 30*time.Second, func() (bool, string) { // it knows that it is paused
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
			limited.schedule(1, "limited", within(0))
			receive(t, began)

			leave(down)
			if _, err := op.Pause(t.Context(), paused.queue, false); err != nil {
				t.Fatal(err)
			}
			limit := 100 * time.Millisecond
			if err := op.WritePolicy(t.Context(), limited.queue, "", admin.PolicyUpdate{HandlerTimeout: &limit}); err != nil {
				t.Fatal(err)
			}
			paused.schedule(1, "paused", within(0))
			redistest.Want(t, "a handler ends for", receive(t, ended), bridge.ErrHandlerTimeout)
			f.settle(limited, 30*time.Second)
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				r := paused.ledger.Summary("late")
				return r.Lost == 0, fmt.Sprint("of the queue that was resumed: ", r)
			})
		})
	}
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, from <-chan T) (one T) {
	t.Helper()
	select {
	case one = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing has come for 30 s")
	}
	return one
}
