package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// hungWorker runs a worker whose handler takes each delivery, says when it began, and then waits for its outcome.
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

// A worker whose handler hangs extends its delivery for ever. Every look said that it was held since the last extension, or since
// the message became ready; none said when it was delivered.
func TestEveryLookTellsSinceWhenADeliveryIsHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		op := admin.New(s.redis, s.prefix)
		s.groups("g")
		// A bridge looks at a queue within 5 s after somebody began to read it, and the worker extends after 6 s.
		policy := quick()
		policy.VisibilityTimeout = 18 * time.Second
		stopBridge := s.bridge(policy)
		s.schedule(1, "m", within(0))
		const id, backlog = "m000000", 2 * time.Second
		group := func() (g admin.GroupStats) {
			t.Helper()
			stats, err := op.Stats(t.Context(), s.queue)
			if err != nil || len(stats.Groups) != 1 {
				t.Fatal(err, stats)
			}
			return stats.Groups[0]
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { // nobody reads
			g := group()
			return g.Waiting != nil && time.Duration(*g.Waiting) >= backlog, fmt.Sprintf("%+v", g)
		})

		began, outcome := s.hungWorker("g")
		sinceOf := map[string]func() (time.Time, int){
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
			for name, look := range sinceOf {
				since, n := look()
				if d := since.Sub(delivered).Abs(); d > time.Second || n != attempt {
					t.Errorf("%s, %s: held since %s from when the handler began, attempt %d, want %d", what, name, d, n, attempt)
				}
			}
		}
		first := <-began
		check("just delivered, after a time in the backlog", first, 1)
		hangs := func(long time.Duration) {
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				samples, err := op.Watcher(s.queue).Look(t.Context())
				if err != nil || len(samples) != 1 || len(samples[0].Groups) != 1 || samples[0].Groups[0].OldestHeld == nil {
					return false, fmt.Sprint(samples, err)
				}
				g := samples[0].Groups[0]
				return time.Duration(*g.OldestHeld) > long && time.Duration(*g.Oldest) < 6*time.Second, fmt.Sprintf("%+v", g)
			})
		}
		hangs(7 * time.Second)
		check("hangs, and was extended", first, 1)
		stopBridge()
		check("without a bridge", first, 1)
		s.bridge(policy)
		hangs(13 * time.Second)
		check("with another bridge", first, 1)

		outcome <- errors.New("failed after all")
		check("a retry", <-began, 2)
		outcome <- nil
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return s.number("EXISTS", s.keys().Calm) == 0, "notes are left"
		})
	})
}
