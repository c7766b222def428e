package conformance

import (
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

const (
	noticed   = 20 * time.Second // a producer must read the registry again within this time
	tenYears  = 3650 * 24 * time.Hour
	maxHeader = 8 << 10
)

// careCases: rules that a careless producer breaks.
var careCases = []Case{
	{
		Name: "input-ends", Level: Good, Section: "15",
		Rule: "A producer whose input ends after many lines answers each of them once, when it was taken, " +
			"and only then exits with 0.",
		producer: func(t *producerTrial) {
			p := t.ready()
			var orders []order
			for i := range 60 {
				o := t.dueIn(fmt.Sprintf("m-%02d", i), far)
				o.Payload = []byte("payload of " + o.ID)
				orders = append(orders, o)
			}
			t.send(p, orders...)
			t.finished(p)
			p.kill() // kill returns when all output was read
			during(fmt.Sprintf("its input ended right behind %d lines, and it exited", len(orders)), func() {
				t.allAnswered(0, orders)
			})
			for _, o := range orders {
				t.holds(o)
			}
		},
	},
	{
		Name: "wakes-each", Level: Good, Section: "7, step 4, and 16",
		Rule: "For each message that is the earliest of its partition, a producer adds a token to that partition's " +
			"wake stream: not only for the first one, and not to another partition's.",
		producer: func(t *producerTrial) {
			const count = 4
			t.register()
			t.grow(count)
			p := t.producer()
			for i := range 10 {
				o := t.dueIn(fmt.Sprintf("order-%d", i), far-time.Duration(i)*time.Minute)
				before := t.tokens(count)
				t.taken(p, o)
				after := t.tokens(count)
				at := t.partitionOf(o.ID, count)
				if at < 0 {
					failf("message %q was answered with ok, is due later, and is in no partition", o.ID)
				}
				if before[at] == after[at] {
					failf("message %q is the earliest of partition %d, and no token was added to %s", o.ID, at, t.keys(at).Wake)
				}
				if sent := lua.EntryTime(after[at]); sent.After(t.now()) {
					failf("%s holds the token %s, whose ID the producer chose; wanted one that the server gives, by *",
						t.keys(at).Wake, after[at])
				}
				if n := t.number("XLEN", t.keys(at).Wake); n != 1 {
					failf("%s holds %d tokens; wanted 1, by MAXLEN 1 (exact, without ~)", t.keys(at).Wake, n)
				}
			}
			t.finished(p)
		},
	},
	{
		Name: "ids", Level: Good, Section: "4 and 13",
		Rule: "A message ID is any UTF-8 without control characters, up to 256 bytes: the member, and the fields of payload and meta, are these bytes.",
		producer: func(t *producerTrial) {
			p := t.ready()
			for _, id := range []string{
				" spaces ", "Case", "case", "caf\u00e9", "cafe\u0301", "0", "007", "1e3", "-inf", "NX", "*", "--help", "-x", "@payload", "$0", "%s%d", "a:b|c/d{e}", `back\slash`, "null", "__proto__",
				strings.Repeat("ü", 128),
			} {
				o := t.dueIn(id, far)
				o.Payload, o.Headers = []byte("payload of "+id), map[string]string{"of": id}
				t.taken(p, o)
				t.holds(o)
			}
			t.finished(p)
		},
	},
	{
		Name: "largest", Level: Good, Section: "13",
		Rule: "Values at the limits: 64 headers, names of 128 bytes, values of 8 KiB, 32 KiB together, a million attempts, a due time in ten years.",
		producer: func(t *producerTrial) {
			p := t.ready()
			many := t.dueIn("many", tenYears-time.Hour)
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
				t.taken(p, o)
				t.holds(o)
			}
			t.finished(p)
		},
	},
	{
		Name: "reused", Level: Good, Section: "7 (IDs)",
		Rule: "An ID may be used again as soon as its message was drained: what is answered with ok then arrives, as it was ordered the last time.",
		producer: func(t *producerTrial) {
			p := t.ready()
			for _, payload := range []string{"one", "two", ""} {
				o := t.dueIn("again", 200*time.Millisecond)
				o.Payload = []byte(payload)
				during("when the message before it was drained", func() {
					t.taken(p, o)
				})
				t.arrivalOf(o.ID, payload)
			}
			t.finished(p)
		},
	},
	{
		Name: "failed-command", Level: Good, Section: "7 (errors inside EXEC)",
		Rule: "An error that one command of the transaction was answered with is a refusal: ok is false, and the next message is taken as ever.",
		producer: func(t *producerTrial) {
			p := t.ready()
			for _, kind := range []string{"due", "meta"} {
				o := t.rich("refused-" + kind)
				t.whileBroken(kind, func() {
					t.refused(p, o, fmt.Sprintf("the server has refused a part of it: the key %s holds something else", kind))
				})
				o.ID = "after-" + kind
				during("after a message that was refused", func() {
					t.taken(p, o)
					t.holds(o)
				})
			}
			t.finished(p)
		},
	},
	{
		Name: "partitions-grow", Level: Good, Section: "16",
		Rule: "A producer that spreads its messages reads the registry about every 5 s, and uses the greatest count.",
		producer: func(t *producerTrial) {
			const before, after = 2, 4
			t.register()
			t.grow(before)
			p := t.producer()
			n := 0
			// next returns a message that belongs to partition 1 of 2 and to partition 3 of 4.
			next := func() order {
				for n++; crc32.ChecksumIEEE(fmt.Append(nil, "order-", n))%after != after-1; n++ {
				}
				return t.dueIn(fmt.Sprint("order-", n), far)
			}
			var end time.Time // the producer must have noticed the new partitions by this time
			for {
				o := next()
				t.taken(p, o)
				at := t.partitionOf(o.ID, after)
				if at == 0 {
					t.note("it uses partition 0 only, which is allowed: messages of a queue with partitions are not spread")
				}
				if at == 0 || at == after-1 {
					break
				}
				if end.IsZero() {
					t.grow(after)
					end = time.Now().Add(noticed)
				}
				if time.Now().After(end) {
					failf("%s after the queue had grown from %d to %d partitions, message %q is put into partition %d; by its CRC-32 it belongs into %d",
						noticed, before, after, o.ID, at, after-1)
				}
				t.pause(time.Second)
			}
			t.finished(p)
		},
	},
}

// registersWithToken checks that a producer that registers a queue by its own command adds a token for the bridges.
func (t *producerTrial) registersWithToken() {
	g := lua.NewGlobals(t.prefix)
	registered := false
	for _, s := range t.watch.commands() {
		switch {
		case s.is("HSETNX") && s.arg(1) == g.Queues, s.is("FCALL") && s.arg(1) == "duestream_register":
			registered = registered || s.answered && s.reply.Number() == 1
		case s.is("XADD") && s.arg(1) == g.Wake && registered:
			return
		}
	}
	if registered {
		failf("it registered a queue that was new, and added no token to %s: its first messages are up to 5 s late", g.Wake)
	}
}
