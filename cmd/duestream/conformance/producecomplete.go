package conformance

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	window      = time.Minute      // a dedup window longer than its case
	shortWindow = 2 * time.Second  // a dedup window that ends within its case
	looksAgain  = 20 * time.Second // a producer must notice within this time that the functions are back
)

// scheduleCompletely: producers that use the script enqueue, or the function duestream_schedule.
var scheduleCompletely = []Case{
	{
		Name: "duplicate", Level: Complete, Section: "6 (enqueue) and 15",
		Rule: "An ID that is still scheduled is refused, and nothing of the message that has it changes.",
		producer: func(t *producerTrial) {
			p := t.ready()
			first := t.dueIn("again", far)
			first.Payload, first.Headers, first.MaxAttempts = []byte("first"), map[string]string{"kind": "first"}, 3
			second := order{ID: first.ID, Due: first.Due - 60_000, Payload: []byte("second"),
				Headers: map[string]string{"kind": "second"}}
			t.taken(p, first)
			for _, o := range []order{second, {ID: first.ID, Due: 1_600_000_000_000}} {
				t.refused(p, o, "its ID is scheduled")
				t.holds(first)
			}
			t.finished(p)
		},
	},
	{
		Name: "dedup-window", Level: Complete, Section: "15 and 17 (dedup)",
		Rule: "An ID that was scheduled with a dedup window is refused until the window has ended, also after the message was drained; then it is taken again.",
		producer: func(t *producerTrial) {
			p := t.ready()
			long := t.dueIn("once", 100*time.Millisecond)
			long.Dedup, long.Payload = window.Milliseconds(), []byte("first")
			short := long
			short.ID, short.Dedup = "once-in-a-while", shortWindow.Milliseconds()
			t.taken(p, long, short)
			answered := t.now()
			for _, o := range []order{long, short} {
				t.arrival(o.ID, 0)
			}
			again, bare := long, long
			again.Payload, bare.Dedup = []byte("second"), 0
			for _, o := range []order{again, bare} {
				t.refused(p, o, "it was drained, and its dedup window has not ended")
			}
			t.after(answered.Add(shortWindow))
			short.Payload = []byte("second")
			during(fmt.Sprintf("after its dedup window of %s", shortWindow), func() {
				t.taken(p, short)
			})
			t.arrivalOf(short.ID, "second")
			t.onlyOnce(long.ID)
			t.finished(p)
		},
	},
	{
		Name: "functions-lost", Level: Complete, Section: "17", alone: "it removes all functions and scripts of the server",
		Rule: "When the functions or scripts that a producer calls are gone, it goes on, with plain commands or by loading its scripts again; when the functions are back it calls them again.",
		producer: func(t *producerTrial) {
			p := t.ready()
			one := t.dueIn("one", far)
			one.Payload, one.Headers = []byte("body"), map[string]string{"kind": "order"}
			two := one
			two.ID = "two"
			t.taken(p, one)
			t.removeScripts()
			t.taken(p, two)
			t.holds(two)
			op, err := admin.New(t.rig.redis, "")
			couldNot("connect", err)
			_, err = op.LoadFunctions(t.ctx, "conformance", false)
			couldNot("FUNCTION LOAD", err)
			for end := time.Now().Add(looksAgain); t.ask(p, one).OK; {
				if time.Now().After(end) {
					failf("%s after the functions were loaded again, message %q, which is scheduled, is still taken again", looksAgain, one.ID)
				}
				t.pause(time.Second)
			}
			t.finished(p)
		},
	},
}

// ask sends one order, and returns its answer.
func (t *producerTrial) ask(p *program, o order) answer {
	before := len(t.answersSoFar())
	t.send(p, o)
	a := t.answered(before + 1)[before]
	if a.ID != o.ID {
		failf("message %q was answered with the id %q", o.ID, a.ID)
	}
	return a
}

// refused sends an order that must be answered with ok: false and an error. because completes the failure text.
func (t *producerTrial) refused(p *program, o order, because string) {
	var a answer
	during(because, func() { a = t.ask(p, o) })
	if a.OK {
		failf("message %q was answered with ok: true, although %s", o.ID, because)
	}
	if a.Error == "" {
		failf("message %q was answered with ok: false and no error; wanted one that says that %s", o.ID, because)
	}
}

// after waits until the server's clock has passed a time.
func (t *producerTrial) after(end time.Time) {
	t.await(0, func() string {
		return missingIf(!t.now().After(end), "the server's clock does not go on")
	})
}

// arrivalOf waits until a message with this ID and payload is in the stream.
func (t *producerTrial) arrivalOf(id, payload string) {
	t.awaitEntry(0, fmt.Sprintf("message %q, which was answered with ok, did not arrive with the payload %q", id, payload),
		t.delivered, func(e entry) bool { return e.Fields[lua.FieldID] == id && e.Fields[lua.FieldPayload] == payload })
}

// onlyOnce checks that a message is in the stream once, and no longer scheduled.
func (t *producerTrial) onlyOnce(id string) {
	n := 0
	for _, e := range t.delivered() {
		if e.Fields[lua.FieldID] == id {
			n++
		}
	}
	if _, waits := t.scheduled(id); n != 1 || waits {
		failf("message %q was delivered %s, and is scheduled again: %v; wanted once", id, times(n), waits)
	}
}
