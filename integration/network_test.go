package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// Faults of the network, and of a server that still runs. At its end, each test checks its ledger, and then calls
//
//   - wantLog(faults, parts): no bridge or worker may report more outages than there were faults. parts is the number
//     of bridges or workers that have the same name in the log;
//   - wantGoroutines: no goroutines pile up.

// Connections are cut before a request gets through, after it was executed, and in the middle of its reply. Nothing
// is lost and nothing is scheduled twice. No delivery counts as failed: if a cut connection loses the reply to a read,
// the same worker finds the entries of that read again.
func TestCutConnectionsLoseNothing(t *testing.T) {
	for name, cut := range map[string]struct {
		arm  func(p *redistest.Proxy, commands ...string)
		done func(p *redistest.Proxy) int
	}{
		"before the write": {func(p *redistest.Proxy, c ...string) { p.CutBeforeForward(1, c...) },
			(*redistest.Proxy).Drops},
		"after the write": {func(p *redistest.Proxy, c ...string) { p.CutAfterForward(1, c...) },
			(*redistest.Proxy).Cuts},
		"in the middle of a reply": {func(p *redistest.Proxy, c ...string) { p.CutMidReply(1, c...) }, (*redistest.Proxy).Tears},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, redistest.Shared(t))
			n.groups("g")
			policy := quick()
			policy.VisibilityTimeout = time.Minute // longer than the test, so that no reclaim hides a lost delivery
			n.far.bridge(policy)
			n.far.bridge(policy)
			var laterAttempts atomic.Int64
			n.far.worker("g", 20, func(_ context.Context, m *bridge.Message) error {
				if m.Attempt > 1 {
					laterAttempts.Add(1)
				}
				return nil
			})
			n.warm("g")
			stop := n.produce()
			const cuts = 20
			commands := [][]string{{"EVALSHA"}, {"XREADGROUP"}, {"EVALSHA", "XREADGROUP", "XREAD"}}
			for i := range cuts {
				before := cut.done(n.proxy)
				cut.arm(n.proxy, commands[i%len(commands)]...)
				armed := time.Now()
				redistest.Eventually(t, 20*time.Second, func() (bool, string) {
					// The armed cut may never happen, because its connection was closed for another reason: arm it
					// again.
					if time.Since(armed) > 3*time.Second {
						cut.arm(n.proxy, commands[i%len(commands)]...)
						armed = time.Now()
					}
					return cut.done(n.proxy) > before, "nothing to cut"
				})
			}
			stop()
			result := n.awaitSettled(30*time.Second, "g")
			if laterAttempts.Load() > 0 || result.Duplicated > 0 {
				t.Errorf("%d later attempts, %d delivered again", laterAttempts.Load(), result.Duplicated)
			}
			n.wantLog(cuts, 2)
			n.wantGoroutines()
		})
	}
}

// A network that is slow in both directions only causes delays: nothing counts as a failure.
func TestSlowNetworkOnlyDelays(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	n.far.bridge(quick())
	n.far.worker("g", 20, nil)
	n.warm("g")
	stop := n.produce()
	for _, delay := range []time.Duration{5, 60, 20} { // milliseconds
		n.proxy.Slow(delay * time.Millisecond)
		n.awaitMore("g", 20)
	}
	stop()
	if result := n.awaitSettled(30*time.Second, "g"); result.Duplicated > 0 {
		t.Errorf("%d delivered again", result.Duplicated)
	}
	n.wantLog(0, 1)
	n.wantGoroutines()
}

// The server refuses all connections for a while, and the bridge and the worker keep trying. Each of their loops logs
// the failure once, and logs once that it works again.
func TestRefusedConnectionsAreReportedOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	n.far.bridge(quick())
	n.far.worker("g", 20, nil)
	n.warm("g")
	n.proxy.Refuse(true)
	n.proxy.CutAll()
	<-time.After(2 * time.Second) // long enough for many attempts
	n.proxy.Refuse(false)
	n.schedule(100, "after-", spreadOver(time.Second))
	n.awaitSettled(30*time.Second, "g")
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return n.log.count("worker works again") == 1 && n.log.count("heartbeat works again") == 1,
			"not all say that they are back"
	})
	n.wantLog(1, 1)
	n.wantGoroutines()
}

// The network swallows everything for longer than the visibility timeout, for the worker and the bridge alike. The
// contexts of the handlers are cancelled (wait returns when all are). The lost delivery costs no attempt, because the
// bridge was cut off too and could not see it: although the policy allows only one attempt, there is no dead letter.
func TestHalfOpenNetworkTellsHandlersAndBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	policy := quick()
	policy.MaxAttempts = 1
	n.far.bridge(policy)
	const held = 10
	wait := n.cutOff(held)
	wait()
	n.proxy.Stall(false)
	n.schedule(100, "after", spreadOver(time.Second))
	n.awaitSettled(30*time.Second, "g")
	if dead := n.number("XLEN", n.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters after a dead network", dead)
	}
	n.wantLog(1, 1)
	n.wantGoroutines()
}

// Only one worker is cut off. The contexts of its handlers are cancelled, and its entries go to another worker, each at
// the cost of one attempt. The results that the first worker sends when its network works again have no effect.
func TestWorkerBehindHalfOpenNetworkLosesItsDeliveries(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	n.bridge(quick())
	const held = 10
	var highestAttempt atomic.Int64
	wait := n.cutOff(held)
	n.worker("g", held, func(_ context.Context, m *bridge.Message) error {
		highestAttempt.Store(max(highestAttempt.Load(), int64(m.Attempt)))
		return nil
	})
	n.schedule(100, "meanwhile", spreadOver(time.Second))
	result := n.awaitSettled(30*time.Second, "g")
	wait()
	n.proxy.Stall(false)
	n.schedule(100, "after", spreadOver(time.Second))
	n.awaitSettled(30*time.Second, "g")
	if highestAttempt.Load() != 2 || result.Duplicated < held {
		t.Errorf("attempt %d, %d delivered again; want attempt 2 of each of %d", highestAttempt.Load(),
			result.Duplicated, held)
	}
	n.wantLog(1, 1)
	n.wantGoroutines()
}

// The server kills every connection, again and again. Clients connect again, and no message is lost.
func TestKilledConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Own(t))
	n.groups("a", "b")
	n.bridge(quick())
	n.bridge(quick())
	n.worker("a", 20, nil)
	n.worker("b", 20, nil)
	n.warm("a", "b")
	stop := n.produce()
	const kills = 40
	for range kills {
		if _, err := n.admin.Do(context.Background(), n.admin.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME",
			"yes").Build()).AsInt64(); err != nil {
			t.Fatal(err)
		}
		n.awaitMore("a", 1)
	}
	stop()
	n.awaitSettled(40*time.Second, "a", "b")
	n.wantLog(kills, 2)
	n.wantGoroutines()
}

// CLIENT PAUSE of writes, and of everything, lasts longer than the visibility timeout (1.5 s against 1 s), and no
// message is lost. The test unblocks no client during a pause, because CLIENT UNBLOCK then crashes some servers.
func TestPausedClientsLoseNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Own(t))
	n.groups("g")
	n.bridge(quick())
	n.worker("g", 20, nil)
	n.warm("g")
	stop := n.produce()
	for _, what := range []string{"WRITE", "ALL", "WRITE"} {
		if err := n.raw("CLIENT", "PAUSE", "1500", what).Error(); err != nil {
			t.Fatal(err)
		}
		n.awaitMore("g", 30)
	}
	stop()
	n.awaitSettled(30*time.Second, "g")
	n.wantLog(3, 1)
	n.wantGoroutines()
}

// SCRIPT FLUSH under load has no visible effect: a call whose script the server has forgotten loads it again.
func TestFlushedScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Own(t))
	n.groups("g")
	n.bridge(quick())
	n.worker("g", 20, nil)
	n.warm("g")
	stop := n.produce()
	for range 100 {
		if err := n.raw("SCRIPT", "FLUSH").Error(); err != nil {
			t.Fatal(err)
		}
		n.awaitMore("g", 1)
	}
	stop()
	if result := n.awaitSettled(30*time.Second, "g"); result.Duplicated > 0 {
		t.Errorf("%d delivered again", result.Duplicated)
	}
	n.wantLog(0, 1)
	n.wantGoroutines()
}

const groupLost = "consumer group was lost: created again at 0"

// XGROUP DESTROY under load. The worker that first notices it creates the group again at 0, and each loss is logged
// once. Pending messages are delivered again, and nothing is lost.
func TestDestroyedGroupIsCreatedAgain(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	n.bridge(quick())
	n.worker("g", 20, nil)
	n.worker("g", 20, nil)
	n.warm("g")
	stop := n.produce()
	const losses = 8
	for i := range losses {
		n.awaitMore("g", 20)
		if n.number("XGROUP", "DESTROY", n.keys().Stream, "g") != 1 {
			t.Fatalf("loss %d: no such group", i)
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return n.log.count(groupLost) == i+1, fmt.Sprintf("loss %d: %d log lines", i, n.log.count(groupLost))
		})
	}
	stop()
	n.awaitSettled(30*time.Second, "g")
	if lines := n.log.count(groupLost); lines != losses {
		t.Errorf("%d log lines for %d losses", lines, losses)
	}
	n.wantLog(0, 1)
	n.wantGoroutines()
}

// DEL of the stream under load destroys the messages that were ready or pending. deleteStream reads their IDs in the
// same transaction. All other messages are delivered.
func TestDeletedStreamLosesOnlyWhatItHeld(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Shared(t))
	n.groups("g")
	n.bridge(quick())
	n.worker("g", 20, func(context.Context, *bridge.Message) error {
		<-time.After(10 * time.Millisecond) // slow, so that the stream has entries when it is deleted
		return nil
	})
	n.warm("g")
	stop := n.produce()
	destroyed := map[string]bool{}
	const losses = 8
	for i := range losses {
		n.awaitMore("g", 20)
		for _, id := range n.deleteStream() {
			destroyed[id] = true
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return n.log.count(groupLost) == i+1, fmt.Sprintf("loss %d: %d log lines", i, n.log.count(groupLost))
		})
	}
	stop()
	var missing []string
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		missing = n.ledger.Missing("g", 1<<20)
		if lost := slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return destroyed[id] }); len(lost) > 0 {
			return false, fmt.Sprintf("lost, and not by the command: %q", lost[:min(10, len(lost))])
		}
		return n.empty("g")
	})
	result := n.ledger.Summary("g")
	t.Logf("%s; destroyed by the commands: %d of %d entries they hit", result, len(missing), len(destroyed))
	if result.Early > 0 || result.Unexpected > 0 {
		t.Error(result)
	}
	n.wantLog(0, 1)
	n.wantGoroutines()
}

// Memory is full and free again in turns, under load. A refused call to schedule stores nothing, and only the producer
// notices that the memory is full: deliveries go on.
func TestMemoryFullAndRelievedUnderLoad(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, redistest.Own(t, "--maxmemory-policy", "noeviction"))
	n.groups("g")
	n.bridge(quick())
	var calls atomic.Int64
	n.worker("g", 20, func(context.Context, *bridge.Message) error {
		if calls.Add(1)%20 == 0 {
			return errors.New("every twentieth fails")
		}
		return nil
	})
	n.warm("g")
	stop := n.produce()
	for range 4 {
		for _, limit := range []string{"1mb", "0"} {
			if err := n.raw("CONFIG", "SET", "maxmemory", limit).Error(); err != nil {
				t.Fatal(err)
			}
			refused, sent := n.refused.Load(), n.ledger.Summary("g").Sent
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				if limit == "0" {
					return n.ledger.Summary("g").Sent > sent+20, "nothing is accepted"
				}
				return n.refused.Load() > refused+20, "nothing is refused"
			})
		}
	}
	stop()
	n.awaitSettled(30*time.Second, "g")
	n.wantLog(0, 1)
	n.wantGoroutines()
}
