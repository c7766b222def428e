package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// clientWith returns a client of the stack's server with a durability of its own.
func (s *stack) clientWith(d bridge.Durability) (*bridge.Client, error) {
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, Logger: s.log, Durability: d})
	if err == nil {
		s.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// mustClientWith is clientWith for a durability that must be valid.
func (s *stack) mustClientWith(d bridge.Durability) *bridge.Client {
	s.t.Helper()
	c, err := s.clientWith(d)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// scheduleEach schedules n messages for tomorrow in concurrent calls, and returns the error of each call. Their IDs are
// the given ID followed by 0 to n-1.
func (s *stack) scheduleEach(c *bridge.Client, id string, n int) (errs []error) {
	errs = make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			_, errs[i] = c.Schedule(context.Background(), s.queue, nil, bridge.WithID(fmt.Sprint(id, i)), bridge.In(24*time.Hour))
		})
	}
	calls.Wait()
	return errs
}

// mustSchedule is scheduleEach for calls that must succeed.
func (s *stack) mustSchedule(c *bridge.Client, id string, n int) {
	s.t.Helper()
	if err := errors.Join(s.scheduleEach(c, id, n)...); err != nil {
		s.t.Fatal(err)
	}
}

// countScheduled returns how many of the n messages that scheduleEach names after this ID are scheduled on the stack's
// server.
func (s *stack) countScheduled(id string, n int) (found int) {
	s.t.Helper()
	for i := range n {
		if err := s.raw("ZSCORE", s.keys().Due, fmt.Sprint(id, i)).Error(); err == nil {
			found++
		}
	}
	return found
}

// A power failure loses the part of the append-only file that was not on disk yet: of messages that were only accepted,
// those of the last second. Fsynced messages survive. Valkey's WAITAOF may confirm before the data is on disk, so there
// Fsynced is refused unless appendfsync is always.
func TestFsyncedSurvivesAPowerFailure(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, image := range redistest.Images() {
		if image == "redis:7.0" {
			continue // without WAITAOF: see TestDurabilityThatTheServerCannotGiveIsRefused
		}
		server, ok := redistest.OwnOn(t, image, "--appendfsync", "everysec")
		if !ok {
			t.Logf("not run on %s: no such image in a local Docker engine", image)
			continue
		}
		ran++
		t.Run(server.Name(), func(t *testing.T) {
			s := newStack(t, server)
			if server.Valkey() {
				err := s.scheduleEach(s.mustClientWith(bridge.Fsynced), "hasty", 1)[0]
				if !errors.Is(err, bridge.ErrUnsupported) || !strings.Contains(err.Error(), "everysec") {
					t.Errorf("Fsynced with appendfsync everysec: %v", err)
				}
				s.raw("CONFIG", "SET", "appendfsync", "always")
			}
			impatient := bridge.Fsynced
			impatient.Timeout = 50 * time.Millisecond
			fsynced, late := s.mustClientWith(bridge.Fsynced), s.mustClientWith(impatient)
			s.mustSchedule(fsynced, "kept", 50)
			// The first call of the client late asks whether the server has WAITAOF. Its result does not matter,
			// because a slow disk may need more than 50 ms.
			_ = s.scheduleEach(late, "first", 1)
			s.raw("CONFIG", "SET", "appendfsync", "no") // from here on nothing reaches the disk
			s.mustSchedule(s.client, "accepted", 50)

			err := s.scheduleEach(late, "late", 1)[0]
			var not *bridge.NotDurableError
			if !errors.As(err, &not) || not.Fsynced || !errors.Is(err, bridge.ErrNotDurable) ||
				errors.Is(err, bridge.ErrUncertain) {
				t.Errorf("Schedule without a disk: %v", err)
			}
			if s.countScheduled("late", 1) != 1 {
				t.Error("the message was not stored: NotDurableError must mean that it was stored and not confirmed")
			}
			server.CutPower()
			server.Start()
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				_, err := s.raw("PING").ToString()
				return err == nil, fmt.Sprint(err)
			})
			kept, accepted := s.countScheduled("kept", 50), s.countScheduled("accepted", 50)
			t.Logf("after the power failure: fsynced %d of 50, accepted %d of 50", kept, accepted)
			if kept != 50 {
				t.Errorf("%d of 50 fsynced messages survived", kept)
			}
			if accepted != 0 {
				t.Errorf("%d of 50 accepted messages survived: the failure was none", accepted)
			}
		})
	}
	if ran == 0 {
		t.Log("no server here knows WAITAOF, and none lost its power")
	}
}

// The master dies before its replica has received the latest writes. Replicated messages survive, even if the server
// had forgotten the script, so that the write took two requests.
func TestReplicatedSurvivesTheLossOfTheMaster(t *testing.T) {
	t.Parallel()
	master, replica := redistest.Own(t), redistest.Own(t)
	s, other := newStack(t, master), newStack(t, replica)
	other.prefix, other.queue = s.prefix, s.queue
	link := master.Proxy(t) // cuts the replica off; a paused replica would still read the data in its socket
	host, port, err := net.SplitHostPort(link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.raw("REPLICAOF", host, port).Error(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := s.number("WAIT", "1", "100")
		return n == 1, "the replica is not there"
	})
	patient := bridge.Replicated(1)
	patient.Timeout = 30 * time.Second
	replicated := s.mustClientWith(patient)

	link.Stall(true)
	for _, flush := range []bool{false, true} {
		if flush {
			s.raw("SCRIPT", "FLUSH")
		}
		late := bridge.Replicated(1)
		late.Timeout = 50 * time.Millisecond
		id := fmt.Sprint("late", flush)
		err := s.scheduleEach(s.mustClientWith(late), id, 1)[0]
		var not *bridge.NotDurableError
		if !errors.As(err, &not) || not.Replicas != 0 || not.Want.Replicas != 1 {
			t.Errorf("Schedule with the only replica away: %v", err)
		}
		if s.countScheduled(id, 1) != 1 {
			t.Error("the message was not stored: NotDurableError must mean that it was stored and not confirmed")
		}
		if err := s.mustClientWith(late).Cancel(context.Background(), s.queue, id+"0"); !errors.Is(err, bridge.ErrNotDurable) {
			t.Errorf("Cancel with the only replica away: %v", err)
		}
	}
	waiting := make(chan []error, 1)
	go func() { waiting <- s.scheduleEach(replicated, "kept", 200) }()
	// The client sends calls in batches. When messages of the first batch are stored, that batch waits for the replica,
	// and all other calls wait behind it.
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return s.countScheduled("kept", 200) > 0, "no batch is stored"
	})
	select {
	case errs := <-waiting:
		t.Fatalf("Schedule did not wait for the replica: %v", errors.Join(errs...))
	default:
	}
	link.Stall(false)
	if err := errors.Join(<-waiting...); err != nil {
		t.Error(err)
	}
	link.Stall(true)
	s.mustSchedule(s.client, "accepted", 50)
	master.Kill()
	if err := other.raw("REPLICAOF", "NO", "ONE").Error(); err != nil {
		t.Fatal(err)
	}
	kept, accepted := other.countScheduled("kept", 200), other.countScheduled("accepted", 50)
	t.Logf("on the replica: replicated %d of 200, accepted %d of 50", kept, accepted)
	if kept != 200 {
		t.Errorf("%d of 200 replicated messages survived", kept)
	}
	if accepted != 0 {
		t.Errorf("%d of 50 accepted messages survived: the failure was none", accepted)
	}
}

// If the server can never provide a durability, the client refuses every call before it sends anything, and the error
// says why. If the server cannot provide it at the moment, the call is executed and returns an error.
func TestDurabilityThatTheServerCannotGiveIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server) // no append-only file; Redis 7.0 has no WAITAOF at all
		s.mustSchedule(s.client, "stays", 1)
		fsynced := s.mustClientWith(bridge.Fsynced)
		_, moved := fsynced.Reschedule(t.Context(), s.queue, "stays0", bridge.In(time.Minute))
		for what, err := range map[string]error{
			"Schedule":            s.scheduleEach(fsynced, "refused", 1)[0],
			"Reschedule":          moved,
			"Cancel":              fsynced.Cancel(t.Context(), s.queue, "stays0"),
			"Cancel with retries": fsynced.Cancel(t.Context(), s.queue, "stays0", bridge.Retries()),
		} {
			if !errors.Is(err, bridge.ErrUnsupported) || errors.Is(err, bridge.ErrUncertain) ||
				!strings.Contains(err.Error(), "fsynced") {
				t.Errorf("%s, Fsynced: %v", what, err)
			}
		}
		if due := s.number("ZSCORE", s.keys().Due, "stays0"); s.countScheduled("refused", 1) != 0 ||
			time.Until(time.UnixMilli(due)) < time.Hour {
			t.Errorf("refused calls were sent: %d", due)
		}
		for _, d := range []bridge.Durability{bridge.Replicated(-1), bridge.Replicated(1000), {Timeout: -time.Second},
			{Timeout: time.Hour}} {
			if _, err := s.clientWith(d); !errors.Is(err, bridge.ErrInvalid) {
				t.Errorf("%s: %v", d, err)
			}
		}
		alone := bridge.Replicated(1)
		alone.Timeout = 10 * time.Millisecond
		c := s.mustClientWith(alone)
		receipt, err := c.Schedule(context.Background(), s.queue, nil, bridge.WithID("m"), bridge.In(time.Hour))
		if !errors.Is(err, bridge.ErrNotDurable) || receipt.ID != "m" || receipt.Due.IsZero() {
			t.Errorf("Replicated(1) without a replica: %+v, %v", receipt, err)
		}
		_, err = c.Schedule(context.Background(), s.queue, nil, bridge.WithID("m"), bridge.In(time.Hour))
		if !errors.Is(err, bridge.ErrDuplicate) || !errors.Is(err, bridge.ErrNotDurable) {
			t.Errorf("again: %v", err)
		}
	})
}

// Concurrent calls wait together: the client sends one WAIT for a batch of calls, and not one for each call. Some
// hundred concurrent calls make at least 2 batches, and at most a tenth as many batches as calls.
func TestDurabilityIsPaidOncePerCommit(t *testing.T) {
	t.Parallel()
	master := redistest.Own(t)
	s := newStack(t, master)
	alone := bridge.Replicated(1)
	alone.Timeout = 20 * time.Millisecond
	const n = 500
	c := s.mustClientWith(alone)
	before := master.Calls(t)["wait"]
	for _, err := range s.scheduleEach(c, "m", n) {
		if !errors.Is(err, bridge.ErrNotDurable) {
			t.Fatal(err)
		}
	}
	if waits := master.Calls(t)["wait"] - before; waits < 2 || waits > n/10 {
		t.Errorf("%d WAITs for %d messages", waits, n)
	}
}
