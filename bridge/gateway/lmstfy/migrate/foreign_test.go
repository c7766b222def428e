package migrate

import (
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Regression: a key of another type, written by another program in the same Redis, ended every run before any job was
// moved.
func TestAKeyOfAnotherTypeStopsNoOther(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	at := place{"shop", "mail"}
	good := job{at: at, id: jobID(time.Now(), 0, ""), body: "x"}
	o.pool(good)
	o.ready(good, 1)
	odd := job{at: at, id: jobID(time.Now(), 0, "")}
	o.do("HSET", at.key("j")+"/"+odd.id, "a", "b")
	o.ready(odd, 1)
	o.do("SET", at.key("d"), "no list")
	redistest.Want(t, "moved", o.move(removing), Tally{Ready: 1, Refused: 1, Removed: 1})
	redistest.Want(t, "keys that are left", o.int("EXISTS", at.key("j")+"/"+odd.id, at.key("d"), at.key("j")+"/"+good.id), 2)
}
