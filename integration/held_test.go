package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// hungWorker runs a worker whose handler sends the time of its begin to began, and then hangs until it gets its result
// from outcome.
func (s *stack) hungWorker(group string) (began chan time.Time, outcome chan error) {
	s.t.Helper()
	began, outcome = make(chan time.Time, 10), make(chan error)
	s.worker(group, 1, func(ctx context.Context, _ *bridge.Message) error {
		began <- time.Now()
		select {
		case err := <-outcome:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return began, outcome
}

// A worker with a hanging handler extends its delivery for ever. Pending, Find, Locate and Stats must tell since when
// the delivery is held. Regression: they told the time since the last extend, or since the message became ready.
func TestEveryLookTellsSinceWhenADeliveryIsHeld(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	op := s.operator()
	s.groups("g")
	// Long enough for this order: a bridge checks a queue within 5 s after its first reader, and the worker extends
	// after 6 s, a third of this timeout.
	policy := quick()
	policy.VisibilityTimeout = 18 * time.Second
	stopBridge := s.bridge(policy)
	s.schedule(1, "m", spreadOver(0))
	const id, backlog = "m000000", 2 * time.Second
	group := func() (g admin.GroupStats) {
		t.Helper()
		stats, err := op.Stats(t.Context(), s.queue)
		if err != nil || len(stats.Groups) != 1 {
			t.Fatal(err, stats)
		}
		return stats.Groups[0]
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { // nobody reads yet
		g := group()
		return g.Waiting != nil && time.Duration(*g.Waiting) >= backlog, fmt.Sprintf("%+v", g)
	})

	began, outcome := s.hungWorker("g")
	heldSince := map[string]func() (since time.Time, attempt int){
		"pending": func() (time.Time, int) {
			list, err := op.Pending(t.Context(), s.queue, "g", admin.PendingFilter{}, 10)
			if err != nil || len(list) != 1 {
				t.Fatal(err, list)
			}
			return list[0].HeldSince, list[0].Attempt
		},
		"find": func() (time.Time, int) {
			found, err := op.Find(t.Context(), id, admin.FindOptions{Queues: []string{s.queue}})
			if err != nil || len(found.Places) != 1 || found.Places[0].State != admin.StatePending {
				t.Fatal(err, found)
			}
			return found.Places[0].HeldSince, found.Places[0].Attempt
		},
		"show": func() (time.Time, int) {
			places, err := op.Locate(t.Context(), s.queue, id)
			if err != nil || len(places) != 1 {
				t.Fatal(err, places)
			}
			return places[0].HeldSince, places[0].Attempt
		},
		"stats": func() (time.Time, int) {
			g := group()
			if g.OldestHeld == nil || g.Waiting != nil {
				t.Fatalf("%+v", g)
			}
			return g.OldestHeld.HeldSince, g.OldestHeld.Attempt
		},
	}
	check := func(what string, delivered time.Time, attempt int) {
		t.Helper()
		for name, look := range heldSince {
			since, n := look()
			if d := since.Sub(delivered).Abs(); d > time.Second || n != attempt {
				t.Errorf("%s, %s: held since %s from when the handler began, attempt %d, want %d",
					what, name, d, n, attempt)
			}
		}
	}
	first := <-began
	check("just delivered, after a time in the backlog", first, 1)
	// awaitHeld waits until the delivery is held for longer than this, and was extended in the last 6 s.
	awaitHeld := func(long time.Duration) {
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			samples, err := op.Watcher(s.queue).Look(t.Context())
			if err != nil || len(samples) != 1 || len(samples[0].Groups) != 1 {
				return false, fmt.Sprint(samples, err)
			}
			g := samples[0].Groups[0]
			if g.OldestHeld == nil {
				return false, fmt.Sprint(samples, err)
			}
			hung := time.Duration(*g.OldestHeld) > long
			extended := time.Duration(*g.Oldest) < 6*time.Second
			return hung && extended, fmt.Sprintf("%+v", g)
		})
	}
	awaitHeld(7 * time.Second)
	check("hangs, and was extended", first, 1)
	stopBridge()
	check("without a bridge", first, 1)
	s.bridge(policy)
	awaitHeld(13 * time.Second)
	check("with another bridge", first, 1)

	outcome <- errors.New("failed after all")
	check("a retry", <-began, 2)
	outcome <- nil
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.number("EXISTS", s.keys().Calm) == 0, "notes are left"
	})
}

// The doctor and the advice in stats name a delivery that is held for far longer than usual (D413; here two minutes are
// enough), and stop naming it when it has ended. Regression: 13 minutes after a handler began to hang, the doctor found
// nothing, and the first alert came after 65 minutes.
func TestDoctorNamesAHandlerThatHangs(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t, soundServer...)
	s := newStack(t, server)
	op := s.operator()
	s.groups("g")
	policy := quick()
	policy.VisibilityTimeout = 3 * time.Second
	s.bridge(policy)
	began, outcome := s.hungWorker("g")
	s.schedule(1, "m", spreadOver(0))
	<-began
	// named tells who names the delivery now; all holds all findings.
	named := func() (byDoctor, byStats bool, all string) {
		t.Helper()
		report, err := examine(context.WithoutCancel(t.Context()), doctor.Config{Client: s.redis.Client, Prefix: s.prefix})
		if err != nil {
			t.Fatal(err)
		}
		stats, err := op.Stats(t.Context(), s.queue)
		if err != nil {
			t.Fatal(err)
		}
		isHeldLong := func(f doctor.Finding) bool { return f.Code == "D413" && f.Queue == s.queue && f.Group == "g" }
		advice := op.Advise(admin.Seen{Stats: []admin.QueueStats{stats}, BridgesFailed: true})
		return slices.ContainsFunc(report.Findings, isHeldLong), slices.ContainsFunc(advice, isHeldLong),
			fmt.Sprint(report.Findings, advice)
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.number("HEXISTS", s.keys().Calm, lua.HeldField("g")) == 1, "no bridge has noted the delivery"
	})
	if byDoctor, byStats, all := named(); byDoctor || byStats {
		t.Error("named at once: ", all)
	}
	clock.Step(2*time.Minute + time.Second)
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		byDoctor, byStats, all := named()
		return byDoctor && byStats, all
	})
	outcome <- nil
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		byDoctor, byStats, all := named()
		return !byDoctor && !byStats, all
	})
}
