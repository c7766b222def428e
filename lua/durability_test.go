package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Regression: a producer was told for certain that its message had not been scheduled, which was wrong:
//
//  1. A message is cancelled, and its producer waits for a replica.
//  2. A failover makes the server a replica, which ends the wait with an error.
//  3. Before, that error counted as one of a server that has done nothing. So the call was repeated, and found nothing
//     to cancel.
func TestWaitEndedByAFailoverIsAmbiguous(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c, k := server.Client(t), NewKeys("duestream", "q")
	if _, err := Enqueue(t.Context(), c, k, Token{}, []Item{{ID: "m", When: After(time.Hour)}}, Durability{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Cancel(t.Context(), c, k, []string{"another"}, Durability{}); err != nil { // the server knows the script
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := Cancel(t.Context(), c, k, []string{"m"}, Durability{Replicas: 1, Timeout: time.Minute})
		ended <- err
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		info, err := c.Do(t.Context(), c.B().Info().Section("clients").Build()).ToString()
		return strings.Contains(info, "blocked_clients:1\r\n"), fmt.Sprint("nobody waits ", err)
	})
	if err := c.Do(t.Context(), c.B().Arbitrary("REPLICAOF", "127.0.0.1", "1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !Ambiguous(err) || !Temporary(err) {
		t.Errorf("ambiguous %t, temporary %t: %v", Ambiguous(err), Temporary(err), err)
	}
}

func TestDurabilityRoundTrip(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{{}, {Fsync: true}, {Replicas: 3}, {Fsync: true, Replicas: MaxReplicas}} {
		if got, err := ParseDurability(d.String()); err != nil || got != d {
			t.Errorf("%s: %+v, %v", d, got, err)
		}
	}
}
