package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

// hardshipCases: producers whose server fails.
var hardshipCases = []Case{
	{
		Name: "connections-killed", Level: Good, Section: "7 and 15", alone: "it kills the connections of all clients",
		Rule: "A producer whose connections break repeats what failed: what it answers with ok is delivered.",
		producer: func(t *producerTrial) {
			t.throughTrouble(200, 50, t.killConnections)
		},
	},
	{
		Name: "server-restart", Level: Good, Section: "7 and 15", alone: "it kills the server, and starts it again",
		Rule: "When the server crashes and comes back within 10 s, a producer repeats what failed: every message is taken, and what it answers with ok is delivered.",
		producer: func(t *producerTrial) {
			t.throughTrouble(500, 100, t.restart)
		},
	},
	{
		Name: "full-server", Level: Good, Section: "7 (full server)", alone: "it fills the memory of the server",
		Rule: "What Redis refuses because it is full is answered with ok: false and an error; the producer goes on.",
		producer: func(t *producerTrial) {
			p := t.ready()
			before := t.rich("before")
			t.taken(p, before)
			refused := before
			refused.ID, refused.Payload, refused.Headers = "refused", []byte("body"), map[string]string{"kind": "order"}
			t.maxMemory("1")
			t.send(p, refused)
			var answers []answer
			during("the server is full", func() { answers = t.answered(2) })
			if a := answers[1]; a.OK || a.Error == "" || a.ID != refused.ID {
				failf("the server is full, and message %q was answered with id %q, ok %v, error %q; wanted ok false, and the error", refused.ID, a.ID, a.OK, a.Error)
			}
			bare := order{ID: before.ID, Due: before.Due + 1}
			t.send(p, bare)
			during("the server is full", func() { answers = t.answered(3) })
			t.maxMemory("0")
			kept := before
			if answers[2].OK { // a full server runs a script whose first write Redis never refuses
				kept = bare
			}
			during(fmt.Sprintf("the server was full, and message %q was sent again, which was answered with ok: %v",
				before.ID, answers[2].OK), func() {
				t.holds(kept)
			})
			if _, there := t.scheduled(refused.ID); there {
				failf("message %q was answered with ok: false, and is scheduled", refused.ID)
			}
			after := before
			after.ID = "after"
			during("after the server was full", func() {
				t.taken(p, after)
			})
			t.finished(p)
		},
	},
}

// maxMemory sets the memory limit of the server, in bytes; "0" = none.
func (t *producerTrial) maxMemory(bytes string) {
	c := t.redis.Client
	set := c.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).Build()
	couldNot("CONFIG SET maxmemory", c.Do(t.ctx, set).Error())
}

// throughTrouble sends n orders, and calls trouble when some of them are answered and half of the others are sent. It
// checks that all orders are answered with ok and arrive.
func (t *producerTrial) throughTrouble(n, some int, trouble func()) {
	p := t.ready()
	now := t.now()
	orders := make([]order, n)
	for i := range orders {
		orders[i] = order{ID: fmt.Sprintf("m-%03d", i), Due: now.Add(time.Duration(i) * 5 * time.Millisecond).UnixMilli(),
			Payload: fmt.Appendf(nil, "payload %d", i)}
	}
	half := some + (n-some)/2
	t.taken(p, orders[:some]...)
	t.send(p, orders[some:half]...)
	trouble()
	t.send(p, orders[half:]...)
	for _, a := range t.answered(n) {
		if !a.OK {
			failf("message %q was answered with ok: false, error %q: a producer must repeat a call for 10 s", a.ID, a.Error)
		}
	}
	t.finished(p)
	t.await(0, func() string {
		there := map[string]bool{}
		for _, e := range t.delivered() {
			there[e.Fields[lua.FieldID]] = true
		}
		var missing []string
		for _, o := range orders {
			if !there[o.ID] {
				missing = append(missing, o.ID)
			}
		}
		slices.Sort(missing)
		return missingIf(len(missing) > 0, fmt.Sprintf("%d messages that were answered with ok did not arrive, the first is %q",
			len(missing), append(missing, "")[0]))
	})
}
