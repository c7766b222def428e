package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// keepHistory turns on the history of the queue. From then on, the calls of b name "client c" as their actor.
func (b *testQueue) keepHistory(settings ...string) {
	b.Helper()
	if settings == nil {
		settings = []string{"history", "1000", "history_ms", "3600000"}
	}
	b.do(append([]string{"HSET", b.k.Policy}, settings...)...)
	b.k = b.k.As("client c")
}

// told returns the history in words: event, ID, and what else is known, without times and entry IDs.
func (b *testQueue) told() (list []string) {
	b.Helper()
	for _, e := range b.raw(b.k.History) {
		for _, t := range ParseTold(e.ID, e.FieldValues) {
			words := []string{t.Event, t.ID}
			for _, w := range []string{t.Group, t.Reason, t.Error, t.Consumer, t.By} {
				if w != "" {
					words = append(words, w)
				}
			}
			if t.Attempt > 0 {
				words = append(words, fmt.Sprint(t.Attempt))
			}
			list = append(list, strings.Join(words, " "))
		}
	}
	return list
}

// wantTold checks that want are the changes recorded from index *from on, and moves *from to their end.
func (b *testQueue) wantTold(from *int, want ...string) {
	b.Helper()
	all := b.told()
	wantList(b, "told", all[min(*from, len(all)):], want...)
	*from = len(all)
}

// The script that makes a change of state records it once, with the actor; a call that changes nothing records nothing.
func TestHistoryTellsEveryChange(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.keepHistory()
		at := 0
		b.enqueue(Item{ID: "a", When: After(time.Hour), Payload: []byte("p")},
			Item{ID: "now", When: After(0), Payload: []byte("p")})
		b.wantTold(&at, "scheduled a client c", "ready now client c 1")
		b.enqueue(Item{ID: "a", When: After(time.Hour), Dedup: Refuse})
		b.wantTold(&at)
		fresh := []Item{{ID: "f", When: After(time.Hour), Payload: []byte("p")}}
		if _, err := EnqueueFresh(b.ctx, b.c, b.k, Token{}, fresh); err != nil {
			b.Fatal(err)
		}
		b.wantTold(&at, "scheduled f client c")
		if _, moved, err := Reschedule(b.ctx, b.c, b.k, "f", After(2*time.Hour), Durability{}); err != nil || !moved {
			b.Fatal(moved, err)
		}
		b.wantTold(&at, "rescheduled f client c")
		if done, err := Cancel(b.ctx, b.c, b.k, []string{"f", "nobody"}, Durability{}); err != nil || !done[0] || done[1] {
			b.Fatal(done, err)
		}
		b.wantTold(&at, "cancelled f client c")

		b.do("ZADD", b.k.Due, "5", "a")
		b.k = b.k.As("bridge b")
		b.drain(10)
		b.wantTold(&at, "ready a bridge b 1")
		b.k = b.k.As("worker w")
		held := b.read("g", "w", 10)
		b.ack("g", Held{Entry: held[0].EntryID, ID: held[0].ID}, Held{Entry: "1-1"})
		b.wantTold(&at, "acknowledged now g worker w")

		redistest.Want(b, "outcome", b.fail("g", held[1].EntryID, ActionRetry, "failed", "no"), Retried)
		b.wantTold(&at, "retried a g failed no worker w 1")
		b.makeDue()
		b.k = b.k.As("bridge b")
		b.drain(10)
		b.wantTold(&at, "ready a g bridge b 2")
		held = b.read("g", "other", 10)
		redistest.Want(b, "outcome", b.fail("g", held[0].EntryID, ActionRelease, "", ""), Released)
		b.wantTold(&at, "released a g other bridge b 2")
		b.drain(10)
		b.wantTold(&at, "ready a g bridge b 2")
		held = b.read("g", "other", 10)
		b.abandon("g", "other", held[0].EntryID)
		b.reclaim("g", time.Minute)
		all := b.told()
		if got := all[len(all)-1]; len(all) != at+1 || !strings.HasPrefix(got, "retried a g visibility_timeout ") ||
			!strings.HasSuffix(got, " other bridge b 2") {
			b.Errorf("told of the reclaim: %q", all[at:])
		}
		at = len(all)
		b.makeDue()
		b.drain(10)
		b.wantTold(&at, "ready a g bridge b 3")
		held = b.read("g", "other", 10)
		redistest.Want(b, "outcome", b.fail("g", held[0].EntryID, ActionDead, "dead_letter", "never"), Dead)
		b.wantTold(&at, "dead a g dead_letter never other bridge b 3")

		b.k = b.k.As("operator o")
		letter := b.raw(b.k.Dead)[0].ID
		done, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{{Letter: letter, When: After(time.Hour)}})
		if err != nil || done[0] != RedriveScheduled {
			b.Fatal(done, err)
		}
		b.wantTold(&at, "redriven a g operator o")
		if _, _, err := RescheduleRetries(b.ctx, b.c, b.k, Walk{Limit: 10}, After(2*time.Hour), []string{"a"}); err != nil {
			b.Fatal(err)
		}
		b.wantTold(&at, "rescheduled a g operator o")
		if _, _, err := CancelRetries(b.ctx, b.c, b.k, Walk{Limit: 10}, []string{"a"}); err != nil {
			b.Fatal(err)
		}
		b.wantTold(&at, "cancelled a g operator o")

		b.enqueue(Item{ID: "late", When: After(time.Hour), Meta: EncodeMeta(nil, 0, time.UnixMilli(5))})
		b.do("ZADD", b.k.Due, "4", "late", "4", "odd\x1f")
		b.drain(10)
		b.wantTold(&at, "scheduled late operator o", "dead late expired operator o 1",
			"dead odd\x1f malformed no message ID: an empty member, or a retry without its meta operator o 1")
	})
}

// A history that cannot be written, or whose settings cannot be read, disturbs nothing else: a message is delivered,
// retried and acknowledged as without a history.
func TestNothingDependsOnAHistory(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		for i, spoil := range [][]string{ // each makes the history or its settings unusable
			{"SET", b.k.History, "x"}, {"HSET", b.k.Policy, "history", "many"}, {"HSET", b.k.Policy, "history", "0"},
			{"HSET", b.k.Policy, "history", "99999999999999999999"},
			{"XADD", b.k.History, "18446744073709551615-18446744073709551615", "a", "b"},
		} {
			b.do("DEL", b.k.History, b.k.Policy)
			b.keepHistory()
			b.do(spoil...)
			id := fmt.Sprint("m", i)
			e := b.deliver([]string{"g"}, id)[0]
			redistest.Want(b, fmt.Sprint(spoil, " retry"), b.fail("g", e.EntryID, ActionRetry, "failed", "no"), Retried)
			b.makeDue()
			b.drain(10)
			e = b.read("g", "w", 1)[0]
			b.ack("g", Held{Entry: e.EntryID})
			redistest.Want(b, "left", b.pending("g")+b.count("ZCARD", b.k.Due)+b.count("XLEN", b.k.Stream), 0)
		}
	})
}

// A history is bounded in number and time. The history of an idle queue expires after history_ms.
func TestHistoryIsBounded(t *testing.T) {
	onServers(t, func(b *testQueue) {
		b.keepHistory("history", "100", "history_ms", "60000")
		b.do("XADD", b.k.History, "5-1", "by", "", "ready", `{"id":"old"}`)
		var items []Item
		for i := range 500 {
			items = append(items, Item{ID: fmt.Sprint("m", i), When: After(time.Hour), Payload: []byte("p")})
		}
		b.enqueue(items...)
		for _, item := range items {
			b.enqueue(item)
		}
		// XTRIM with ~ removes whole nodes only, so some more than 100 stay.
		if n := b.count("XLEN", b.k.History); n < 100 || n > 300 {
			b.Errorf("%d entries are kept, want about 100", n)
		}
		if slices.Contains(b.told(), "ready old") {
			b.Error("what is older than history_ms is there")
		}
		if ttl := b.count("PTTL", b.k.History); ttl < 1 || ttl > 60000 {
			b.Errorf("the history ends in %d ms, want at most a minute", ttl)
		}
		huge := strings.Repeat("x", 100_000)
		b.do("ZADD", b.k.Due, "5", huge)
		b.drain(10)
		all := b.told()
		if last := all[len(all)-1]; len(last) > 2000 {
			b.Errorf("%d bytes are told of a message", len(last))
		}
	})
}

// The history does not record a producer's own fields, even if they are named like fields of the history. A retry that
// is scheduled again under its name, as by an import, is recorded with the ID and the group of its message.
func TestHistoryOmitsFieldsOfProducers(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.keepHistory()
		at := 0
		b.enqueue(Item{ID: "thief", When: After(time.Hour),
			Meta: `{"entry":"1-1","group":"payroll","reason":"because","error":"e","consumer":"me"}`})
		b.enqueue(Item{ID: "m" + Separator + "g" + Separator + "1-1", When: After(time.Hour), Payload: []byte("p"),
			Meta: `{"id":"m","for":"g","attempt":"2","error":"e"}`, Dedup: Refuse})
		b.wantTold(&at, "scheduled thief client c", "scheduled m g client c")
		b.makeDue()
		b.drain(10)
		told := b.told()
		slices.Sort(told[at:])
		wantList(b, "told", told[at:], "ready m g client c 2", "ready thief client c 1")
	})
}
