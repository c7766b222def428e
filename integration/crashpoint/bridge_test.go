package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// The only bridge of a prefix is interrupted at each of its requests: while it checks the server, writes the
// defaults, sends its heartbeat, reads the registry, looks for queues, surveys, drains, waits for tokens, reclaims,
// trims, sweeps, and stops.
func TestBridgeInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	operation{name: "serve", modes: []mode{unsent, unheard, stops, dies}, width: 48, run: r.serve}.sweep(t)
}

// serve makes a bridge do all its work except what takes minutes: it delivers messages that become due, dead-letters
// an expired one, reclaims from a dead consumer, frees entries of a group with plain XACK, and finds an unregistered
// queue.
func (r *rig) serve(t *testing.T, f *fuse) {
	r = r.of(t)
	r.prefix = r.server.Prefix(t)
	t.Cleanup(r.clear) // the search for the stray queue would scan keys of other runs
	l, stray := r.load(t), r.load(t)
	l.groups("a", "b")
	stray.groups("b")
	l.setLongVisibility("b")
	stray.setLongVisibility("b")
	l.send(message("left behind", 0))
	if found := l.readRaw("a", "left"); len(found) != 1 {
		t.Fatalf("%d entries where 1 belongs", len(found))
	}
	l.send(message("now", 0), message("soon", 30*time.Millisecond), message("later", 600*time.Millisecond))
	expired := message("expired", 20*time.Millisecond)
	expired.Expires = time.Now().Add(10 * time.Millisecond)
	l.sendToDie(expired)
	l.dead = []string{"/expired expired"}
	// The remains of a producer that died between its two commands are checked, too. A bridge deletes them after a
	// minute, which this test does not wait for.
	l.must(l.do("HSET", l.k.Payload, "orphan", "x").Error())
	l.must(errors.Join(stray.do("HSET", stray.k.Payload, "stray", body("stray")).Error(), stray.do("ZADD", stray.k.Due, "1000",
		"stray").Error()))
	stray.ledger.Sent("stray", 1000)

	b := r.bridge(f.redis(t, r.server))
	l.worker(r.redis, "a", "", nil)
	go func() {
		select {
		case <-f.blow:
			if f.mode == dies || f.mode == stops {
				b.cancel()
			}
		case <-b.done:
		}
	}()
	replaced := false
	const onlyOrphan = "1 payloads left; " // the text of empty when only the orphan is left
	quiet := func() (bool, string) {
		l.consume("b")
		stray.consume("b")
		sum := l.ledger.Summary("a", "b") // before the check for remains, so that both agree
		_, left := l.empty("a", "b")
		_, other := stray.empty("b")
		return sum.Lost == 0 && left+other == onlyOrphan, fmt.Sprintf("%s; %s%s", sum, left, other)
	}
	l.until(func() (bool, string) {
		if b.over() && !replaced {
			replaced = true
			r.bridge(r.redis)
		}
		ok, why := quiet()
		return ok && l.number("XLEN", l.k.Dead) == 1 && r.served(), why
	})
	if err := b.stop(); err != nil && f.mode != dies {
		t.Errorf("Run returned %v", err)
	}
	if !replaced {
		r.bridge(r.redis) // for the remains of the stop
	}
	l.until(quiet)
	l.must(l.do("HDEL", l.k.Payload, "orphan").Error())
	l.rest("a", "b")
	stray.rest("b")
	// One delivery was abandoned. A bridge that is cut off must not cause more deliveries.
	l.checkAttempts(map[string]int{"a/left behind": 2}, 0)
	if f.mode == "" {
		l.checkCalls(map[string]int{"a/left behind": 1})
	}
}

// served reports whether the settings exist and both queues are registered.
func (r *rig) served() bool {
	c, g := r.redis.Client, lua.NewGlobals(r.prefix)
	settings, _ := c.Do(context.Background(), c.B().Exists().Key(g.Defaults).Build()).AsInt64()
	queues, _ := c.Do(context.Background(), c.B().Hlen().Key(g.Queues).Build()).AsInt64()
	return settings == 1 && queues == 2
}

// clear deletes everything under the prefix.
func (r *rig) clear() {
	c := r.redis.Client
	keys, err := c.Do(context.Background(), c.B().Keys().Pattern(r.prefix+"*").Build()).AsStrSlice()
	if err == nil && len(keys) > 0 {
		err = c.Do(context.Background(), c.B().Del().Key(keys...).Build()).Error()
	}
	if err != nil {
		r.Error(err)
	}
}

// readRaw reads up to 100 entries with XREADGROUP, as a program without duestream does.
func (l *load) readRaw(group, consumer string) []lua.Entry {
	c := l.redis.Client
	reply, err := c.Do(l.ctx(), c.B().Xreadgroup().Group(group,
		consumer).Count(100).Streams().Key(l.k.Stream).Id(">").Build()).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		l.Fatal(err)
	}
	var out []lua.Entry
	for _, e := range reply[l.k.Stream] {
		out = append(out, lua.ParseEntry(e.ID, e.FieldValues))
	}
	return out
}

// consume reads and acknowledges what is ready, as a worker in another language does: XREADGROUP, XACK, and a
// comparison of the field "for" with the group.
func (l *load) consume(group string) {
	for _, e := range l.readRaw(group, "other") {
		if e.For == "" || e.For == group {
			m := stream.Delivered(e, l.queue, 0, group)
			l.got(group, &m)
		}
		l.must(l.do("XACK", l.k.Stream, group, e.EntryID).Error())
	}
}
