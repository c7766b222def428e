package conformance

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// scheduleCases: how producers write a message.
var scheduleCases = []Case{
	{
		Name: "replace", Level: Good, Section: "7 (IDs)",
		Rule: "Scheduling an ID again replaces all of the message, also by no payload and no headers; or it is refused, and changes nothing.",
		producer: func(t *producerTrial) {
			p := t.ready()
			t.hold()
			rich := t.dueIn("again", far)
			rich.Payload, rich.Headers, rich.MaxAttempts = []byte("first"), map[string]string{"old": "1", "both": "1"}, 3
			other, bare := rich, order{ID: rich.ID, Due: rich.Due + 60_000}
			other.Due, other.Payload, other.Headers, other.MaxAttempts = rich.Due+30_000, []byte("second"),
				map[string]string{"both": "2"}, 0
			current := rich
			t.taken(p, rich)
			for i, next := range []order{other, bare, rich} {
				t.send(p, next)
				answers := t.answered(i + 2)
				if answers[i+1].OK {
					current = next
				} else if i == 0 {
					t.note("it refuses an ID that is scheduled: %s", answers[i+1].Error)
				}
				t.holds(current)
			}
			t.finished(p)
		},
	},
	{
		Name: "registers", Level: Good, Section: "3 and 7",
		Rule: "A producer registers its queue with HSETNX, value 1, or the script register; what is registered already it leaves alone.",
		producer: func(t *producerTrial) {
			registry := lua.NewGlobals(t.prefix).Queues
			p := t.producer()
			o := t.dueIn("first", far)
			t.taken(p, o)
			t.finished(p)
			value, ok := t.text("HGET", registry, t.queue)
			if !ok || value != "1" {
				failf("%s of the queue is %q after a producer has scheduled a message and ended; wanted 1", registry, value)
			}
			t.registersWithToken()
			t.queue += "-grown"
			t.mustDo("HSET", registry, t.queue, "1,4")
			p = t.producer()
			t.taken(p, o)
			t.finished(p)
			if value, _ := t.text("HGET", registry, t.queue); value != "1,4" {
				failf("%s of a queue with partitions was 1,4; the producer has overwritten it, "+
					"so that its other partitions are not read any more", registry)
			}
		},
	},
	{
		Name: "no-expiry", Level: Good, Section: "3",
		Rule: "No key of duestream has an expiry.",
		producer: func(t *producerTrial) {
			p := t.ready()
			o := t.dueIn("kept", far)
			o.Payload, o.Headers = []byte("body"), map[string]string{"kind": "order"}
			t.taken(p, o)
			t.finished(p)
			k, g := t.keys(0), lua.NewGlobals(t.prefix)
			for _, key := range []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, g.Queues, g.Wake} {
				if ms := t.number("PTTL", key); ms >= 0 {
					failf("%s expires in %d ms", key, ms)
				}
			}
		},
	},
	{
		Name: "partitions", Level: Good, Section: "16",
		Rule: "A producer puts a message into the partition that the CRC-32 of its ID names, or always into partition 0.",
		producer: func(t *producerTrial) {
			const count = 4
			t.hold()
			t.register()
			t.grow(count)
			p := t.producer()
			counts, used := lua.Counts{1, count}, map[int]bool{}
			var orders []order
			for i := range 24 {
				orders = append(orders, t.dueIn(fmt.Sprintf("order-%d é", i), far))
			}
			t.taken(p, orders...)
			t.finished(p)
			for _, o := range orders {
				at := t.partitionOf(o.ID, count)
				used[at] = true
				if at < 0 {
					failf("message %q is in no partition", o.ID)
				}
				if want := counts.Of(o.ID); at != want && at != 0 {
					failf("message %q is in partition %d of %d; by its CRC-32 it belongs into %d", o.ID, at, count, want)
				}
			}
			if len(used) == 1 {
				t.note("it uses partition 0 only, which is allowed: messages of a queue with partitions are not spread")
			}
		},
	},
}

// hold holds the queue: messages stay scheduled after their due time.
func (t *producerTrial) hold() { t.policy(admin.SettingHeld, "1") }

// holds checks that a message is stored as it was ordered.
func (t *producerTrial) holds(o order) {
	s := t.mustBeScheduled(o.ID)
	if want := strconv.FormatInt(o.Due, 10); s.score != want {
		failf("the due time of %q is %s; wanted %s", o.ID, s.score, want)
	}
	if s.payload != string(o.Payload) {
		failf("the payload of %q is %q; wanted %q", o.ID, s.payload, o.Payload)
	}
	want := map[string]string{}
	for name, value := range o.Headers {
		want[lua.HeaderPrefix+name] = value
	}
	if o.MaxAttempts > 0 {
		want[lua.FieldMaxAttempts] = strconv.Itoa(o.MaxAttempts)
	}
	if o.Expires > 0 {
		want[lua.FieldExpires] = strconv.FormatInt(o.Expires, 10)
	}
	if !maps.Equal(s.fields, want) {
		failf("the meta of %q is %.2000s; wanted the fields %.2000q", o.ID, s.meta, want)
	}
}
