package lua

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A message that cannot be delivered, and whose dead letter is refused, waits another minute, and the others go on.
// Before, such a message stopped its queue for good.
func TestDeadStreamThatRefusesStopsNoOtherMessage(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.fillStream(b.k.Dead)
		metas := []string{"{}", "broken", "{}", `{"expires_ms":"77"}`, `{"id":"m","for":"gone","attempt":"2"}`, "{}"}
		for i, meta := range metas {
			b.do("ZADD", b.k.Due, strconv.Itoa(i+1), fmt.Sprint("m", i))
			b.do("HSET", b.k.Meta, fmt.Sprint("m", i), meta)
			b.do("HSET", b.k.Payload, fmt.Sprint("m", i), "p")
		}
		before := b.now()
		first := b.drain(4) // of six, so more messages are due
		if first.Moved != 2 || first.Dead != 0 || first.Refusal != "" || first.DeadRefusal == "" || first.Wait != 0 {
			b.Fatalf("%+v", first)
		}
		d := b.drain(10)
		if d.Moved != 1 || d.Dead != 0 || d.Refusal != "" || d.DeadRefusal == "" || d.Wait < 50*time.Second ||
			d.Wait > time.Minute {
			b.Fatalf("%+v", d)
		}
		d = b.drain(10)
		if d.Moved+d.Dead != 0 || d.DeadRefusal != "" || d.Wait < 50*time.Second {
			b.Fatalf("read again: %+v", d)
		}
		wantList(b, "delivered", ids(b.entries(b.k.Stream)), "m0", "m2", "m5")
		b.wantState("due=3 payload=3 meta=3 stream=3 dead=1")
		for _, m := range []string{"m1", "m3", "m4"} {
			if due, _ := strconv.ParseInt(b.text("ZSCORE", b.k.Due, m), 10, 64); due < before+60_000 || due > b.now()+60_000 {
				b.Errorf("%s waits until %d, drained at %d", m, due, before)
			}
		}
		b.do("DEL", b.k.Dead)
		b.makeDue()
		if d := b.drain(10); d.Dead != 3 || d.DeadRefusal != "" {
			b.Fatalf("%+v", d)
		}
		b.wantState("due=0 payload=0 meta=0 stream=3 dead=3")
	})
}

// A payload and a meta of 512 MiB each, both within the server's limit for a string, are more than an entry can hold.
// Such a message must become a dead letter. Before, the queue stopped at it. In this test an entry can hold 1 MiB.
func TestDrainBuriesWhatIsLargerThanAnEntryCanBe(t *testing.T) {
	const limit, kept = 1 << 20, 65536
	text := strings.Replace(drainScript.source, "local MAX_ENTRY_BYTES = 1072693248", fmt.Sprint("local MAX_ENTRY_BYTES = ",
		limit), 1)
	if text == drainScript.source {
		t.Fatal("the script has another limit")
	}
	everywhere(t, func(b *testQueue) {
		score := 0
		put := func(member string, payload, meta int) {
			score++
			b.do("ZADD", b.k.Due, strconv.Itoa(score), member)
			if payload > 0 {
				b.do("HSET", b.k.Payload, member, strings.Repeat("p", payload))
			}
			if meta > 0 {
				b.do("HSET", b.k.Meta, member, `{"h:a":"`+strings.Repeat("m", meta-10)+`"}`)
			}
		}
		long := strings.Repeat("x", limit/2+1)
		put("good-1", limit-6, 0)
		put("payload and meta", limit/2, limit/2)
		put("payload", 3*limit, 0)
		put("meta", 0, 3*limit)
		put("payload and a meta that could be read", limit-100, 200)
		put(long, limit/2, 0)
		put("kept whole", limit/4, limit/2+100)
		put("good-2", 10, 20)
		for range 20 {
			b.do("EVAL", text, "8", b.k.Due, b.k.Payload, b.k.Meta, b.k.Stream, b.k.Dead, b.k.Turns, b.k.Policy, b.k.Rate, "500", strconv.Itoa(limit))
		}
		b.wantState("due=0 payload=0 meta=0 stream=2 dead=6")
		wantList(b, "delivered", ids(b.entries(b.k.Stream)), "good-1", "good-2")
		letters := b.letters()
		for i, c := range []struct {
			id            string
			payload, meta int
			says          string
		}{
			{"payload and meta", limit / 2, kept, "the member has 16 bytes, the payload 524288, the meta 524288"},
			{"payload", limit - 2*kept, 0, "the payload 3145728, the meta 0"},
			{"meta", 0, kept, "the payload 0, the meta 3145728"},
			{"payload and a meta that could be read", limit - 2*kept, 200, "the payload 1048476, the meta 200"},
			{long[:kept], limit / 2, 0, "the member has 524289 bytes"},
			{"kept whole", limit / 4, limit/2 + 100, "meta is larger than 512 KiB"},
		} {
			e := letters[i]
			if e.ID != c.id || len(e.Payload) != c.payload || len(e.Extra[FieldMeta]) != c.meta || e.Reason != ReasonMalformed ||
				!strings.Contains(e.Error, c.says) {
				b.Errorf("%.40q: payload of %d, meta of %d, %s, error %q; want %.40q %d %d %q",
					e.ID, len(e.Payload), len(e.Extra[FieldMeta]), e.Reason, e.Error, c.id, c.payload, c.meta, c.says)
			}
		}
	})
}
