package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Regression: a delivery with a visibility timeout of a second was reclaimed only after half a minute, because a bridge
// reclaimed nothing before it had watched the queue for a whole visibility timeout of the policy, which is an hour
// here. Rounds 0 and 2 receive a short delivery. Round 1 receives first a delivery for an hour, which stays pending to
// the end of the test.
func TestAShortLeaseComesBackInItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, err := bridge.NewBridge(bridge.Config{Redis: r.r, Prefix: r.prefix, AnyServer: true, Defaults: bridge.Policy{
		VisibilityTimeout: time.Hour, MaxAttempts: 10, RetryMin: time.Millisecond, RetryMax: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })

	const path = "/v1/queues/leased"
	// receive gets exactly one delivery, and returns its settlement token and its message ID.
	receive := func(query string) (token, id string) {
		t.Helper()
		var got struct{ Deliveries []struct{ Token, ID string } }
		r.do("POST", path+"/deliveries?group=g&"+query, "").want(http.StatusOK).read(&got)
		if len(got.Deliveries) != 1 {
			t.Fatalf("%s: %+v", query, got)
		}
		return got.Deliveries[0].Token, got.Deliveries[0].ID
	}
	for i, receivesLong := range []bool{false, true, false} {
		if receivesLong {
			r.do("POST", path+"/messages?id=slow", "x").want(http.StatusCreated)
			receive("") // for the visibility timeout of the policy
		}
		id := fmt.Sprint("quick-", i)
		r.do("POST", path+"/messages?id="+id, "x").want(http.StatusCreated)
		began := time.Now()
		_, first := receive("within_ms=1000")
		token, again := receive("wait_ms=20000")
		if took := time.Since(began); first != id || again != id || took < time.Second || took > 4*time.Second {
			t.Errorf("round %d: %s, then %s after %s", i, first, again, took)
		}
		r.do("POST", "/v1/settlements", fmt.Sprintf(`[{"token":%q}]`, token), "Content-Type: application/json").want(http.StatusOK).has(`"acknowledged"`)
	}
}
