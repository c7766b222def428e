package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// If not all queues can be measured, those with many messages must be. Regression: the first ones by name were
// measured, and the queue that filled Redis was left out.
func TestMemoryMeasuresTheQueuesWithManyMessages(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	conn := &bridge.Redis{Client: r.Client}
	a, err := New(conn, r.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: conn, Prefix: r.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for queue, n := range map[string]int{"a": 1, "b": 2, "z": 3} {
		for range n {
			if _, err := client.Schedule(t.Context(), queue, []byte("p"), bridge.In(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for most, want := range map[int]string{3: "abz", 2: "bz", 1: "z", 0: ""} {
		all, left, err := a.Memory(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "queues that were left out", left, 3-most)
		for _, one := range all {
			if !strings.Contains(want, one.Queue) || one.Bytes == 0 {
				t.Errorf("at most %d partitions: measured %+v, want %q", most, one, want)
			}
		}
	}
}
