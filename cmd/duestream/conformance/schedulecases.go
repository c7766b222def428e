package conformance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// scheduleCases: how producers write a message.
var scheduleCases = []Case{
	{
		Name: "score", Level: Good, Section: "4",
		Rule: "The member is the message ID, the score its due time as whole Unix milliseconds.",
		run: func(t *trial) {
			p := t.ready()
			t.hold()
			var orders []order
			for _, id := range []string{"one", "two", `odd "id" é`} {
				orders = append(orders, t.dueIn(id, far))
			}
			t.taken(p, orders...)
			members, err := t.do("ZRANGE", t.keys(0).Due, "0", "-1").AsStrSlice()
			couldNot("ZRANGE", err)
			for _, o := range orders {
				if !slices.Contains(members, o.ID) {
					failf("message %q is not a member of %s, which holds %q", o.ID, t.keys(0).Due, members)
				}
				s := t.mustBeScheduled(o.ID)
				if want := strconv.FormatInt(o.Due, 10); s.score != want {
					failf("message %q has the score %s; wanted %s", o.ID, s.score, want)
				}
			}
			if len(members) != len(orders) {
				failf("%s holds %q after %d messages were scheduled", t.keys(0).Due, members, len(orders))
			}
			t.finished(p)
		},
	},
	{
		Name: "replace", Level: Good, Section: "7 (IDs)",
		Rule: "Scheduling an ID again replaces all of the message, also by no payload and no headers; or it is refused, and changes nothing.",
		run: func(t *trial) {
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
		Name: "transaction", Level: Good, Section: "7, steps 1 to 4",
		Rule: "A producer writes payload, meta, due time and wake token in this order, in one MULTI or one script, so that no bridge sees a part of it.",
		run: func(t *trial) {
			p := t.ready()
			o := t.dueIn("whole", far)
			o.Payload, o.Headers = []byte("body"), map[string]string{"kind": "order"}
			t.whole(t.monitored(func() { t.taken(p, o) }))
			t.finished(p)
		},
	},
	{
		Name: "registers", Level: Good, Section: "3 and 7",
		Rule: "A producer registers its queue with HSETNX, value 1, or the script register; what is registered already it leaves alone.",
		run: func(t *trial) {
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
			t.leavesAlone(registry, func() {
				p = t.producer()
				t.taken(p, o)
				t.finished(p)
			})
		},
	},
	{
		Name: "no-expiry", Level: Good, Section: "3",
		Rule: "No key of duestream has an expiry.",
		run: func(t *trial) {
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
		run: func(t *trial) {
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

// leavesAlone checks that a producer does not change the partitions of a queue in the registry. Bridges repair an
// overwritten entry, so leavesAlone also looks at the commands, if MONITOR is allowed.
func (t *trial) leavesAlone(registry string, do func()) {
	var commands []command
	err := attempt(func() { commands = t.monitored(do) })
	if untried := (*notTried)(nil); errors.As(err, &untried) {
		err = attempt(do)
	}
	check(err)
	value, _ := t.text("HGET", registry, t.queue)
	set := slices.ContainsFunc(commands, func(c command) bool {
		return c.key == registry && c.from != inScript &&
			slices.Contains([]string{"HSET", "HMSET", "HDEL", "DEL", "UNLINK"}, c.name)
	})
	if set || value != "1,4" {
		failf("%s of a queue with partitions was 1,4; the producer has overwritten it, so that its other partitions are not read any more", registry)
	}
}

// hold holds the queue: messages stay scheduled after their due time.
func (t *trial) hold() { t.policy(admin.SettingHeld, "1") }

// holds checks that a message is stored as it was ordered.
func (t *trial) holds(o order) {
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

// whole checks the order of the writes of a message, and that they are one transaction or script. A producer may
// repeat a message whose reply was lost.
func (t *trial) whole(commands []command) {
	k := t.keys(0)
	wanted := []string{"HSET " + k.Payload, "HSET " + k.Meta, "ZADD " + k.Due, "XADD " + k.Wake}
	var seen []string
	var pieces [][]string
	open := map[string]int{} // running transactions and scripts: client → piece
	begin := func() int {
		pieces = append(pieces, nil)
		return len(pieces) - 1
	}
	last := ""
	for _, c := range commands {
		switch {
		case c.name == "MULTI":
			open[c.from] = begin()
		case c.name == "EXEC" || c.name == "DISCARD":
			delete(open, c.from)
		case c.from == inScript && last != inScript:
			open[inScript] = begin() // commands of a script are contiguous
		}
		last = c.from
		step := strings.NewReplacer("HSETNX", "HSET", "HMSET", "HSET").Replace(c.name) + " " + c.key
		if !slices.Contains(wanted, step) {
			continue
		}
		seen = append(seen, step)
		piece, in := open[c.from]
		if !in {
			piece = begin()
		}
		pieces[piece] = append(pieces[piece], step)
	}
	pieces = slices.DeleteFunc(pieces, func(steps []string) bool { return len(steps) == 0 })
	if len(pieces) > 0 && !slices.ContainsFunc(pieces, func(steps []string) bool { return !slices.Equal(steps, wanted) }) {
		return
	}
	in := fmt.Sprintf("%d pieces", len(pieces))
	if len(pieces) == 1 {
		in = "one piece"
	}
	failf("it wrote %s, in %s; wanted %s, in one MULTI or one script", strings.Join(seen, ", then "), in, strings.Join(wanted, ", then "))
}

const inScript = "lua"
