package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// While the master of one queue hangs, the policies of queues on other masters can be changed. Regression: a gateway
// had one lock for the policies of all queues, so policy changes of all other queues failed.
func TestAMasterThatIsAwayKeepsNoOtherPolicyFromBeingChanged(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
	var needed []*redistest.Server // masters of the keys that all queues share
	// The shared keys of the prefix leave one master free, which can hang without stopping all requests.
	prefix := ""
	for i := 0; i == 0 || len(needed) == 3; i++ {
		prefix = fmt.Sprint("p-", i)
		needed = nil
		shared := lua.NewGlobals(prefix)
		for _, key := range []string{shared.Queues, shared.Defaults, shared.Tokens} {
			if one := owner(key); !slices.Contains(needed, one) {
				needed = append(needed, one)
			}
		}
	}
	r := newRigAt(t, c.URL(), prefix)
	away, here := "", ""
	var hangs *redistest.Server
	for i := 0; away == "" || here == ""; i++ {
		queue := fmt.Sprint("q-", i)
		if one := owner(lua.NewKeys(prefix, queue).Policy); slices.Contains(needed, one) {
			here = queue
		} else {
			away, hangs = queue, one
		}
	}
	change := func(queue string) answer {
		return r.do("PATCH", "/v1/queues/"+queue+"/policy", `{"max_attempts":7}`, "Content-Type: application/json")
	}
	for _, queue := range []string{away, here} {
		if err := r.op.Register(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		change(queue).want(http.StatusOK)
	}
	hangs.Pause()
	// While these requests for the queue on the hung master wait, requests for the other queue must succeed.
	const atOnce = 3
	failed := make(chan int, atOnce)
	for range atOnce {
		go func() { failed <- change(away).status }()
	}
	for n := 0; n < atOnce; {
		select {
		case status := <-failed:
			redistest.Want(t, "status of the queue whose master hangs", status, http.StatusServiceUnavailable)
			n++
		default:
			change(here).want(http.StatusOK)
		}
	}
}
