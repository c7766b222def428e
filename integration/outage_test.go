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

// A server that is killed and started again, with its append-only file: nothing accepted is lost, groups and bridges go on by
// themselves.
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
				receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), bridge.WithID(id), bridge.In(within(2*time.Second)(i)))
				switch {
				case err == nil:
					s.ledger.Sent(id, receipt.Due.UnixMilli())
				case errors.Is(err, bridge.ErrDuplicate): // of itself: an earlier try had been taken
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

// An outage longer than the visibility timeout is not an attempt: handlers that run on through it keep their deliveries.
func TestOutageLongerThanTheVisibilityTimeoutBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStack(t, server)
	s.groups("g")
	policy := quick()
	policy.MaxAttempts = 1 // a burnt attempt would be a dead letter
	s.bridge(policy)
	const n = 40
	finish := make(chan struct{})
	var running atomic.Int64
	s.worker("g", n, func(ctx context.Context, m *bridge.Message) error {
		running.Add(1)
		<-finish // on purpose deaf to its context: the outage is longer than the visibility timeout
		return nil
	})
	s.schedule(n, "m", within(0))
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return running.Load() == n, fmt.Sprint(running.Load(), " run") })
	server.Pause()
	<-time.After(5 * policy.VisibilityTimeout) // the length of the outage
	server.Resume()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		_, err := s.raw("PING").ToString()
		return err == nil, fmt.Sprint(err)
	})
	<-time.After(2 * policy.VisibilityTimeout) // time enough to reclaim what should not be
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters after an outage", dead)
	}
	if running.Load() != n {
		t.Errorf("%d deliveries of %d messages", running.Load(), n)
	}
	close(finish)
	s.settled(20*time.Second, "g")
}

// FLUSHALL loses what was there, by the operator's own command; everything sent after it flows, to groups created again at 0.
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

// A key of a wrong type stops its own queue only, is reported once, and the queue goes on when it is gone.
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
