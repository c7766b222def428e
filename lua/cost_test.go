package lua

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The table lists the commands that the server runs for one call with one message, so that nobody adds a command to a
// script unnoticed. Most messages come alone, so this is the cost of most calls of producers and workers.
func TestCommandsOfACallWithOneMessage(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	later, token := After(time.Hour), Token{Name: "2", Done: "1", Window: time.Minute}
	item := Item{ID: "m", When: later, Payload: []byte("p")}
	headers := EncodeMeta(map[string]string{"trace": "7f3a"}, 0, time.Time{})
	with := func(change func(*Item)) Item {
		changed := item
		change(&changed)
		return changed
	}
	enqueue := func(items ...Item) func(b *testQueue) { return func(b *testQueue) { b.enqueueAs(token, items...) } }
	fresh := func(items ...Item) func(b *testQueue) { return func(b *testQueue) { b.enqueueFresh(token, items...) } }
	one := func(token Token, item Item) func(b *testQueue) {
		return func(b *testQueue) { b.enqueueOne(token, item) }
	}
	first := Token{Name: "2", Window: time.Minute} // the caller's previous call, if any, is not remembered
	before := func(b *testQueue) {                 // others are scheduled, and the previous call is remembered
		b.enqueueAs(Token{Name: "1", Window: time.Minute}, Item{ID: "first", When: After(time.Minute), Payload: []byte("p")})
	}
	var held Entry
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("m%02d", i))
	}
	var twenty []Entry
	delivered := func(groups ...string) func(b *testQueue) {
		return func(b *testQueue) { held = b.deliver(groups, "m")[0] }
	}
	for _, c := range []struct {
		name   string
		before func(b *testQueue)
		call   func(b *testQueue)
		want   string // the commands, sorted
	}{
		{"schedule", before, one(first, item), "hget hset time zadd zcount zscore"},
		{"schedule the first", func(*testQueue) {}, one(first, item), "hget hset time xadd zadd zcount zscore"},
		{"schedule with headers", before, one(first, with(func(i *Item) { i.Meta = headers })),
			"hget hset hset time zadd zcount zscore"},
		{"schedule what is due soon", func(*testQueue) {}, one(first, with(func(i *Item) { i.When = After(time.Second) })),
			"hget hset time xadd zadd zadd zcount zscore"},
		{"schedule after a call that is remembered", before, one(token, item), "hget hset time zadd zcount zrem zscore"},
		{"schedule a large payload", before, fresh(item), "hexists hget hset time zadd zadd zcount zrem zscore"},
		{"schedule a large payload with headers", before, fresh(with(func(i *Item) { i.Meta = headers })),
			"hexists hexists hget hset hset time zadd zadd zcount zrem zscore"},
		{"schedule an ID", before, enqueue(with(func(i *Item) { i.Dedup = Refuse })),
			"hget hlen hset time zadd zadd zcount zmscore zmscore zmscore zrange zrem"},
		{"schedule in the place of another one", func(b *testQueue) { before(b); b.enqueue(item) },
			enqueue(with(func(i *Item) { i.Dedup = Replace })),
			"hget hlen hset time zadd zadd zcount zmscore zmscore zmscore zrange zrem"},
		{"schedule with a dedup window", before, enqueue(with(func(i *Item) { i.Dedup = Window(time.Hour) })),
			"hget hlen hset time zadd zadd zcount zmscore zmscore zmscore zrange zrem"},
		{"schedule what is due", before, enqueue(with(func(i *Item) { i.When = After(0) })),
			"hget hlen hlen hmget time xadd zadd zmscore zrange zrem zrem"},
		{"cancel", func(b *testQueue) { before(b); b.enqueue(item) }, func(b *testQueue) {
			if ok, err := Cancel(b.ctx, b.c, b.k, []string{"m"}, Durability{}); err != nil || !ok[0] {
				b.Fatal(ok, err)
			}
		}, "exists hdel hdel hget type type type zrem zrem"},
		{"reschedule", func(b *testQueue) { before(b); b.enqueue(item) }, func(b *testQueue) {
			if _, ok, err := Reschedule(b.ctx, b.c, b.k, "m", After(2*time.Hour), Durability{}); err != nil || !ok {
				b.Fatal(ok, err)
			}
		}, "hget time xdel zadd zrange zscore"},
		{"drain", func(b *testQueue) {
			b.enqueue(item, with(func(i *Item) { i.ID = "next" }))
			b.do("ZADD", b.k.Due, "5", "m")
		},
			func(b *testQueue) { b.drain(100) }, "hdel hget hlen hmget time xadd xdel zrange zremrangebyrank"},
		{"drain one with headers", func(b *testQueue) {
			b.enqueue(with(func(i *Item) { i.Meta = headers }))
			b.makeDue()
		},
			func(b *testQueue) { b.drain(100) },
			"hdel hdel hget hget hlen hmget time xadd xdel zrange zremrangebyrank"},
		{"drain nothing", before, func(b *testQueue) { b.drain(100) }, "hmget time zrange"},
		{"acknowledge", delivered("g"), func(b *testQueue) { b.ack("g", Held{Entry: held.EntryID}) },
			"hget xack xdel xinfo|groups"},
		{"acknowledge and compare", delivered("g"),
			func(b *testQueue) { b.ack("g", Held{Entry: held.EntryID, ID: "m"}) },
			"hget xack xdel xinfo|groups xrange"},
		{"acknowledge for one of two groups", delivered("g", "h"),
			func(b *testQueue) { b.ack("g", Held{Entry: held.EntryID}) },
			"hget xack xinfo|groups xpending"},
		{"acknowledge twenty that another group holds",
			func(b *testQueue) { twenty = b.deliver([]string{"g", "h"}, many...) },
			func(b *testQueue) { b.ack("g", heldBy(twenty)...) },
			"hget " + strings.Repeat("xack ", 20) + "xinfo|groups xpending"},
		{"retry", delivered("g"), func(b *testQueue) { b.fail("g", held.EntryID, ActionRetry, "max_attempts", "no") },
			"hget hset hset time type type xack xack xadd xdel xinfo|groups xpending xrange zadd zrange"},
		{"dead-letter", delivered("g"),
			func(b *testQueue) { b.fail("g", held.EntryID, ActionDead, "dead_letter", "no") },
			"hget time type type xack xack xadd xdel xinfo|groups xpending xpending xrange zrange"},
		{"extend", delivered("g"), func(b *testQueue) { b.extend("g", "c1", Held{Entry: held.EntryID, ID: "m"}) },
			"hget time type xack xclaim xpending"},
		{"cancel what is held", delivered("g"), func(b *testQueue) { b.cancelRunning("", "m") },
			"hget type type type type xclaim xdel xinfo|groups xpending xrange xrevrange"},
		{"cancel what is ready", func(b *testQueue) {
			b.groups("g")
			b.enqueue(with(func(i *Item) { i.When = After(0) }))
		},
			func(b *testQueue) { b.cancelRunning("", "m") },
			"hget type type type type xdel xdel xinfo|groups xrange xrevrange zrem"},
		{"acknowledge with a result", delivered("g"), func(b *testQueue) { b.ackResult("g", held, "paid") },
			"hget pexpire set time xack xdel xinfo|groups xrange"},
		{"save progress", delivered("g"), func(b *testQueue) { b.saveProgress("g", held, "page 7") },
			"hdel hset type type xpending"},
		{"receive", func(b *testQueue) { b.groups("g"); b.enqueue(with(func(i *Item) { i.When = After(0) })) },
			func(b *testQueue) { b.receive("g", time.Second, 1) },
			"hget xack xclaim xreadgroup"},
		{"reclaim", func(b *testQueue) { delivered("g")(b); b.abandon("g", "c1", held.EntryID) },
			func(b *testQueue) { b.reclaim("g", time.Minute) },
			"hget hget hset hset time type type type type xack xack xadd xautoclaim " +
				"xdel xgroup|delconsumer xinfo|groups xpending xpending xpending xpending zadd zrange zrange"},
		{"trim", delivered("g"), func(b *testQueue) { b.trim("0-0", 100, 1<<20) },
			"exists hlen time xinfo|groups xlen xpending xpending xrange xtrim xtrim zcard zcount"},
		{"survey an idle queue", func(*testQueue) {}, func(b *testQueue) {
			if _, err := Survey(b.ctx, b.c, []Keys{b.k}, false); err != nil {
				b.Fatal(err)
			}
		}, "exists time xlen xrevrange"},
		{"plan an occurrence", func(b *testQueue) { b.recur("r", anySpec) }, func(b *testQueue) {
			b.plan("r", b.text("HGET", b.k.Planned, "r"), 1000)
		}, "hexists hget hget hget hset hset hset time type type type type type type xadd zadd zrange zscore"},
		{"take out of a bucket", func(*testQueue) {}, func(b *testQueue) {
			if _, err := Take(b.ctx, b.c, b.g.Bucket("d"), time.Second, 5, 1); err != nil {
				b.Fatal(err)
			}
		}, "getrange pexpire set time"},
		{"claim an effect", func(*testQueue) {}, func(b *testQueue) { b.claim("a") }, "getrange pexpire set time"},
		{"heartbeat", func(*testQueue) {}, func(b *testQueue) {
			if _, _, err := Heartbeat(b.ctx, b.c, b.g, "b", time.Minute); err != nil {
				b.Fatal(err)
			}
		}, "time zadd zrange zremrangebyscore zremrangebyscore"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestQueue(t, s)
			c.before(b)
			earlier := s.Calls(t)
			c.call(b)
			var inside []string
			for command, n := range s.Calls(t) {
				for range n - earlier[command] {
					inside = append(inside, command)
				}
			}
			inside = slices.DeleteFunc(inside, func(command string) bool {
				return slices.Contains([]string{"auth", "client|setinfo", "client|setname", "client|tracking", "eval", "evalsha",
					"evalsha_ro", "hello", "info", "ping"}, command) // of the connections, and the call itself
			})
			slices.SortFunc(inside, cmp.Compare)
			redistest.Want(t, fmt.Sprint(len(inside), " commands"), strings.Join(inside, " "), c.want)
		})
	}
}
