package lua

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Any bytes of a payload and any text of a header arrive unchanged, whether the message goes straight into the stream
// or through the schedule.
func TestEnqueueKeepsPayloadAndHeadersAsTheyAre(t *testing.T) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	headers := map[string]string{
		"ascii": "plain", "ünï": "Grüße, 世界 🚀", "json": `{"a":[1,"\\"]}` + "\t\r\n\x00\x7f", "html": "<b>&</b>", "empty": "",
		"u2028": "\u2028\u2029",
	}
	everywhere(t, func(b *testQueue) {
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

// A due message that the stream refuses must be scheduled instead, not lost.
func TestEnqueueIntoAFullStreamKeepsTheMessage(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.fillStream(b.k.Stream)
		wantList(b, "verdict", b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("p")}), Scheduled)
		b.wantState("due=1 payload=1 meta=0 stream=1 dead=0")
	})
}

// fillStream gives a stream the last possible ID, after which it refuses every entry.
func (b *testQueue) fillStream(key string) {
	b.Helper()
	b.do("XADD", key, "18446744073709551615-18446744073709551615", "id", "last", "payload", "")
}

// An enqueue straight into the stream reads the policy and writes the stream. If either key has another type, nothing
// is taken.
func TestReadyMessagesAreRefusedWholeByAKeyOfAnotherType(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// Regression: a message that replaces another one went straight into the stream. The other one was removed from the
// schedule, and then the removal of its payload failed. So the producer was told WRONGTYPE, and sent the message again.
func TestReadyMessageThatReplacesIsRefusedWholeByAKeyOfAnotherType(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueue(Item{ID: "m", When: After(time.Hour), Payload: []byte("p")})
		b.do("SET", b.k.Payload, "not this")
		_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, []Item{{ID: "m", When: After(0)}}, Durability{})
		if !errors.Is(err, ErrWrongType) || b.count("EXISTS", b.k.Stream, b.k.Seen) != 0 || b.count("ZCARD", b.k.Due) != 1 {
			b.Errorf("%v; stream and seen %d, due %d", err, b.count("EXISTS", b.k.Stream, b.k.Seen), b.count("ZCARD", b.k.Due))
		}
	})
}

// A client in another language tells errors by their first word. Before, all errors of scripts began with ERR, because
// the server gives a script only the text of the error that the script catches.
func TestErrorsOfScriptsKeepTheirCode(t *testing.T) {
	b := newTestQueue(t, redistest.Own(t))
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
	others := counted("ERR") // errors of commands that the client tried at first, and that the server does not know
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

// Before, a time or window that does not parse raised an error in the middle of a batch: the messages before it were
// stored, and the producer was not told. Now the batch is refused whole.
func TestEnqueueRefusesABatchWithABadTimeWhole(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// A call handles more messages than a script passes to one command, which gets 1,000 values at most.
func TestEnqueueTakesALargeBatch(t *testing.T) {
	onServers(t, func(b *testQueue) {
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
		b.makeDueAll()
		redistest.Want(b, "moved", b.drain(3000).Moved, 3000)
		b.wantState("due=0 payload=0 meta=0 stream=3000 dead=0")
	})
}

// makeDueAll moves all due times to 1970 in one round trip, for many members: it multiplies them by 0.0001.
func (b *testQueue) makeDueAll() {
	b.Helper()
	b.do("ZUNIONSTORE", b.k.Due, "1", b.k.Due, "WEIGHTS", "0.0001")
}

// A member that is no message ID belongs to a retry, or to another waiting member: no call overwrites it.
func TestEnqueueWritesOverNoRetry(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// Tokens of calls, and the names of restored letters behind the word dead, are members of one set, and a separator byte
// divides their parts. A token that contains the byte, or is dead, could be taken for that of another call, whose
// messages would then count as sent.
func TestEnqueueRefusesTokensThatCouldBeOthers(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, name := range []string{"a" + Separator + "4", Separator, "dead"} {
			if _, err := Enqueue(b.ctx, b.c, b.k, Token{Name: name, Window: time.Minute}, []Item{{ID: "m", When: After(0)}},
				Durability{}); err == nil || !strings.Contains(err.Error(), "token") {
				b.Errorf("token %q: %v", name, err)
			}
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// A payload and a meta without a member belong to no message, even if their ID is scheduled later.
func TestEnqueueDoesNotInheritAnOrphanedBody(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// A repeat counts as a repeat only until the window of its token has ended. Before, a token counted until something
// removed it, and without a bridge nothing does.
func TestACallWhoseTokenHasEndedRunsAgain(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		token := Token{Name: "t", Window: time.Minute}
		item := Item{ID: "m", When: After(time.Hour), Dedup: Refuse}
		b.do("ZADD", b.k.Due, "1900000000000", "m")
		redistest.Want(b, "its ID is taken", b.enqueueAs(token, item)[0], Duplicate)
		redistest.Want(b, "repeated", b.enqueueAs(token, item)[0], Duplicate)
		b.do("DEL", b.k.Due)
		for _, name := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
			b.do("ZADD", b.k.Seen, "2", name)
		}
		for i := range 50 { // a call removes few ended members: the refusal of the first call stays behind these
			b.do("ZADD", b.k.Seen, "1", strconv.Itoa(i))
		}
		redistest.Want(b, "its ID is free", b.enqueueAs(token, item)[0], Scheduled)
		redistest.Want(b, "repeated after that", b.enqueueAs(token, item)[0], Repeated)
	})
}
