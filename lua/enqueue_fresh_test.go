package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// freshItems returns n messages: a third of them has headers, another third has an absolute due time.
func freshItems(n int) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{ID: fmt.Sprint("m", i), When: After(time.Hour), Payload: []byte(fmt.Sprint("body ", i))}
		switch i % 3 {
		case 1:
			items[i].Meta = EncodeMeta(map[string]string{"a": "b"}, 2, time.Time{})
		case 2:
			items[i].When = At(time.UnixMilli(4_000_000_000_000 + int64(i)))
		}
	}
	return items
}

// If the payload or meta of one message is missing, because it could not be written or was swept, no message of the
// call is scheduled: that one would be delivered incomplete. The payloads and metas of the call's other messages are
// deleted, except for messages that are scheduled already.
func TestEnqueueFreshRefusesMissingPayloadsAndMetas(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueue(Item{ID: "there", When: After(time.Hour), Payload: []byte("p"), Meta: `{"h:a":"b"}`})
		before := b.state()
		keys := []string{b.k.Due, b.k.Payload, b.k.Meta, b.k.Wake, b.k.Seen}
		// Each row: the error; then the arguments token, done, token_ms, described, and for each message when and id.
		for _, c := range [][]string{
			{"a payload or meta is not there", "t", "", "60000", "", "+1000", "m", "+1000", "other"},
			{"a payload or meta is not there", "t", "", "60000", "", "+1000", "other", "+1000", "m"},
			{"a payload or meta is not there", "t", "", "60000", "m", "+1000", "m"},
			{"a payload or meta is not there", "t", "", "60000", "m" + Separator + "there", "+1000", "m", "+1000", "there"},
			{"a payload or meta is not there", "t", "", "60000", "there" + Separator + "m", "+1000", "m", "+1000", "there"},
			{"IDs do not parse", "t", "", "60000", ""},
			{"IDs do not parse", "t", "", "60000", "", "+1000"},
			{"IDs do not parse", "t", "", "60000", "", "+1000", "m" + Separator + "g" + Separator + "1-1", "+1000", "m"},
			{"when does not parse", "t", "", "60000", "", "soon", "m"},
			{"when does not parse", "t", "", "60000", "", "+1", "m", "1e3", "m"},
			{"token or token_ms does not parse", "a" + Separator, "", "60000", "", "+1000", "m"},
			{"token or token_ms does not parse", "t", "", "-1", "", "+1000", "m"},
		} {
			b.do("HSET", b.k.Payload, "m", "p")
			sent := append([]string{"5"}, append(slices.Clone(keys), c[1:]...)...)
			err := b.try(append([]string{"EVAL", enqueueFreshScript.source}, sent...)...).Error()
			if err == nil || !strings.Contains(err.Error(), c[0]) {
				b.Errorf("%q: %v", c, err)
			}
			if strings.Contains(c[0], "parse") {
				b.do("HDEL", b.k.Payload, "m")
			}
			b.wantState(before)
		}
	})
}

// If one of the keys has another type, the error names the key, and no message of the call is scheduled.
func TestEnqueueFreshIsRefusedWhole(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		items := freshItems(3)
		for _, key := range []string{b.k.Due, b.k.Payload, b.k.Meta, b.k.Seen} {
			b.do("SET", key, "not this")
			_, err := EnqueueFresh(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, items)
			if !errors.Is(err, ErrWrongType) || Ambiguous(err) || !strings.Contains(err.Error(), "key "+key+" holds a string") {
				b.Errorf("%s is a string: %v", key, err)
			}
			b.do("DEL", key)
			redistest.Want(b, "scheduled, remembered or told", b.count("EXISTS", b.k.Due, b.k.Seen, b.k.Wake), 0)
		}
	})
}

// requests is a client that counts its round trips.
type requests struct {
	rueidis.Client
	n int
}

func (r *requests) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	r.n++
	return r.Client.Do(ctx, cmd)
}

func (r *requests) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	r.n++
	return r.Client.DoMulti(ctx, cmds...)
}

// A server that does not know the script gets its text in the second request.
func TestEnqueueFreshOnAServerThatForgotTheScript(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("SCRIPT", "FLUSH")
		for _, want := range []int{2, 1} {
			c := &requests{Client: b.c}
			receipts, err := EnqueueFresh(b.ctx, c, b.k, Token{}, freshItems(3))
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "verdict", receipts[2].Verdict, Scheduled)
			redistest.Want(b, "requests", c.n, want)
		}
	})
}

// One message whose ID must be compared, or that is empty, due or malformed, sends the whole call through the script
// enqueue: enqueue_fresh cannot handle such messages.
func TestOnlyFreshMessagesThatAreNotDueAreEnqueuedFresh(t *testing.T) {
	now := time.UnixMilli(1_795_000_000_000)
	item := Item{ID: "m", When: After(time.Second), Payload: []byte("p")}
	for name, change := range map[string]func(*Item){
		"has an ID of its own": func(i *Item) { i.Dedup = Refuse }, "has a window": func(i *Item) { i.Dedup = Window(time.Hour) },
		"is empty": func(i *Item) { i.Payload = nil }, "is due": func(i *Item) { i.When = After(0) },
		"was due": func(i *Item) { i.When = At(now) }, "is malformed": func(i *Item) { i.When = "soon" },
	} {
		other := item
		change(&other)
		redistest.Want(t, name, AllFresh([]Item{item, other, item}, now), false)
	}
	at := item
	at.When = At(now.Add(time.Millisecond))
	redistest.Want(t, "all are fresh", AllFresh([]Item{item, at}, now), true)
	redistest.Want(t, "none", AllFresh(nil, now), false)
}

// enqueueFresh calls EnqueueFresh, which must not fail.
func (b *testQueue) enqueueFresh(token Token, items ...Item) []Receipt {
	b.Helper()
	receipts, err := EnqueueFresh(b.ctx, b.c, b.k, token, items)
	if err != nil {
		b.Fatal(err)
	}
	return receipts
}

// Both ways of enqueueing store, answer and remember the same.
func TestEnqueueFreshStoresWhatEnqueueStores(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, n := range []int{1, 2, 3, 501, 1503} {
			items := freshItems(n)
			one, other := b.queue("fresh"), b.queue("plain")
			got := one.enqueueFresh(Token{Name: "t", Window: time.Hour}, items...)
			want, err := Enqueue(b.ctx, b.c, other.k, Token{Name: "t", Window: time.Hour}, items, Durability{})
			if err != nil {
				b.Fatal(err)
			}
			for i := range want {
				late, absolute := want[i].Due.Sub(got[i].Due), items[i].When[0] != '+'
				if got[i].Verdict != Scheduled || late < 0 || late > 10*time.Second || absolute && late != 0 {
					b.Fatalf("message %d of %d: %v where %v belongs", i, n, got[i], want[i])
				}
				redistest.Want(b, "due time", int64(one.dueOf(items[i].ID)), got[i].Due.UnixMilli())
			}
			redistest.Want(b, "payloads", fmt.Sprint(one.hash(one.k.Payload)), fmt.Sprint(other.hash(other.k.Payload)))
			redistest.Want(b, "metas", fmt.Sprint(one.hash(one.k.Meta)), fmt.Sprint(other.hash(other.k.Meta)))
			redistest.Want(b, "wake tokens", one.count("XLEN", one.k.Wake), 1)
			wantList(b, "remembered", one.texts("ZRANGE", one.k.Seen, "0", "-1"), Separator+"t")
			one.makeDueAll()
			redistest.Want(b, "moved", one.drain(n).Moved, n)
			one.do(append([]string{"DEL"}, append(keysOf(one.k), keysOf(other.k)...)...)...)
		}
	})
}
