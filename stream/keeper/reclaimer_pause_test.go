package keeper

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream"
)

// After a pause longer than the visibility timeout, a server first serves the waiting clients. In one incident the
// first client served was a pass of the reclaimer. It took every entry from healthy workers, whose extends were next in
// line, before a heartbeat could reveal the outage. The reclaiming script compares the server's time with that of its
// previous run, so it notices an outage even if it is the first call after the outage.
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

// Entries of a server that is always slow are reclaimed, too.
func TestSlowServerIsReclaimedFromInTheEnd(t *testing.T) {
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
