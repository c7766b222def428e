package dashboard

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// The system page must tell which queue fills Redis, on demand, and viewers must share one measurement.
func TestSystemTellsWhichQueueFillsRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRig(t, server, nil)
	for queue, bytes := range map[string]int{"a.small": 10, "blobs": 1 << 20} {
		_, err := r.client.Schedule(t.Context(), queue, make([]byte, bytes), bridge.In(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
	}
	v, other := r.viewer(inspect, "*"), r.viewer(inspect, "*")
	before := server.Calls(t)["memory|usage"]
	_, text := v.get("servers")
	contains(t, text, "Memory by queue", "servers?memory=1")
	redistest.Want(t, "measurements that nobody asked for", server.Calls(t)["memory|usage"], before)
	for range 5 {
		v.get("servers?memory=1")
		_, text = other.get("servers?memory=1")
	}
	_, table, _ := strings.Cut(text, `id="memory"`)
	contains(t, table, "MiB", "Measured", "Measure again")
	if strings.Index(table, "blobs") > strings.Index(table, "a.small") {
		t.Errorf("the greatest queue is not the first:\n%s", table)
	}
	redistest.Want(t, "commands of ten views of two queues", server.Calls(t)["memory|usage"]-before, 20)
	_, text = r.viewer(inspect, "blobs").get("servers?memory=1")
	lacks(t, text, `id="memory"`, "a.small")
}

// A viewer must not wait for the measurement of another one for longer than the time of a request.
func TestAViewerDoesNotWaitForAnothersMeasurement(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(inspect, "*"))
	q.query = url.Values{"memory": {"1"}}
	ctx, end := context.WithCancel(t.Context())
	q.ctx = ctx
	<-r.dashboard.memoryOf.entry("").turn // another viewer measures
	got := make(chan *memoryView)
	go func() { got <- q.queueMemory() }()
	end()
	if v := <-got; !errors.Is(v.Err, context.Canceled) {
		t.Errorf("got %+v", v)
	}
}
