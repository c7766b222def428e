package lua

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestEnqueueGivesEachMessageItsVerdict(t *testing.T) {
	everywhere(t, func(b *rig) {
		now := b.now()
		verdicts := b.enqueue(
			Item{ID: "later", When: After(time.Hour), Payload: []byte("x"), Meta: EncodeMeta(map[string]string{"a": "b"}, 3,
				time.Time{})},
			Item{ID: "at", When: At(time.UnixMilli(now + 7_200_000)), Payload: []byte("y"), Dedup: Refuse},
			Item{ID: "now", When: After(0), Payload: []byte("z")},
			Item{ID: "past", When: At(time.UnixMilli(1_500_000_000_000)), Payload: nil},
			Item{ID: "later", When: After(time.Minute), Dedup: Refuse},
			Item{ID: "bad", When: After(0), Meta: "[]"},
		)
		wantList(b, "verdicts", verdicts, Scheduled, Scheduled, Ready, Ready, Duplicate, Malformed)
		b.wantState("due=2 payload=2 meta=1 stream=2 dead=0")
		redistest.Want(b, "due time of at", int64(b.dueOf("at")), now+7_200_000)
		if d := int64(b.dueOf("later")); d < now+3_600_000 || d > b.now()+3_600_000 {
			b.Fatalf("a relative due time of an hour is %d ms from now", d-now)
		}
		es := b.entries(b.k.Stream)
		wantList(b, "ready", ids(es), "now", "past")
		redistest.Want(b, "payload", string(es[0].Payload), "z")
		redistest.Want(b, "attempt", es[0].Attempt, 1)
		redistest.Want(b, "due of past", es[1].Due.UnixMilli(), 1_500_000_000_000)
		raw := b.raw(b.k.Stream)[1].FieldValues
		wantList(b, "fields of an entry", raw, fields("id", "past", "payload", "", "attempt", "1", "due_ms", "1500000000000")...)
	})
}

func TestEnqueueReceiptsSayWhenItIsDue(t *testing.T) {
	everywhere(t, func(b *rig) {
		from := b.now()
		r, err := Enqueue(b.ctx, b.c, b.k, Token{}, []Item{{ID: "a", When: After(1500 * time.Millisecond)},
			{ID: "b", When: "1795216995123"}, {ID: "c", When: "+0.25"}}, Durability{})
		if err != nil {
			b.Fatal(err)
		}
		if d := r[0].Due.UnixMilli(); d < from+1500 || d > b.now()+1500 || float64(d) != b.dueOf("a") {
			b.Fatalf("due %d ms after the call", d-from)
		}
		redistest.Want(b, "due of b", r[1].Due.UnixMilli(), 1795216995123)
		redistest.Want(b, "due of c, a quarter of a millisecond from now, is rounded up and", r[2].Verdict, Scheduled)
	})
}

func TestEnqueueGoesStraightToReadyOnlyInOrder(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "future", When: After(time.Hour)})
		wantList(b, "with nothing overdue", b.enqueue(Item{ID: "1", When: After(0)}), Ready)
		b.do("ZADD", b.k.Due, ms(b.now()-5), "overdue")
		wantList(b, "with a message overdue", b.enqueue(Item{ID: "2", When: After(0)}), Scheduled)
		b.drain(10)
		wantList(b, "order", ids(b.entries(b.k.Stream)), "1", "overdue", "2")

		if err := Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields("held", "1")); err != nil {
			b.Fatal(err)
		}
		wantList(b, "on a held queue", b.enqueue(Item{ID: "3", When: After(0)}), Scheduled)
		if err := Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields("held", "")); err != nil {
			b.Fatal(err)
		}
		b.drain(10)
		wantList(b, "held no more", b.enqueue(Item{ID: "4", When: After(0)}), Ready)
		wantList(b, "order", ids(b.entries(b.k.Stream)), "1", "overdue", "2", "3", "4")
	})
}

// An expired message that was due at once went straight to its readers: only drain checked the expiry.
func TestEnqueueDoesNotDeliverWhatIsExpired(t *testing.T) {
	everywhere(t, func(b *rig) {
		expired := EncodeMeta(nil, 0, time.UnixMilli(b.now()-1))
		valid := EncodeMeta(nil, 0, time.UnixMilli(b.now()+3_600_000))
		b.enqueue(Item{ID: "ok", When: After(0), Meta: valid}, Item{ID: "late", When: After(0), Meta: expired,
			Payload: []byte("p")})
		b.drain(10)
		wantList(b, "ready", ids(b.entries(b.k.Stream)), "ok")
		dead := b.entries(b.k.Dead)
		wantList(b, "dead letters", ids(dead), "late")
		redistest.Want(b, "reason", dead[0].Reason, ReasonExpired)
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=1")
	})
}

func TestEnqueueKeepsPayloadAndHeadersAsTheyAre(t *testing.T) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	headers := map[string]string{
		"ascii": "plain", "ünï": "Grüße, 世界 🚀", "json": `{"a":[1,"\\"]}` + "\t\r\n\x00\x7f", "html": "<b>&</b>", "empty": "",
		"u2028": "\u2028\u2029",
	}
	everywhere(t, func(b *rig) {
		meta := EncodeMeta(headers, 7, time.UnixMilli(1_900_000_000_123))
		b.enqueue(
			Item{ID: "direct 世界", When: After(0), Payload: binary, Meta: meta},
			Item{ID: "due 世界", When: After(time.Hour), Payload: binary, Meta: meta},
			Item{ID: "empty", When: After(2 * time.Hour)})
		b.makeDue()
		b.drain(10)
		es := b.entries(b.k.Stream)
		wantList(b, "ready", ids(es), "direct 世界", "due 世界", "empty")
		for _, e := range es[:2] {
			if !slices.Equal(e.Payload, binary) {
				b.Errorf("%s: payload arrived changed", e.ID)
			}
			for name, value := range headers {
				redistest.Want(b, e.ID+" header "+name, e.Headers[name], value)
			}
			redistest.Want(b, "number of headers", len(e.Headers), len(headers))
			redistest.Want(b, "max_attempts", e.MaxAttempts, 7)
			redistest.Want(b, "expires", e.Expires.UnixMilli(), 1_900_000_000_123)
			redistest.Want(b, "unknown fields", len(e.Extra), 0)
		}
		b.wantState("due=0 payload=0 meta=0 stream=3 dead=0")
	})
}

// A body that a raw producer left behind (ZADD, drain, HSET) must not be attached to a later message with that ID.
func TestEnqueueDoesNotInheritAnOrphanedBody(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("HSET", b.k.Payload, "m", "stale")
		b.do("HSET", b.k.Meta, "m", `{"h:stale":"1"}`)
		b.enqueue(Item{ID: "m", When: After(time.Hour)})
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		b.makeDue()
		b.drain(1)
		e := b.entries(b.k.Stream)[0]
		redistest.Want(b, "payload", string(e.Payload), "")
		redistest.Want(b, "headers", len(e.Headers), 0)
	})
}

func TestEqualDueTimesKeepTheOrderOfTheirIDs(t *testing.T) {
	everywhere(t, func(b *rig) {
		var items []Item
		var order []string
		for i := range 50 {
			order = append(order, fmt.Sprintf("id-%03d", i))
			items = append(items, Item{ID: order[i], When: At(time.UnixMilli(b.now() + 1_000_000))})
		}
		slices.Reverse(items)
		b.enqueue(items...)
		b.do("ZADD", b.k.Due, "5", "zz-first")
		for _, id := range order {
			b.do("ZADD", b.k.Due, "XX", "6", id)
		}
		b.drain(100)
		wantList(b, "order", ids(b.entries(b.k.Stream)), append([]string{"zz-first"}, order...)...)
	})
}

func TestEnqueueWakesOnlyForAnEarlierHead(t *testing.T) {
	everywhere(t, func(b *rig) {
		steps := []struct {
			name string
			item Item
			wake bool
		}{
			{"first", Item{ID: "a", When: After(time.Hour)}, true},
			{"later", Item{ID: "b", When: After(2 * time.Hour)}, false},
			{"earlier", Item{ID: "c", When: After(time.Minute)}, true},
			{"duplicate", Item{ID: "a", When: After(time.Second), Dedup: Refuse}, false},
			{"ready", Item{ID: "d", When: After(0)}, false},
		}
		for _, step := range steps {
			before := b.token()
			b.enqueue(step.item)
			redistest.Want(b, step.name+": new token", b.token() != before, step.wake)
			redistest.Want(b, "length of wake", b.count("XLEN", b.k.Wake), 1)
		}
		redistest.Want(b, "due of the token", b.raw(b.k.Wake)[0].FieldValues[0].Value, ms(int64(b.dueOf("c"))))
	})
}

func TestEnqueueIntoAFullStreamKeepsTheMessage(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.fillStream(b.k.Stream)
		wantList(b, "verdict", b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("p")}), Scheduled)
		b.wantState("due=1 payload=1 meta=0 stream=1 dead=0")
	})
}

// fillStream gives a stream the last possible ID, after which it refuses every entry.
func (b *rig) fillStream(key string) {
	b.Helper()
	b.do("XADD", key, "18446744073709551615-18446744073709551615", "id", "last", "payload", "")
}

// An enqueue straight into the stream reads the policy and writes the stream. If either key has another type, nothing
// is taken.
func TestReadyMessagesAreRefusedWholeByAKeyOfAnotherType(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, key := range []string{b.k.Stream, b.k.Policy, b.k.Payload} {
			for _, with := range [][]Item{nil, {{ID: "l", When: After(time.Hour), Payload: []byte("p")}}} {
				if key == b.k.Payload && with == nil {
					continue // it is not touched
				}
				b.do(append([]string{"DEL"}, keysOf(b.k)...)...)
				b.do("SET", key, "not this")
				items := append([]Item{{ID: "n", When: After(0), Payload: []byte("p")}, {ID: "o", When: After(0)}}, with...)
				_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, items, Durability{})
				if !errors.Is(err, ErrWrongType) || !strings.Contains(err.Error(), "key "+key+" holds a string where a ") {
					b.Errorf("%s is a string: %v", key, err)
				}
				redistest.Want(b, "keys", b.count(append([]string{"EXISTS"}, keysOf(b.k)...)...), 1)
			}
		}
	})
}

// A message that went straight into the stream was answered WRONGTYPE, and sent again: the message it replaced was
// removed from the schedule, and then its body could not be.
func TestReadyMessageThatReplacesIsRefusedWholeByAKeyOfAnotherType(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "m", When: After(time.Hour), Payload: []byte("p")})
		b.do("SET", b.k.Payload, "not this")
		_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, []Item{{ID: "m", When: After(0)}}, Durability{})
		if !errors.Is(err, ErrWrongType) || b.count("EXISTS", b.k.Stream, b.k.Seen) != 0 || b.count("ZCARD", b.k.Due) != 1 {
			b.Errorf("%v; stream and seen %d, due %d", err, b.count("EXISTS", b.k.Stream, b.k.Seen), b.count("ZCARD", b.k.Due))
		}
	})
}

// A client in another language tells errors by their first word. Once all began with ERR, because the server gives a
// script only the text of the error that it catches.
func TestErrorsOfScriptsKeepTheirCode(t *testing.T) {
	b := newRig(t, redistest.Own(t))
	code := func(script *script, want string, words ...string) {
		b.Helper()
		err := b.try(append([]string{"EVAL", script.source}, words...)...).Error()
		if err == nil || !strings.HasPrefix(err.Error(), want) { // rueidis leaves ERR out
			b.Errorf("%s: %v, want %s", script.name, err, want)
		}
	}
	counted := func(name string) string {
		stat := regexp.MustCompile("errorstat_" + name + `:count=\d+`)
		return stat.FindString(b.text("INFO", "errorstats"))
	}
	others := counted("ERR") // commands the client tried at first, which the server did not know
	code(extendScript, "NOGROUP", "2", b.k.Stream, b.k.Dead, "g", "c", "5-1", "m")
	b.do("SET", b.k.Due, "not this")
	enqueue := []string{"7", b.k.Due, b.k.Payload, b.k.Meta, b.k.Stream, b.k.Wake, b.k.Seen, b.k.Policy, "", "", "0", "m",
		"+1000", "p", "", ""}
	code(enqueueScript, "WRONGTYPE", enqueue...)
	b.do("DEL", b.k.Due)
	b.do("CONFIG", "SET", "maxmemory", "1")
	code(enqueueScript, "OOM", enqueue...)
	for _, name := range []string{"NOGROUP", "WRONGTYPE", "OOM"} {
		redistest.Want(b, "counted", counted(name), "errorstat_"+name+":count=1")
	}
	redistest.Want(b, "counted as ERR, which rueidis does not show", counted("ERR"), others)
	code(heartbeatScript, "user_script", "1", b.g.Bridges, "b", "no number")
	b.do("CONFIG", "SET", "maxmemory", "0")
	for _, odd := range []string{"nan", "1e400", "-1", ""} {
		enqueue[10] = odd
		code(enqueueScript, "token or token_ms does not parse", enqueue...)
	}
	redistest.Want(b, "keys", b.count(append([]string{"EXISTS"}, keysOf(b.k)...)...), 0)
}

// Once a time or window that does not parse raised an error in the middle of a batch: the messages before it were
// stored, and nobody was told.
func TestEnqueueRefusesABatchWithABadTimeWhole(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, bad := range []Item{{ID: "bad"}, {ID: "bad", When: "soon"}, {ID: "bad", When: "nan"}, {ID: "bad", When: "+"},
			{ID: "bad", When: "1", Dedup: "x"}} {
			_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Minute}, []Item{{ID: "good", When: After(time.Hour)},
				bad}, Durability{})
			if err == nil || Ambiguous(err) {
				b.Fatalf("%+v: %v", bad, err)
			}
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
			redistest.Want(b, "remembered", b.count("ZCARD", b.k.Seen), 0)
		}
	})
}

func TestEnqueueTakesALargeBatch(t *testing.T) {
	everywhere(t, func(b *rig) {
		items := make([]Item, 3000)
		for i := range items {
			items[i] = Item{ID: fmt.Sprint("m", i), When: After(time.Hour), Payload: []byte("p"), Dedup: Window(time.Hour)}
		}
		for _, v := range b.enqueueAs(Token{Name: "big", Window: time.Hour}, items...) {
			redistest.Want(b, "verdict", v, Scheduled)
		}
		for _, v := range b.enqueueAs(Token{Name: "other", Window: time.Hour}, items...) {
			redistest.Want(b, "verdict", v, Duplicate)
		}
		for _, v := range b.enqueueAs(Token{Name: "other", Window: time.Hour}, items...) {
			redistest.Want(b, "verdict of the repeat", v, Duplicate)
		}
		b.wantState("due=3000 payload=3000 meta=0 stream=0 dead=0")
		if b.inProcess() {
			return // ZUNIONSTORE with weights
		}
		b.makeDueAll()
		redistest.Want(b, "moved", b.drain(3000).Moved, 3000)
		b.wantState("due=0 payload=0 meta=0 stream=3000 dead=0")
	})
}

// makeDueAll is makeDue in one round trip, for many members.
func (b *rig) makeDueAll() {
	b.Helper()
	b.do("ZUNIONSTORE", b.k.Due, "1", b.k.Due, "WEIGHTS", "0.0001")
}

// Without dedup, a message replaces the scheduled one with its ID. A message that was due at once did not: both were
// delivered.
func TestAFreshMessageReplacesTheScheduledOneAlsoWhenDue(t *testing.T) {
	everywhere(t, func(b *rig) {
		later := Item{ID: "m", When: After(time.Hour), Payload: []byte("old"), Meta: `{"h:a":"old"}`, Dedup: Fresh}
		now := Item{ID: "m", When: After(0), Payload: []byte("new"), Dedup: Fresh}
		other := Item{ID: "other", When: After(time.Hour), Dedup: Refuse}
		for i, c := range []struct {
			calls   [][]Item
			members string
			entries int
		}{
			{[][]Item{{later}, {now}}, "[]", 1},
			{[][]Item{{later, now}}, "[]", 1},
			{[][]Item{{now, later}}, "[m]", 1},
			{[][]Item{{now}, {later}}, "[m]", 1},
			{[][]Item{{later}, {now, later}}, "[m]", 1},
			{[][]Item{{later}, {now, now}}, "[]", 2},
			{[][]Item{{other}, {later}, {now}}, "[other]", 1},
			{[][]Item{{later}, {now, other}}, "[other]", 1}, // together with one that is compared
			{[][]Item{{later}, {later, other}}, "[m other]", 0},
		} {
			b := b.queue(fmt.Sprint("q", i))
			for _, items := range c.calls {
				for n, v := range b.enqueue(items...) {
					if v != Scheduled && v != Ready {
						b.Errorf("case %d: verdict of %s: %v", i, items[n].ID, v)
					}
				}
			}
			redistest.Want(b, fmt.Sprintf("case %d: scheduled", i), fmt.Sprint(b.texts("ZRANGE", b.k.Due, "0", "-1")), c.members)
			redistest.Want(b, fmt.Sprintf("case %d: entries", i), b.count("XLEN", b.k.Stream), c.entries)
			if !strings.Contains(c.members, "m") || c.members == "[other]" {
				redistest.Want(b, fmt.Sprintf("case %d: payload and meta", i), b.count("HLEN", b.k.Payload)+b.count("HLEN",
					b.k.Meta), 0)
			}
		}
	})
}

// A member that is no message ID belongs to a retry, or to another waiting member: no call overwrites it.
func TestEnqueueWritesOverNoRetry(t *testing.T) {
	everywhere(t, func(b *rig) {
		member := "m" + Separator + "g" + Separator + "5-1"
		b.do("HSET", b.k.Payload, member, "of the retry")
		b.do("ZADD", b.k.Due, ms(b.now()+3_600_000), member)
		for _, dedup := range []Dedup{Fresh, Refuse, Window(time.Hour)} {
			for _, when := range []When{After(time.Hour), After(0)} {
				wantList(b, "verdicts", b.enqueue(Item{ID: member, When: when, Payload: []byte("mine"), Dedup: dedup}), Duplicate)
			}
		}
		redistest.Want(b, "payload", b.text("HGET", b.k.Payload, member), "of the retry")
	})
}

// Tokens of calls and names of restored letters are in one set, separated by a byte. A token that contains the byte, or
// equals the fixed name, could be taken for another's, and messages for sent.
func TestEnqueueRefusesTokensThatCouldBeOthers(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, name := range []string{"a" + Separator + "4", Separator, "dead"} {
			if _, err := Enqueue(b.ctx, b.c, b.k, Token{Name: name, Window: time.Minute}, []Item{{ID: "m", When: After(0)}},
				Durability{}); err == nil || !strings.Contains(err.Error(), "token") {
				b.Errorf("token %q: %v", name, err)
			}
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// One ID twice in a call: a field that the second message lacks is not left over from the first, and its own fields
// stay.
func TestTheLastMessageOfACallCounts(t *testing.T) {
	everywhere(t, func(b *rig) {
		bare := Item{ID: "m", When: After(time.Hour), Dedup: Fresh}
		full := Item{ID: "m", When: After(time.Hour), Payload: []byte("p"), Meta: `{"h:a":"b"}`, Dedup: Fresh}
		for i, c := range []struct {
			items  []Item
			fields int
		}{{[]Item{bare, full}, 2}, {[]Item{full, bare}, 0}, {[]Item{full, bare, full}, 2}, {[]Item{bare, full, bare}, 0}} {
			for _, before := range []string{"", "x"} {
				b := b.queue(fmt.Sprint("q", i, before))
				if before != "" {
					b.do("HSET", b.k.Meta, before, "{}")
				}
				b.enqueue(c.items...)
				redistest.Want(b, fmt.Sprintf("case %d: payload and meta", i), b.count("HLEN", b.k.Payload)+b.count("HLEN",
					b.k.Meta)-len(before), c.fields)
			}
		}
	})
}
