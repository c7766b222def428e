package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestIdleConsumersAreDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.ready("a", "b", "c")
	r.xack("g", r.take("g", "done", 1)...)
	r.take("g", "holding", 1)
	r.xack("g", r.take("g", "recent", 1)...)
	r.do("XGROUP", "CREATECONSUMER", r.k.Stream, "g", lua.ReclaimConsumer)
	names := func() string {
		t.Helper()
		list, err := Consumers(t.Context(), r.c, r.prefix, r.queue, "g")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, one := range list {
			names = append(names, one.Name)
		}
		return fmt.Sprint(names)
	}
	want(t, "the reclaimer's is hidden", names(), "[done holding recent]")
	n, err := DropIdleConsumers(t.Context(), r.c, r.prefix, r.queue, time.Hour)
	want(t, "dropped within the hour", fmt.Sprint(n, err), "1 <nil>") // the reclaimer's, which holds nothing
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		n, err := DropIdleConsumers(t.Context(), r.c, r.prefix, r.queue, time.Nanosecond)
		return err == nil && names() == "[holding]", fmt.Sprint(n, err, names())
	})
	want(t, "still held", r.pending("g"), int64(1))

	list, err := Consumers(t.Context(), r.c, r.prefix, r.queue, "nobody")
	want(t, "of no group", fmt.Sprint(list, err), "[] <nil>")
}
