package conformance

import (
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

const (
	noticed   = 20 * time.Second // in which a producer has read the registry again
	tenYears  = 3650 * 24 * time.Hour
	maxHeader = 8 << 10
)

// What producers lose by a want of care.
var careCases = []Case{
	{
		Name: "input-ends", Level: Good, Section: "15",
		Rule: "A producer whose input ends behind many lines answers each of them once, when it was taken, and only then exits with 0.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			var orders []order
			for i := range 60 {
				o, err := t.dueIn(fmt.Sprintf("m-%02d", i), far)
				if err != nil {
					return err
				}
				o.Payload = []byte("payload of " + o.ID)
				orders = append(orders, o)
			}
			if err := firstError(t.send(p, orders...), t.finished(p)); err != nil {
				return err
			}
			p.kill() // all that it printed was read
			if err := t.allAnswered(0, orders); err != nil {
				return fmt.Errorf("its input ended right behind %d lines, and it exited: %w", len(orders), err)
			}
			for _, o := range orders {
				if err := t.holds(o); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		Name: "wakes-each", Level: Good, Section: "7, step 4, and 16",
		Rule: "Each message that is the earliest of its partition adds a token to the wake stream of that partition, not the first one only, and not to another partition's.",
		run: func(t *trial) error {
			const count = 4
			if err := firstError(t.register(), t.grow(count)); err != nil {
				return err
			}
			p, err := t.producer()
			if err != nil {
				return err
			}
			for i := range 10 {
				o, err := t.dueIn(fmt.Sprintf("order-%d", i), far-time.Duration(i)*time.Minute)
				if err != nil {
					return err
				}
				before, err := t.tokens(count)
				if err != nil {
					return err
				}
				if err := t.taken(p, o); err != nil {
					return err
				}
				after, err := t.tokens(count)
				if err != nil {
					return err
				}
				at, err := t.partitionOf(o.ID, count)
				if err != nil || at < 0 {
					return firstError(err, failf("message %q was answered with ok, is due later, and is in no partition", o.ID))
				}
				if before[at] == after[at] {
					return failf("message %q is the earliest of partition %d, and no token was added to %s", o.ID, at, t.keys(at).Wake)
				}
				if n, err := t.number("XLEN", t.keys(at).Wake); err != nil || n != 1 {
					return firstError(err, failf("%s holds %d tokens; wanted 1, by MAXLEN 1 (exact, without ~)", t.keys(at).Wake, n))
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "ids", Level: Good, Section: "4 and 13",
		Rule: "A message ID is any UTF-8 without control characters, up to 256 bytes: the member, and the fields of payload and meta, are these bytes.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			for _, id := range []string{
				" spaces ", "Case", "case", "caf\u00e9", "cafe\u0301", "0", "007", "1e3", "-inf", "NX", "*", "--help", "-x", "@payload", "$0", "%s%d", "a:b|c/d{e}", `back\slash`, "null", "__proto__",
				strings.Repeat("ü", 128),
			} {
				o, err := t.dueIn(id, far)
				if err != nil {
					return err
				}
				o.Payload, o.Headers = []byte("payload of "+id), map[string]string{"of": id}
				if err := firstError(t.taken(p, o), t.holds(o)); err != nil {
					return err
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "largest", Level: Good, Section: "13",
		Rule: "Values at the limits: 64 headers, names of 128 bytes, values of 8 KiB, 32 KiB together, a million attempts, a due time in ten years.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			many, err := t.dueIn("many", tenYears-time.Hour)
			if err != nil {
				return err
			}
			large := many
			many.Headers, many.MaxAttempts, many.Expires = map[string]string{}, 1_000_000, many.Due+1
			for i := range 64 {
				name := fmt.Sprintf("%02d-", i)
				many.Headers[name+strings.Repeat("n", 128-len(name))] = strings.Repeat("v", (32<<10)/64-128)
			}
			large.ID, large.Headers = "large", map[string]string{}
			for i := range 3 {
				large.Headers[fmt.Sprint("header-", i)] = strings.Repeat(`"\`, maxHeader/2)
			}
			for _, o := range []order{many, large} {
				if err := firstError(t.taken(p, o), t.holds(o)); err != nil {
					return err
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "reused", Level: Good, Section: "7 (IDs)",
		Rule: "An ID may be used again as soon as its message was drained: what is answered with ok then arrives, as it was ordered the last time.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			for _, payload := range []string{"one", "two", ""} {
				o, err := t.dueIn("again", 200*time.Millisecond)
				if err != nil {
					return err
				}
				o.Payload = []byte(payload)
				if err := t.taken(p, o); err != nil {
					return fmt.Errorf("when the message before it was drained: %w", err)
				}
				if _, err := t.arrivalOf(o.ID, payload); err != nil {
					return err
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "failed-command", Level: Good, Section: "7 (errors inside EXEC)",
		Rule: "An error that one command of the transaction was answered with is a refusal: ok is false, and the next message is taken as ever.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			for _, kind := range []string{"due", "meta"} {
				o, err := t.rich("refused-" + kind)
				if err != nil {
					return err
				}
				if err := t.whileBroken(kind, func() error {
					return t.refused(p, o, fmt.Sprintf("the server has refused a part of it: the key %s holds something else", kind))
				}); err != nil {
					return err
				}
				o.ID = "after-" + kind
				if err := firstError(t.taken(p, o), t.holds(o)); err != nil {
					return fmt.Errorf("after a message that was refused: %w", err)
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "partitions-grow", Level: Good, Section: "16",
		Rule: "A producer that spreads its messages reads the registry about every 5 s, and uses the greatest count.",
		run: func(t *trial) error {
			const before, after = 2, 4
			if err := firstError(t.register(), t.grow(before)); err != nil {
				return err
			}
			p, err := t.producer()
			if err != nil {
				return err
			}
			n := 0
			next := func() (order, error) { // it belongs into partition 1 of 2, and 3 of 4
				for n++; crc32.ChecksumIEEE(fmt.Append(nil, "order-", n))%after != after-1; n++ {
				}
				return t.dueIn(fmt.Sprint("order-", n), far)
			}
			var end time.Time
			for {
				o, err := next()
				if err != nil {
					return err
				}
				if err := t.taken(p, o); err != nil {
					return err
				}
				at, err := t.partitionOf(o.ID, after)
				if err != nil {
					return err
				}
				if at == 0 {
					t.note("it uses partition 0 only, which is allowed: messages of a queue with partitions are not spread")
					return t.finished(p)
				}
				if at == after-1 {
					return t.finished(p)
				}
				if end.IsZero() {
					if err := t.grow(after); err != nil {
						return err
					}
					end = time.Now().Add(noticed)
				}
				if time.Now().After(end) {
					return failf("%s after the queue had grown from %d to %d partitions, message %q is put into partition %d; by its CRC-32 it belongs into %d", noticed, before, after, o.ID, at, after-1)
				}
				if err := t.pause(time.Second); err != nil {
					return err
				}
			}
		},
	},
}

// tokens returns the last wake token of each partition, "" where there is none.
func (t *trial) tokens(count int) ([]string, error) {
	all := make([]string, count)
	for i := range all {
		var err error
		if all[i], err = t.lastToken(t.keys(i).Wake); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// registersWithToken checks that whoever makes a queue known by a command of its own tells the bridges.
func (t *trial) registersWithToken() error {
	g := lua.NewGlobals(t.prefix)
	registered := false
	for _, s := range t.watch.commands("") {
		switch {
		case s.is("HSETNX") && s.arg(1) == g.Queues, s.is("FCALL") && s.arg(1) == "duestream_register":
			registered = registered || s.answered && s.reply.number() == 1
		case s.is("XADD") && s.arg(1) == g.Wake && registered:
			return nil
		}
	}
	if registered {
		return failf("it registered a queue that was new, and added no token to %s: its first messages are up to 5 s late", g.Wake)
	}
	return nil
}
