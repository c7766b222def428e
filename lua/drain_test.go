package lua

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A member that cannot become an entry must become a dead letter, and must not stop the other members of its batch.
// Before, such a member stopped the batch after a part of it was added, and each further drain added that part again.
func TestDrainBuriesMalformedMembersAlone(t *testing.T) {
	headers := make([]string, 5000)
	for i := range headers {
		headers[i] = fmt.Sprintf(`"h:%d":"v"`, i)
	}
	bad := map[string]string{ // metas that drain must refuse, by member; the member says what is wrong
		"boolean": `{"h:a":true}`, "nested": `{"h:a":{"b":"c"}}`, "list": `{"h:a":["b"]}`, "number": `{"h:a":12345678901234567}`,
		"array":      `["a","b"]`,
		"top number": `5`, "top string": `"x"`, "top null": `null`, "broken": `{"h:a":"b"`, "empty": ``, "text": `hello`,
		"5000 headers": "{" + strings.Join(headers, ",") + "}",
		"not UTF-8":    "{\"h:a\":\"\xff\xfe\"}", "name not UTF-8": "{\"h:\xc3\":\"a\"}", "payload in meta": `{"payload":"x"}`,
		"due in meta": `{"due_ms":"5"}`,
		"attempt":     `{"attempt":"abc"}`, "attempt 0": `{"attempt":"0"}`, "attempt 1e3": `{"attempt":"1e3"}`,
		"empty id": `{"id":""}`, "separator": `{"id":"a\u001fb"}`,
		"expires": `{"expires_ms":"soon"}`, "max_attempts": `{"max_attempts":"-1"}`, "huge": `{"h:a":"` +
			strings.Repeat("x", 600<<10) + `"}`,
		"surrogate": `{"h:a":"\ud800"}`, "low surrogate": `{"h:a":"\udc00x"}`,
	}
	everywhere(t, func(b *testQueue) {
		bad := maps.Clone(bad)
		if b.inProcess() {
			delete(bad, "surrogate") // its decoder replaces half characters, as Go's does
			delete(bad, "low surrogate")
		}
		score := 0
		put := func(member, meta string) {
			score++
			b.do("HSET", b.k.Payload, member, "payload of "+member)
			b.do("HSET", b.k.Meta, member, meta)
			b.do("ZADD", b.k.Due, strconv.Itoa(score), member)
		}
		good := 0
		for name, meta := range bad {
			put("good-"+strconv.Itoa(good), `{"h:a":"b"}`)
			good++
			put(name, meta)
		}
		put("\xff\xfe", `{}`)
		put("x"+Separator+"g"+Separator+"5-1", `{"for":"g"}`) // a retry whose meta lost its ID
		put("good-last", `{}`)
		good++
		buried := 0
		for range 3 { // the first drain takes all, and the others must add nothing
			d := b.drain(1000)
			redistest.Want(b, "refusal", d.Refusal, "")
			buried += d.Dead
		}
		if buried != len(bad)+2 {
			b.Errorf("buried %d of %d; delivered %q", buried, len(bad)+2, ids(b.entries(b.k.Stream)))
		}
		b.wantState(fmt.Sprintf("due=0 payload=0 meta=0 stream=%d dead=%d", good, len(bad)+2))
		seen := map[string]bool{}
		for _, e := range b.entries(b.k.Stream) {
			if !strings.HasPrefix(e.ID, "good-") || seen[e.ID] || string(e.Payload) != "payload of "+e.ID {
				b.Errorf("delivered %q", e.ID)
			}
			seen[e.ID] = true
		}
		for _, e := range b.letters() {
			meta, known := bad[e.ID]
			if e.ID == "x" {
				known, meta = true, `{"for":"g"}`
				redistest.Want(b, "group of a retry", e.Group, "g")
			} else if e.ID == "\xff\xfe" {
				known, meta = true, `{}`
			} else {
				redistest.Want(b, e.ID+" payload", string(e.Payload), "payload of "+e.ID)
			}
			if !known || seen[e.ID] || e.Extra[FieldMeta] != meta || e.Reason != ReasonMalformed || e.Error == "" ||
				e.Dead.IsZero() {
				b.Errorf("dead letter %q: reason %q, error %q, meta %.60q", e.ID, e.Reason, e.Error, e.Extra[FieldMeta])
			}
			seen[e.ID] = true
		}
	})
}

// A stream that is two short of its last possible ID takes two entries and refuses the third. The two members that
// reached the stream must leave the schedule, and the other three must stay there.
func TestStreamThatRefusesStopsTheBatch(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("XADD", b.k.Stream, "18446744073709551615-18446744073709551613", "id", "filler", "payload", "")
		for i := range 5 {
			b.do("ZADD", b.k.Due, strconv.Itoa(i+1), fmt.Sprint("m", i))
			b.do("HSET", b.k.Payload, fmt.Sprint("m", i), "p")
		}
		d := b.drain(10)
		redistest.Want(b, "moved", d.Moved, 2)
		redistest.Want(b, "wait until the next drain", d.Wait, 0)
		if d.Refusal == "" {
			b.Fatal("no refusal told")
		}
		for range 3 {
			if d := b.drain(10); d.Moved != 0 || d.Refusal == "" {
				b.Fatalf("%+v", d)
			}
			b.wantState("due=3 payload=3 meta=0 stream=3 dead=0")
		}
		first := ids(b.entries(b.k.Stream))
		b.do("DEL", b.k.Stream)
		redistest.Want(b, "moved into a new stream", b.drain(10).Moved, 3)
		wantList(b, "delivered", append(first, ids(b.entries(b.k.Stream))...), "filler", "m0", "m1", "m2", "m3", "m4")
	})
}

// While the key of the dead letters has another type, members that must become dead letters stay in the schedule, the
// others are delivered, and the refusal names the key.
func TestDrainNamesTheKeyThatRefusesDeadLetters(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueue(Item{ID: "expired", When: After(time.Hour), Meta: EncodeMeta(nil, 0, time.UnixMilli(1))},
			Item{ID: "m", When: After(time.Hour)})
		b.makeDue()
		b.do("SET", b.k.Dead, "not this")
		d := b.drain(10)
		if d.Moved != 1 || !strings.HasPrefix(d.DeadRefusal, "WRONGTYPE key "+b.k.Dead+" holds a string") {
			b.Errorf("%+v", d)
		}
		redistest.Want(b, "still scheduled", b.count("ZCARD", b.k.Due), 1)
	})
}

// The decoder of the scripts returns JSON null as a special value that is no string, so drain must check for it.
func TestDrainBuriesJSONNull(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("HSET", b.k.Meta, "m", `{"h:a":null}`)
		b.do("ZADD", b.k.Due, "1", "m")
		redistest.Want(b, "buried", b.drain(10).Dead, 1)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1")
	})
}

// The wait tells the bridge how long to sleep. It must also be right when drain stops early: when nothing is due, when
// the queue is held, and when the limit is reached.
func TestDrainTellsHowLongToWait(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		want := func(what string, moved int, least, most time.Duration) {
			b.Helper()
			d := b.drain(1)
			if d.Moved != moved || d.Wait < least || d.Wait > most || d.Held != "" {
				b.Errorf("%s: drained %+v, want %d moved and a wait of %v to %v", what, d, moved, least, most)
			}
		}
		none := -time.Microsecond
		want("nothing is scheduled", 0, none, none)
		b.enqueue(Item{ID: "later", When: After(time.Hour), Payload: []byte("p")})
		want("nothing is due", 0, time.Minute, time.Hour)
		b.do("ZADD", b.k.Due, "5", "a", "6", "b")
		b.do("HSET", b.k.Policy, "held", "1")
		want("held", 0, none, none)
		b.do("HDEL", b.k.Policy, "held")
		want("one more is due", 1, 0, 0)
		want("the last one that is due", 1, time.Minute, time.Hour)
		want("nothing is due any more", 0, time.Minute, time.Hour)
		b.do("HSET", b.k.Policy, "held", "1")
		want("held, and nothing is due", 0, none, none)
	})
}
