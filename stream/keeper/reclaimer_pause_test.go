package keeper

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream"
)

// After an outage the server first executes the calls that wait. Regression: the first of them was a pass of the
// reclaimer. It took every entry from healthy workers, whose extensions came next, before a heartbeat could show the
// outage. So the reclaiming script compares the server's time with the time of its previous run. It notices an outage
// even if its call is the first one after the outage.
func TestPassThatWasHeldUpByAnOutageReclaimsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	const visibility = 900 * time.Millisecond
	r.Policy(map[string]string{"visibility_ms": "900", "retry_min_ms": "10000", "retry_max_ms": "10000"})
	if _, err := stream.EnsureGroup(t.Context(), r.Client, r.Prefix, r.Queue, "g"); err != nil {
		t.Fatal(err)
	}
	r.Ready("m")
	if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary("XREADGROUP", "GROUP", "g", "c", "STREAMS", r.Keys.Stream,
		">").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Watched: true})
	pass := func() ReclaimResult {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		result, err := reclaimer.Reclaim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	for began := time.Now(); time.Since(began) < visibility*2/3; {
		redistest.Want(t, "moved before the outage", pass().Moved(), 0)
	}
	if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary("CLIENT", "PAUSE", "1500", "ALL").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	redistest.Want(t, "moved by the pass that was held up", pass().Moved(), 0)
	if took := time.Since(began); took < visibility {
		t.Fatalf("the pass was held up for %s only", took)
	}
	redistest.Want(t, "moved by the next pass, after the outage", pass().Moved(), 0)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return pass().Moved() == 1,
			"the abandoned entry is not reclaimed"
	})
}

// Abandoned entries of a server that is always slow must be reclaimed: the slowness must not count as an outage for
// ever.
func TestSlowServerIsReclaimedFromInTheEnd(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Policy(map[string]string{"visibility_ms": "300"})
	if _, err := stream.EnsureGroup(t.Context(), r.Client, r.Prefix, r.Queue, "g"); err != nil {
		t.Fatal(err)
	}
	r.Ready("m")
	if err := r.Client.Do(t.Context(), r.Client.B().Arbitrary("XREADGROUP", "GROUP", "g", "c", "STREAMS", r.Keys.Stream,
		">").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	proxy := s.Proxy(t)
	c := proxy.Client(t)
	proxy.Slow(60 * time.Millisecond)
	reclaimer := NewReclaimer(ReclaimerConfig{Client: c, Prefix: r.Prefix, Queue: r.Queue, Watched: true})
	moved := 0
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved += result.Moved()
		return moved == 1, "nothing was reclaimed"
	})
}
