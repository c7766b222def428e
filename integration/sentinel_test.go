package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// No message that was accepted with Replicated(1) is lost (guarantee G1) when the master is killed under load and
// Sentinel promotes a replica. Bridges, workers and clients continue by themselves.
func TestG1SentinelFailoverLosesNothingReplicated(t *testing.T) {
	t.Parallel()
	w := redistest.Sentinels(t, redistest.SentinelOptions{})
	s := newStack(t, w.Server())
	s.groups("a", "b")
	s.bridge(quick())
	s.bridge(quick())
	s.worker("a", 20, nil)
	s.worker("a", 20, nil)
	s.worker("b", 20, nil)
	w.Caught()

	l := s.load(s.durably(bridge.Replicated(1)), "m", 8, spreadOver(2*time.Second))
	l.awaitMore(500)
	master := w.Master()
	killed := time.Now()
	master.Kill()
	l.awaitMore(1)
	t.Logf("first message accepted %v after the master was killed", time.Since(killed).Round(time.Millisecond))
	l.awaitMore(500)
	l.end()
	s.awaitSettled(40*time.Second, "a", "b")
	t.Logf("%v", l)
	if next := w.Promoted(master); next == master {
		t.Error("no failover took place")
	}
}

// A failover with the default durability loses only messages that the replicas had not received. The test cuts the
// replication, and then kills the master. Everything accepted before the cut is delivered. Messages that were accepted
// after the cut and not delivered before the kill are lost, and the test counts them. Servers and sentinels have
// different passwords, as some installations do.
func TestSentinelFailoverLosesOnlyWhatWasNotReplicated(t *testing.T) {
	t.Parallel()
	const sentinelPassword = "s?e&c r@t"
	w := redistest.Sentinels(t, redistest.SentinelOptions{Password: "data", SentinelPassword: sentinelPassword})
	server := w.Server()
	for url, kind := range map[string]error{
		server.URL(): bridge.ErrDenied,
		server.URL() + "&sentinel_password=wrong-secret": bridge.ErrDenied,
	} {
		if _, err := bridge.Dial(t.Context(), url); !errors.Is(err, kind) || strings.Contains(err.Error(), "secret") {
			t.Errorf("without the sentinels' password: %v", err)
		}
	}
	s := newStack(t, w.Authorized())
	s.groups("a", "b")
	s.bridge(quick())
	s.bridge(quick())
	s.worker("a", 20, nil)
	s.worker("b", 20, nil)

	before := s.load(s.client, "before", 4, spreadOver(4*time.Second))
	before.awaitMore(300)
	before.end()
	w.Caught()
	w.CutReplication()
	window := s.load(s.client, "window", 4, func(i int) time.Duration { return time.Duration(i%2) * 5 * time.Second })
	window.awaitMore(300)
	master := w.Master()
	master.Kill()
	window.end() // returns after the failover, because calls that wait for a reply get it from the new master
	w.Promoted(master)
	after := s.load(s.client, "after", 4, spreadOver(time.Second))
	after.awaitMore(300)
	after.end()

	// lost counts the missing deliveries: cut of messages accepted after the cut, whole of all others.
	lost := func() (cut, whole int) {
		for _, group := range []string{"a", "b"} {
			for _, id := range s.ledger.Missing(group, 1e6) {
				if strings.HasPrefix(id, "window") {
					cut++
				} else {
					whole++
				}
			}
		}
		return cut, whole
	}
	redistest.Eventually(t, 40*time.Second, func() (bool, string) {
		if _, whole := lost(); whole > 0 {
			return false, fmt.Sprint(whole, " accepted and replicated messages are missing")
		}
		return s.empty("a", "b")
	})
	cut, _ := lost()
	r := s.ledger.Summary("a", "b")
	t.Logf("%v; accepted after the cut: %d, of these lost: %d of %d deliveries", r, window.accepted.Load(), cut,
		2*window.accepted.Load())
	// If the old master executed a call and its reply was lost, the client repeats the call on the new master, where
	// the message gets a later due time. If the old master had also delivered the message, that delivery counts as
	// early. Each such message came twice, so there are at most as many early deliveries as repeated ones.
	if r.Early > r.Duplicated || r.Unexpected > 0 || r.Lost != cut {
		t.Errorf("%v", r)
	}
	if cut == 0 {
		t.Error("nothing was lost: replication was not cut, so this test shows nothing")
	}
	s.mustRun(build(t), "", "health")
}

// A late acknowledgement must not affect another message that has the same entry ID. This can happen after a failover:
//
//  1. A worker reads entry e, which holds message "old", from a master whose replicas do not have this entry.
//  2. A replica is promoted. A new message gets the entry ID e there, and another consumer of the group reads it.
//  3. The worker, which has sent nothing to Redis meanwhile, acknowledges e.
func TestLateAckAfterFailoverDoesNotTouchANewMessage(t *testing.T) {
	t.Parallel()
	w := redistest.Sentinels(t, redistest.SentinelOptions{})
	s := newStack(t, w.Server())
	s.groups("g")
	policy := quick()
	policy.VisibilityTimeout = time.Hour // so that the worker does not extend e, which would show it that e is lost
	stop := s.bridge(policy)
	w.Caught()
	w.CutReplication()
	held, finish, finished := make(chan string, 1), make(chan struct{}), make(chan bridge.Settlement, 1)
	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: s.dial(s.server.URL()), Prefix: s.prefix, Queue: s.queue, Group: "g", Concurrency: 1, Logger: s.log,
		Handler: func(_ context.Context, m *bridge.Message) error { held <- m.EntryID; <-finish; return nil },
		Settled: func(m *bridge.Message, how bridge.Settlement) { finished <- how },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.run("worker", worker.Run)
	s.send([]bridge.NewMessage{{ID: "old"}})
	entry := <-held
	stop()
	master := w.Master()
	master.Kill()
	w.Promoted(master)

	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		id, err := s.raw("XADD", s.keys().Stream, entry, "id", "new", "payload", "x", "attempt", "1", "due_ms", "1").ToString()
		return err == nil && id == entry, fmt.Sprint(id, err)
	})
	if err := s.raw("XREADGROUP", "GROUP", "g", "other", "COUNT", "1", "STREAMS", s.keys().Stream, ">").Error(); err != nil {
		t.Fatal(err)
	}
	close(finish)
	how := <-finished
	pending, err := s.raw("XPENDING", s.keys().Stream, "g").ToArray()
	if err != nil {
		t.Fatal(err)
	}
	// Unknown is allowed too, because the worker had to repeat the call on a new connection.
	if n, _ := pending[0].AsInt64(); n != 1 || how != bridge.Lost && how != bridge.Unknown {
		t.Errorf("the late acknowledgement was %s, %d entries are pending, should be 1", how, n)
	}
}

// A failover costs no attempt: handlers that keep running keep their deliveries, although the failover lasts longer
// than the visibility timeout. The new master counts the idle time of an entry from the last extend that was
// replicated, so the entries look idle at first.
func TestFailoverBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	w := redistest.Sentinels(t, redistest.SentinelOptions{})
	s := newStack(t, w.Server())
	s.groups("g")
	policy := quick()
	policy.MaxAttempts = 1 // a lost attempt would cause a dead letter
	s.bridge(policy)
	const n = 20
	finish := make(chan struct{})
	var running atomic.Int64
	s.worker("g", n, func(context.Context, *bridge.Message) error {
		running.Add(1)
		<-finish // ignores its context on purpose
		return nil
	})
	s.schedule(n, "m", spreadOver(0))
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return running.Load() == n,
			fmt.Sprint(running.Load(), " run")
	})
	w.Caught()
	master := w.Master()
	began := time.Now()
	master.Kill()
	w.Promoted(master)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		err := s.raw("PING").Error()
		return err == nil, fmt.Sprint(err)
	})
	if outage := time.Since(began); outage < policy.VisibilityTimeout {
		t.Errorf("the outage took %v, shorter than the visibility timeout: this test shows nothing", outage)
	}
	<-time.After(2 * policy.VisibilityTimeout) // enough time for a wrong reclaim to happen
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 || running.Load() != n {
		t.Errorf("%d dead letters, %d deliveries of %d messages", dead, running.Load(), n)
	}
	close(finish)
	s.awaitSettled(20*time.Second, "g")
}
