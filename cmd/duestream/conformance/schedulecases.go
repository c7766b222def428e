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

// How producers write.
var scheduleCases = []Case{
	{
		Name: "score", Level: Good, Section: "4",
		Rule: "The member is the message ID, the score its due time as whole Unix milliseconds.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			if err := t.hold(); err != nil {
				return err
			}
			var orders []order
			for _, id := range []string{"one", "two", `odd "id" é`} {
				o, err := t.dueIn(id, far)
				if err != nil {
					return err
				}
				orders = append(orders, o)
			}
			if err := t.taken(p, orders...); err != nil {
				return err
			}
			members, err := t.do("ZRANGE", t.keys(0).Due, "0", "-1").AsStrSlice()
			if err != nil {
				return couldNot("ZRANGE", err)
			}
			for _, o := range orders {
				if !slices.Contains(members, o.ID) {
					return failf("message %q is not a member of %s, which holds %q", o.ID, t.keys(0).Due, members)
				}
				s, err := t.mustBeScheduled(o.ID)
				if err != nil {
					return err
				}
				if want := strconv.FormatInt(o.Due, 10); s.score != want {
					return failf("message %q has the score %s; wanted %s", o.ID, s.score, want)
				}
			}
			if len(members) != len(orders) {
				return failf("%s holds %q after %d messages were scheduled", t.keys(0).Due, members, len(orders))
			}
			return t.finished(p)
		},
	},
	{
		Name: "replace", Level: Good, Section: "7 (IDs)",
		Rule: "Scheduling an ID again replaces all of the message, also by no payload and no headers; or it is refused, and changes nothing.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			if err := t.hold(); err != nil {
				return err
			}
			rich, err := t.dueIn("again", far)
			if err != nil {
				return err
			}
			rich.Payload, rich.Headers, rich.MaxAttempts = []byte("first"), map[string]string{"old": "1", "both": "1"}, 3
			other, bare := rich, order{ID: rich.ID, Due: rich.Due + 60_000}
			other.Due, other.Payload, other.Headers, other.MaxAttempts = rich.Due+30_000, []byte("second"), map[string]string{"both": "2"}, 0
			current := rich
			if err := t.taken(p, rich); err != nil {
				return err
			}
			for i, next := range []order{other, bare, rich} {
				if err := t.send(p, next); err != nil {
					return err
				}
				answers, err := t.answered(i + 2)
				if err != nil {
					return err
				}
				if answers[i+1].OK {
					current = next
				} else if i == 0 {
					t.note("it refuses an ID that is scheduled: %s", answers[i+1].Error)
				}
				if err := t.holds(current); err != nil {
					return err
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "transaction", Level: Good, Section: "7, steps 1 to 4",
		Rule: "A producer writes payload, meta, due time and wake token in this order, in one MULTI or one script, so that no bridge sees a part of it.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			o, err := t.dueIn("whole", far)
			if err != nil {
				return err
			}
			o.Payload, o.Headers = []byte("body"), map[string]string{"kind": "order"}
			commands, err := t.monitored(func() error { return t.taken(p, o) })
			if err != nil {
				return err
			}
			if err := t.whole(commands); err != nil {
				return err
			}
			return t.finished(p)
		},
	},
	{
		Name: "registers", Level: Good, Section: "3 and 7",
		Rule: "A producer registers its queue with HSETNX, value 1, or the script register; what is registered already it leaves alone.",
		run: func(t *trial) error {
			registry := lua.NewGlobals(t.prefix).Queues
			p, err := t.producer()
			if err != nil {
				return err
			}
			o, err := t.dueIn("first", far)
			if err != nil {
				return err
			}
			if err := firstError(t.taken(p, o), t.finished(p)); err != nil {
				return err
			}
			value, ok, err := t.text("HGET", registry, t.queue)
			if err != nil {
				return err
			}
			if !ok || value != "1" {
				return failf("%s of the queue is %q after a producer has scheduled a message and ended; wanted 1", registry, value)
			}
			if err := t.registersWithToken(); err != nil {
				return err
			}
			t.queue += "-grown"
			if err := t.do("HSET", registry, t.queue, "1,4").Error(); err != nil {
				return couldNot("HSET", err)
			}
			return t.leavesAlone(registry, func() error {
				if p, err = t.producer(); err != nil {
					return err
				}
				return firstError(t.taken(p, o), t.finished(p))
			})
		},
	},
	{
		Name: "no-expiry", Level: Good, Section: "3",
		Rule: "No key of duestream has an expiry.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			o, err := t.dueIn("kept", far)
			if err != nil {
				return err
			}
			o.Payload, o.Headers = []byte("body"), map[string]string{"kind": "order"}
			if err := firstError(t.taken(p, o), t.finished(p)); err != nil {
				return err
			}
			k, g := t.keys(0), lua.NewGlobals(t.prefix)
			for _, key := range []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, g.Queues, g.Wake} {
				ms, err := t.number("PTTL", key)
				if err != nil {
					return err
				}
				if ms >= 0 {
					return failf("%s expires in %d ms", key, ms)
				}
			}
			return nil
		},
	},
	{
		Name: "partitions", Level: Good, Section: "16",
		Rule: "A producer puts a message into the partition that the CRC-32 of its ID names, or always into partition 0.",
		run: func(t *trial) error {
			const count = 4
			if err := firstError(t.hold(), t.register(), t.grow(count)); err != nil {
				return err
			}
			p, err := t.producer()
			if err != nil {
				return err
			}
			counts, used := lua.Counts{1, count}, map[int]bool{}
			var orders []order
			for i := range 24 {
				o, err := t.dueIn(fmt.Sprintf("order-%d é", i), far)
				if err != nil {
					return err
				}
				orders = append(orders, o)
			}
			if err := firstError(t.taken(p, orders...), t.finished(p)); err != nil {
				return err
			}
			for _, o := range orders {
				at := -1
				for i := range count {
					if _, ok, err := t.text("ZSCORE", t.keys(i).Due, o.ID); err != nil {
						return err
					} else if ok {
						at = i
					}
				}
				used[at] = true
				if at < 0 {
					return failf("message %q is in no partition", o.ID)
				}
				if want := counts.Of(o.ID); at != want && at != 0 {
					return failf("message %q is in partition %d of %d; by its CRC-32 it belongs into %d", o.ID, at, count, want)
				}
			}
			if len(used) == 1 {
				t.note("it uses partition 0 only, which is allowed: messages of a queue with partitions are not spread")
			}
			return nil
		},
	},
}

// leavesAlone checks that a queue with partitions stays one in the registry. Bridges mend what was overwritten, so it also looks at how it was
// written, where that is to be seen.
func (t *trial) leavesAlone(registry string, do func() error) error {
	commands, err := t.monitored(do)
	if untried := (*notTried)(nil); errors.As(err, &untried) {
		err = do()
	}
	if err != nil {
		return err
	}
	value, _, err := t.text("HGET", registry, t.queue)
	if err != nil {
		return err
	}
	set := slices.ContainsFunc(commands, func(c command) bool {
		return c.key == registry && c.from != inScript && slices.Contains([]string{"HSET", "HMSET", "HDEL", "DEL", "UNLINK"}, c.name)
	})
	if set || value != "1,4" {
		return failf("%s of a queue with partitions was 1,4; the producer has overwritten it, so that its other partitions are not read any more", registry)
	}
	return nil
}

// hold keeps messages scheduled, whatever their due time.
func (t *trial) hold() error { return t.policy(admin.SettingHeld, "1") }

// holds checks that a message is scheduled as it was ordered.
func (t *trial) holds(o order) error {
	s, err := t.mustBeScheduled(o.ID)
	if err != nil {
		return err
	}
	if want := strconv.FormatInt(o.Due, 10); s.score != want {
		return failf("the due time of %q is %s; wanted %s", o.ID, s.score, want)
	}
	if s.payload != string(o.Payload) {
		return failf("the payload of %q is %q; wanted %q", o.ID, s.payload, o.Payload)
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
		return failf("the meta of %q is %.2000s; wanted the fields %.2000q", o.ID, s.meta, want)
	}
	return nil
}

// whole checks in which order, and in how many pieces, a message was written. A producer may repeat what it has no answer to.
func (t *trial) whole(commands []command) error {
	k := t.keys(0)
	wanted := []string{"HSET " + k.Payload, "HSET " + k.Meta, "ZADD " + k.Due, "XADD " + k.Wake}
	var seen []string
	var pieces [][]string
	open := map[string]int{} // transactions and scripts under way: client → piece
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
			open[inScript] = begin() // of the commands of a script none stands between
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
		return nil
	}
	in := fmt.Sprintf("%d pieces", len(pieces))
	if len(pieces) == 1 {
		in = "one piece"
	}
	return failf("it wrote %s, in %s; wanted %s, in one MULTI or one script", strings.Join(seen, ", then "), in, strings.Join(wanted, ", then "))
}

const inScript = "lua"
