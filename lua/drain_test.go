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

// Drain returns how late the oldest message that it took was, by the server's clock.
func TestDrainSaysHowLateItIs(t *testing.T) {
	everywhere(t, func(b *rig) {
		now := b.now()
		for _, c := range []struct {
			scores []string
			late   int64 // at least; -1 = none
		}{
			{[]string{ms(now - 1500), ms(now - 7000), ms(now + 100_000)}, 7000},
			{[]string{fmt.Sprintf("%d.25", now-2000)}, 1999},
			{[]string{"5", "-inf"}, -1}, {[]string{ms(now + 100_000)}, -1},
		} {
			b.do("DEL", b.k.Due)
			for i, score := range c.scores {
				b.do("ZADD", b.k.Due, score, fmt.Sprint("m", i))
			}
			d, passed := b.drain(10), b.now()-now
			late := d.Late.Milliseconds()
			if c.late < 0 && d.Late != 0 || c.late >= 0 && (late < c.late || late > c.late+passed) {
				b.Errorf("%v: late by %s", c.scores, d.Late)
			}
		}
	})
}

func TestDrainMovesTheOldestFirstUpToItsLimit(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i := 9; i >= 0; i-- {
			b.do("ZADD", b.k.Due, strconv.Itoa(1000+i), fmt.Sprint("m", i))
		}
		redistest.Want(b, "moved", b.drain(4).Moved, 4)
		wantList(b, "ready", ids(b.entries(b.k.Stream)), "m0", "m1", "m2", "m3")
		d := b.drain(4)
		redistest.Want(b, "wait while more is due", d.Wait, 0)
		d = b.drain(4)
		redistest.Want(b, "moved", d.Moved, 2)
		redistest.Want(b, "wait of an empty schedule", d.Wait, -time.Microsecond)
		redistest.Want(b, "moved again", b.drain(4), Drained{Wait: -time.Microsecond})
		wantList(b, "ready", ids(b.entries(b.k.Stream)), "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9")
	})
}

func TestDrainStopsAfterItsBytes(t *testing.T) {
	everywhere(t, func(b *rig) {
		body := strings.Repeat("x", 400)
		for i := range 6 {
			m := fmt.Sprint("m", i)
			b.do("ZADD", b.k.Due, strconv.Itoa(i+1), m)
			b.do("HSET", b.k.Payload, m, body)
		}
		for _, c := range []struct{ maxBytes, moved int }{{1000, 3}, {1, 1}, {400, 1}, {401, 1}} {
			d, err := Drain(b.ctx, b.c, b.k, 100, c.maxBytes)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprintf("moved with %d bytes", c.maxBytes), d.Moved, c.moved)
			redistest.Want(b, "more is due", d.Wait == 0, b.count("ZCARD", b.k.Due) > 0)
		}
		b.wantState("due=0 payload=0 meta=0 stream=6 dead=0")
	})
}

func TestDrainIsNeverEarlyByAFraction(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i, score := range []string{"1000.25", "1001", "1001.999"} {
			b.do("ZADD", b.k.Due, score, fmt.Sprint("m", i))
		}
		at := b.now() + 40
		b.do("ZADD", b.k.Due, ms(at)+".5", "soon")
		moved, last := 0, Drained{}
		redistest.Eventually(b, 10*time.Second, func() (bool, string) {
			last = b.drain(10)
			moved += last.Moved
			return moved == 4, fmt.Sprint(moved, " moved")
		})
		es := b.entries(b.k.Stream)
		for i, due := range []int64{1001, 1001, 1002, at + 1} {
			redistest.Want(b, es[i].ID+" due", es[i].Due.UnixMilli(), due)
		}
		if added := EntryTime(es[3].EntryID).UnixMilli(); added < at+1 {
			b.Fatalf("added at %d, due at %d.5", added, at)
		}
	})
}

func TestDrainTakesWhateverScoreItFinds(t *testing.T) {
	everywhere(t, func(b *rig) {
		redistest.Want(b, "due_ms", int64(1<<53), int64(9007199254740992))
		for _, m := range [][2]string{{"-inf", "a"}, {"-12.5", "b"}, {"0", "c"}, {"0.001", "d"}, {"1795216995", "seconds"}} {
			b.do("ZADD", b.k.Due, m[0], m[1])
		}
		redistest.Want(b, "moved", b.drain(10).Moved, 5)
		for i, due := range []string{"0", "0", "0", "1", "1795216995"} {
			e := b.raw(b.k.Stream)[i].FieldValues
			redistest.Want(b, "due_ms of "+e[0].Value, e[3], FieldValue{Field: FieldDue, Value: due})
		}
	})
}

// Scores that are no time: they must not count as due, and must not keep the bridge in a hot loop.
func TestDrainNeverEndsOnExtremeScores(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, score := range []string{"+inf", "1e300", "1e17"} {
			b.do("DEL", b.k.Due)
			b.do("ZADD", b.k.Due, score, "m")
			redistest.Want(b, "drained with score "+score, b.drain(10), Drained{Wait: -time.Microsecond})
			wantList(b, "beside it", b.enqueue(Item{ID: "now" + score, When: After(0)}), Ready)
		}
	})
}

func TestDrainSaysHowLongToWait(t *testing.T) {
	everywhere(t, func(b *rig) {
		at := b.now() + 5_000
		b.do("ZADD", b.k.Due, ms(at)+".5", "m")
		wait := b.drain(10).Wait
		if left := time.Duration(at-b.now()) * time.Millisecond; wait < left || wait > 5_001*time.Millisecond {
			b.Fatalf("wait %s for a time %s ahead, and up to a millisecond more", wait, left)
		}
		b.do("ZADD", b.k.Due, "5", "due")
		d := b.drain(1)
		if d.Moved != 1 || d.Wait < 4*time.Second {
			b.Fatalf("%+v", d)
		}
	})
}

func TestDrainLeavesAHeldQueueAlone(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("ZADD", b.k.Due, "5", "m")
		b.do("HSET", b.k.Policy, "held", "1")
		redistest.Want(b, "drained", b.drain(10), Drained{Wait: -time.Microsecond})
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		b.do("HSET", b.k.Policy, "held", "0")
		redistest.Want(b, "moved", b.drain(10).Moved, 1)
	})
}

func TestDrainBuriesWhatIsExpired(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(
			Item{ID: "ok", When: After(time.Hour), Meta: EncodeMeta(nil, 0, time.UnixMilli(b.now()+3_600_000))},
			Item{ID: "first", When: After(2 * time.Hour), Payload: []byte("p"), Meta: EncodeMeta(map[string]string{"a": "b"}, 4,
				time.UnixMilli(b.now()-1))})
		retry := "late" + Separator + "g" + Separator + "5-1"
		b.do("ZADD", b.k.Due, ms(b.now()+9_000_000), retry)
		b.do("HSET", b.k.Meta, retry, `{"id":"late","for":"g","attempt":"2","expires_ms":"77","error":"boom","reason":"mine"}`)
		b.makeDue()
		from := b.now()
		d := b.drain(10)
		redistest.Want(b, "drained", d, Drained{Moved: 1, Dead: 2, Wait: -time.Microsecond})
		dead := b.entries(b.k.Dead)
		wantList(b, "dead letters", ids(dead), "first", "late")
		for i, group := range []string{"", "g"} {
			e := dead[i]
			redistest.Want(b, e.ID+" group", e.Group, group)
			redistest.Want(b, e.ID+" reason", e.Reason, ReasonExpired)
			if e.Dead.UnixMilli() < from {
				b.Errorf("%s dead at %v", e.ID, e.Dead)
			}
		}
		redistest.Want(b, "payload", string(dead[0].Payload), "p")
		redistest.Want(b, "header", dead[0].Headers["a"], "b")
		redistest.Want(b, "max_attempts", dead[0].MaxAttempts, 4)
		redistest.Want(b, "attempt", dead[1].Attempt, 2)
		redistest.Want(b, "error", dead[1].Error, "boom")
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=2")
	})
}

// A foreign field named group made the expired letter look as if it had failed in that group: redriven, it was for a
// group that does not exist, and every real group skipped it.
func TestDrainOfAnExpiredMessageIgnoresFieldsNamedLikeOurs(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("HSET", b.k.Meta, "m", `{"expires_ms":"77","group":"sales","reason":"why not","dead_ms":"1","entry":"1-1"}`)
		b.do("ZADD", b.k.Due, "5", "m")
		redistest.Want(b, "buried", b.drain(10).Dead, 1)
		e := b.entries(b.k.Dead)[0]
		redistest.Want(b, "group", e.Group, "")
		redistest.Want(b, "reason", e.Reason, ReasonExpired)
		out, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{{Letter: e.EntryID, When: After(0)}})
		if err != nil || out[0] != RedriveScheduled {
			b.Fatal(out, err)
		}
		b.drain(1)
		redistest.Want(b, "for", b.entries(b.k.Stream)[0].For, "")
	})
}

func TestBareMembersAreDeliveredWithAnEmptyPayload(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("ZADD", b.k.Due, "1", "order-42")
		b.do("HSET", b.k.Payload, "order-43", "body")
		b.do("HSET", b.k.Meta, "order-43", `{"h:trace":"abc","color":"red"}`)
		b.do("ZADD", b.k.Due, "2", "order-43")
		b.drain(10)
		es := b.raw(b.k.Stream)
		wantList(b, "fields", es[0].FieldValues, fields("id", "order-42", "payload", "", "attempt", "1", "due_ms", "1")...)
		e := ParseEntry(es[1].ID, es[1].FieldValues)
		redistest.Want(b, "payload", string(e.Payload), "body")
		redistest.Want(b, "header", e.Headers["trace"], "abc")
		redistest.Want(b, "unknown field", e.Extra["color"], "red")
	})
}

// Once a member that cannot be used stopped the batch after a part of it was added, and each further round added that
// part again (PITFALLS A3).
func TestDrainBuriesMalformedMembersAlone(t *testing.T) {
	headers := make([]string, 5000)
	for i := range headers {
		headers[i] = fmt.Sprintf(`"h:%d":"v"`, i)
	}
	bad := map[string]string{
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
	everywhere(t, func(b *rig) {
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
		for range 3 {
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
		for _, e := range b.entries(b.k.Dead) {
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

func TestDrainBuriesJSONNull(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("HSET", b.k.Meta, "m", `{"h:a":null}`)
		b.do("ZADD", b.k.Due, "1", "m")
		redistest.Want(b, "buried", b.drain(10).Dead, 1)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1")
	})
}

func TestRetryWithoutItsMetaIsBuriedWithItsGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"billing/eu 1"}, "m")[0]
		b.fail("billing/eu 1", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
		b.do("DEL", b.k.Meta)
		b.makeDue()
		redistest.Want(b, "buried", b.drain(10).Dead, 1)
		d := b.entries(b.k.Dead)[0]
		redistest.Want(b, "id", d.ID, "m")
		redistest.Want(b, "group", d.Group, "billing/eu 1")
		redistest.Want(b, "payload", string(d.Payload), "payload of m")
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1")
	})
}

// A stream that is two short of its last possible ID takes two entries and refuses the third: the members added are
// removed, the rest waits.
func TestStreamThatRefusesStopsTheBatch(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("XADD", b.k.Stream, "18446744073709551615-18446744073709551613", "id", "filler", "payload", "")
		for i := range 5 {
			b.do("ZADD", b.k.Due, strconv.Itoa(i+1), fmt.Sprint("m", i))
			b.do("HSET", b.k.Payload, fmt.Sprint("m", i), "p")
		}
		d := b.drain(10)
		redistest.Want(b, "moved", d.Moved, 2)
		redistest.Want(b, "wait", d.Wait, 0)
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

// Members that should become dead letters wait while the dead-letter key has another type, and the key is named.
func TestDrainNamesTheKeyThatRefusesDeadLetters(t *testing.T) {
	everywhere(t, func(b *rig) {
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
