package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A server with an append-only file is killed and started again. Nothing accepted is lost, and groups and bridges
// continue on their own.
func TestServerKilledAndStartedAgainLosesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStack(t, server)
	s.groups("a", "b")
	s.bridge(quick())
	s.bridge(quick())
	s.worker("a", 20, nil)
	s.worker("b", 20, nil)
	var refused atomic.Int64
	for round := range 4 {
		producing := make(chan struct{})
		go func() {
			defer close(producing)
			for i := range 150 {
				id := fmt.Sprintf("r%d-%d", round, i)
				receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), bridge.WithID(id),
					bridge.In(spreadOver(2*time.Second)(i)))
				s.record(id, receipt, err)
				if err != nil && !errors.Is(err, bridge.ErrDuplicate) {
					refused.Add(1)
				}
			}
		}()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return s.ledger.Summary("a").Sent >= round*150+40, "the producer does not get on"
		})
		server.Kill()
		server.Start()
		<-producing
	}
	s.awaitSettled(60*time.Second, "a", "b")
	t.Logf("not accepted: %d", refused.Load())
}

// An outage that is longer than the visibility timeout costs no attempt: handlers that keep running keep their
// deliveries, and the bridge reclaims none of them after the outage.
func TestOutageLongerThanTheVisibilityTimeoutBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStack(t, server)
	s.groups("g")
	policy := quick()
	policy.MaxAttempts = 1 // a lost attempt would cause a dead letter
	s.bridge(policy)
	const n = 40
	finish := make(chan struct{})
	var running atomic.Int64
	s.worker("g", n, func(ctx context.Context, m *bridge.Message) error {
		running.Add(1)
		<-finish // ignores its context on purpose, so that it still runs after the outage
		return nil
	})
	s.schedule(n, "m", spreadOver(0))
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return running.Load() == n,
			fmt.Sprint(running.Load(), " run")
	})
	server.Pause()
	<-time.After(5 * policy.VisibilityTimeout) // the length of the outage
	server.Resume()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		_, err := s.raw("PING").ToString()
		return err == nil, fmt.Sprint(err)
	})
	<-time.After(2 * policy.VisibilityTimeout) // enough time for a wrong reclaim to happen
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters after an outage", dead)
	}
	if running.Load() != n {
		t.Errorf("%d deliveries of %d messages", running.Load(), n)
	}
	close(finish)
	s.awaitSettled(20*time.Second, "g")
}

// FLUSHALL loses what was stored, as the operator asked. Everything that is sent after it is delivered, because workers
// create their groups again, at the begin of the stream.
func TestEverythingFlowsAgainAfterAFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	for round := range 3 {
		s.schedule(50, fmt.Sprintf("r%d-", round), spreadOver(300*time.Millisecond))
		s.awaitSettled(30*time.Second, "g")
		if err := s.raw("FLUSHALL").Error(); err != nil {
			t.Fatal(err)
		}
	}
	s.schedule(50, "last-", spreadOver(300*time.Millisecond))
	s.awaitSettled(30*time.Second, "g")
}

// A key of a wrong type stops only its own queue. The queue continues when the key is deleted.
func TestKeyOfWrongTypeStopsItsOwnQueueOnly(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	broken := lua.NewKeys(s.prefix, "broken")
	s.raw("ZADD", broken.Due, "1", "m")
	s.raw("SET", broken.Payload, "not a hash")
	if _, err := lua.Register(context.Background(), s.redis.Client, lua.NewGlobals(s.prefix), []string{"broken"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Schedule(context.Background(), "broken", nil); !errors.Is(err, bridge.ErrWrongType) {
		t.Errorf("Schedule: %v", err)
	}
	s.schedule(200, "m", spreadOver(500*time.Millisecond))
	s.awaitSettled(20*time.Second, "g")
	if n := s.number("ZCARD", broken.Due); n != 1 {
		t.Errorf("broken queue: %d members", n)
	}
	s.raw("DEL", broken.Payload)
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return s.number("XLEN", broken.Stream) == 1, "the mended queue is not drained"
	})
}

// A server becomes a read-only replica, as an old master does after a failover, and then a master again. A call to
// schedule waits until the server is a master again, and nothing accepted is lost.
func TestReadOnlyServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	s.schedule(300, "before-", spreadOver(3*time.Second))
	for round := range 2 {
		if err := s.raw("REPLICAOF", "127.0.0.1", "1").Error(); err != nil { // no server listens on port 1
			t.Fatal(err)
		}
		scheduled := make(chan error, 1)
		id := fmt.Sprint("meanwhile-", round)
		go func() {
			receipt, err := s.client.Schedule(context.Background(), s.queue, nil, bridge.WithID(id))
			if err == nil {
				s.ledger.Sent(id, receipt.Due.UnixMilli())
			}
			scheduled <- err
		}()
		before := server.Calls(t)["evalsha"]
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			calls := server.Calls(t)["evalsha"] - before
			return calls > 10, fmt.Sprint(calls, " calls ran into the read-only server")
		})
		if err := s.raw("REPLICAOF", "NO", "ONE").Error(); err != nil {
			t.Fatal(err)
		}
		if err := <-scheduled; err != nil {
			t.Errorf("Schedule across a read-only spell: %v", err)
		}
	}
	s.awaitSettled(30*time.Second, "g")
}
