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
	"github.com/duestream/duestream/lua"
)

func stringReader(s string) *strings.Reader { return strings.NewReader(s) }

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
					bridge.In(within(2*time.Second)(i)))
				switch {
				case err == nil:
					s.ledger.Sent(id, receipt.Due.UnixMilli())
				case errors.Is(err, bridge.ErrDuplicate): // of itself: an earlier attempt was accepted
					s.ledger.Sent(id, 0)
				default:
					refused.Add(1)
					s.ledger.MaybeSent(id, 0)
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
	s.settled(60*time.Second, "a", "b")
	t.Logf("not accepted: %d", refused.Load())
}

// An outage that is longer than the visibility timeout does not cost an attempt: handlers that keep running keep
// their deliveries.
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
		<-finish // ignores its context on purpose: the outage is longer than the visibility timeout
		return nil
	})
	s.schedule(n, "m", within(0))
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
	s.settled(20*time.Second, "g")
}

// FLUSHALL loses what was stored, as the operator asked. Everything sent after it is delivered, to groups that are
// created again at 0.
func TestEverythingFlowsAgainAfterAFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	for round := range 3 {
		s.schedule(50, fmt.Sprintf("r%d-", round), within(300*time.Millisecond))
		s.settled(30*time.Second, "g")
		if err := s.raw("FLUSHALL").Error(); err != nil {
			t.Fatal(err)
		}
	}
	s.schedule(50, "last-", within(300*time.Millisecond))
	s.settled(30*time.Second, "g")
}

// A key of a wrong type stops only its own queue and is reported once. The queue continues when the key is gone.
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
	s.schedule(200, "m", within(500*time.Millisecond))
	s.settled(20*time.Second, "g")
	if n := s.number("ZCARD", broken.Due); n != 1 {
		t.Errorf("broken queue: %d members", n)
	}
	s.raw("DEL", broken.Payload)
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return s.number("XLEN", broken.Stream) == 1, "the mended queue is not drained"
	})
}

// A server becomes a read-only replica, as an old master does after a failover, and then a master again. Nothing
// accepted is lost.
func TestReadOnlyServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	s.schedule(300, "before-", within(3*time.Second))
	for round := range 2 {
		if err := s.raw("REPLICAOF", "127.0.0.1", "1").Error(); err != nil {
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
	s.settled(30*time.Second, "g")
}

// Entries that others add to the stream or delete from it stop nothing: each is delivered, or becomes a dead letter
// with the reason.
func TestForeignEntriesAreDeliveredOrDeadLettered(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	k := s.keys()
	policy := quick()
	policy.VisibilityTimeout = 300 * time.Millisecond
	s.bridge(policy)

	// Read and abandoned, then deleted by somebody: only its entry ID is known.
	lost, err := s.raw("XADD", k.Stream, "*", "id", "lost").ToString()
	if err != nil {
		t.Fatal(err)
	}
	s.raw("XREADGROUP", "GROUP", "g", "someone", "COUNT", "1", "STREAMS", k.Stream, ">")
	s.raw("XDEL", k.Stream, lost)

	handled := make(chan *bridge.Message, 10)
	s.worker("g", 1, func(_ context.Context, m *bridge.Message) error {
		handled <- m
		if m.ID == "damaged" {
			return errors.New("not today")
		}
		return nil
	})
	s.raw("XADD", k.Stream, "*", "colour", "blue")
	m := <-handled
	if m.ID != m.EntryID || m.Attempt != 1 || m.Extra["colour"] != "blue" {
		t.Errorf("foreign entry: %+v", m)
	}
	s.raw("XADD", k.Stream, "*", "id", "damaged", "attempt", "abc", "payload", "kept")
	<-handled
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		n := s.number("XLEN", k.Dead)
		return n == 2, fmt.Sprint(n, " dead letters")
	})
	letters, err := s.raw("XRANGE", k.Dead, "-", "+").AsXRange()
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, l := range letters {
		reasons[l.FieldValues["reason"]] = l.FieldValues["entry"] + " " + l.FieldValues["group"] + " " +
			l.FieldValues["payload"] + l.FieldValues["attempt"]
	}
	if got := reasons[lua.ReasonBodyLost]; got != lost+" g " {
		t.Errorf("lost body: %q", got)
	}
	if got := reasons[lua.ReasonMalformed]; !strings.HasSuffix(got, " g keptabc") {
		t.Errorf("damaged entry: %q", got)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return s.empty("g") })
}
