package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A consumer that holds no entry and has been idle for long must be removed from its group. One that holds an entry
// stays, because its entry would be lost with it.
func TestIdleConsumersAreDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("a", "b", "c")
	r.Xack("g", r.Take("g", "done", 1)...)
	r.Take("g", "holding", 1)
	r.Xack("g", r.Take("g", "recent", 1)...)
	r.Do("XGROUP", "CREATECONSUMER", r.Keys.Stream, "g", lua.ReclaimConsumer)
	names := func() string {
		t.Helper()
		return fmt.Sprint(r.Consumers("g"))
	}
	redistest.Want(t, "before", names(), fmt.Sprintf("[done %s holding recent]", lua.ReclaimConsumer))
	n, err := DropIdleConsumers(t.Context(), r.Client, r.Prefix, r.Queue, time.Hour)
	redistest.Want(t, "dropped within the hour", fmt.Sprint(n, err), "1 <nil>") // only the consumer of the reclaimer
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		n, err := DropIdleConsumers(t.Context(), r.Client, r.Prefix, r.Queue, time.Nanosecond)
		return err == nil && names() == "[holding]", fmt.Sprint(n, err, names())
	})
	redistest.Want(t, "still held", r.Pending("g"), int64(1))
}
