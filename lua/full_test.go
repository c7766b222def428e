package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// G9: at maxmemory only the calls that take in new data are refused, each as a whole, with a typed error: see takesIn.
// All calls that deliver, acknowledge, repair or free go on.
func TestFullServerRefusesOnlyEnqueue(t *testing.T) {
	t.Run("own", func(t *testing.T) {
		b := newTestQueue(t, redistest.Own(t, "--maxmemory", "12mb", "--maxmemory-policy", "noeviction"))
		b.fixture()
		n := 0
		for ; ; n += 10 {
			items := make([]Item, 10)
			for i := range items {
				items[i] = Item{ID: fmt.Sprint("fill", n+i), When: After(time.Hour), Payload: make([]byte, 32<<10),
					Dedup: Window(time.Hour)}
			}
			if _, err := Enqueue(b.ctx, b.c, b.k, Token{Name: fmt.Sprint("t", n), Window: time.Hour}, items,
				Durability{}); err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				break
			}
			if n > 1000 {
				t.Fatal("the server is never full")
			}
		}
		redistest.Want(b, "a refused batch left members", b.count("ZCARD", b.k.Due), n+2)
		redistest.Want(b, "a refused batch left bodies", b.count("HLEN", b.k.Payload), n+2)
		redistest.Want(b, "a refused batch left windows", b.count("ZCARD", b.k.Seen), n+n/10)
		b.do("CONFIG", "SET", "maxmemory", "0")
		b.fullServer()
	})
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		if !strings.Contains(s.Name(), "docker") {
			t.Logf("%s is not this test's to fill", s.Name())
			return
		}
		for _, b := range []*testQueue{newTestQueue(t, s), newFunctionsQueue(t, s)} {
			b.fixture()
			b.fullServer()
		}
	})
}

// fullServer runs every call on a server that refuses writes, each on its own queue with something to act on.
func (b *testQueue) fullServer() {
	b.Helper()
	queues := map[string]*testQueue{}
	for _, c := range calls() {
		q := b.queue(c.script.name)
		q.g = NewGlobals(b.g.Queues + c.script.name)
		q.fixture()
		q.do("HSET", q.k.Payload, "orphan", "p")
		if c.script == cancelRetriesScript || c.script == rescheduleRetriesScript {
			q.do("ZADD", q.k.Due, "10000000000000", "m"+Separator+"g"+Separator+"9-1")
		}
		if c.script == receiveScript {
			q.do("XADD", q.k.Stream, "7-1", "id", "m3", "payload", "p")
		}
		if c.script == trimScript {
			q.do("XACK", q.k.Stream, "g", "5-1")
		}
		queues[c.script.name] = q
	}
	b.do("CONFIG", "SET", "maxmemory", "1")
	defer b.do("CONFIG", "SET", "maxmemory", "0")
	if err := b.try("SET", b.k.Policy+"x", "y").Error(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		b.Fatalf("the server takes a plain write: %v", err)
	}
	before := b.dump()
	for _, item := range []Item{
		{ID: "now", When: After(0), Payload: []byte("p")}, {ID: "later", When: After(time.Hour), Payload: []byte("p"),
			Dedup: Window(time.Hour)},
		{ID: "due", When: After(time.Hour), Dedup: Fresh},
	} {
		_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "full", Window: time.Hour}, []Item{item, {ID: "and", When: After(0)},
			item}, Durability{})
		if !errors.Is(err, ErrFull) || Ambiguous(err) || Temporary(err) {
			b.Fatalf("enqueue of %s: %v", item.ID, err)
		}
	}
	for key, now := range b.dump() {
		if now != before[key] {
			b.Fatalf("a refused enqueue changed %s:\n%s\n%s", key, before[key], now)
		}
	}
	same := map[string]bool{ // these change nothing that dump shows; enqueue_fresh deletes what its caller wrote
		"enqueue": true, "enqueue_one": true, "restore": true, "export": true, "survey": true, "find_orphans": true,
		"find_lost":    true,
		"find_entries": true, "search_due": true, "search_entries": true, "glance": true,
		"versions":        true,
		"find_unfinished": true, "recur": true, "plan": true, "run_recurrence": true,
		// These write keys that dump does not know.
		"drop_consumer": true, "drop_groups": true, "delete_empty": true, "take": true, "set_target": true,
		"save_progress": true, "claim": true,
	}
	for _, c := range calls() {
		q := queues[c.script.name]
		before := fmt.Sprint(q.dump())
		switch err := c.run(q); {
		case slices.Contains(takesIn, c.script):
			redistest.Want(b, c.script.name+" is refused", errors.Is(err, ErrFull), true)
		case err != nil:
			b.Errorf("%s on a full server: %v", c.script.name, err)
		}
		redistest.Want(b, c.script.name+" changed nothing", fmt.Sprint(q.dump()) == before, same[c.script.name])
	}
	// A fixture has 2 scheduled messages, 2 payloads, 1 meta, 2 entries and 1 dead letter.
	queues["retry"].wantState("due=3 payload=3 meta=2 stream=0 dead=2")
	queues["redrive"].wantState("due=3 payload=3 meta=2 stream=2 dead=0")
	queues["drain"].wantState("due=1 payload=1 meta=0 stream=3 dead=1")
}
