package lmstfy

import (
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A key of another type, which another program has written in the same Redis, is passed over. Regression: such a key
// ended every run before any job was moved.
func TestAKeyOfAnotherTypeStopsNoOther(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	queue := queueID{"shop", "mail"}
	good := job{queue: queue, id: jobID(time.Now(), 0, ""), body: "x"}
	o.pool(good)
	o.ready(good, 1)
	odd := job{queue: queue, id: jobID(time.Now(), 0, "")}
	o.do("HSET", queue.key("j")+"/"+odd.id, "a", "b")
	o.ready(odd, 1)
	o.do("SET", queue.key("d"), "no list")
	redistest.Want(t, "moved", o.move(removing), tally{Ready: 1, Refused: 1, Removed: 1})
	redistest.Want(t, "keys that are left",
		o.int("EXISTS", queue.key("j")+"/"+odd.id, queue.key("d"), queue.key("j")+"/"+good.id), 2)
}
