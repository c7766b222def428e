package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func (b *rig) retry(group string, attempts Attempts, f Failure) Outcome {
	b.Helper()
	out, err := Retry(b.ctx, b.c, b.k, group, attempts, []Failure{f})
	if err != nil {
		b.Fatal(err)
	}
	return out[0]
}

func TestRetryComesBackForItsGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("a", "b")
		b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("p\x00\xff"), Meta: EncodeMeta(map[string]string{"trace": "ü"}, 5,
			time.UnixMilli(4_000_000_000_000))})
		e := b.read("a", "c", 1)[0]
		b.read("b", "c", 1)
		from := b.now()
		redistest.Want(b, "outcome", b.fail("a", e.EntryID, ActionRetry, ReasonMaxAttempts, "boom"), Retried)
		b.wantState("due=1 payload=1 meta=1 stream=1 dead=0 a=0 b=1", "a", "b")
		if due := int64(b.dueOf("m" + Separator + "a" + Separator + e.EntryID)); due < from+10_000 || due > b.now()+10_000 {
			b.Fatalf("due in %d ms, want 10 s", due-from)
		}
		b.makeDue()
		b.drain(1)
		r := b.read("a", "c", 1)[0]
		redistest.Want(b, "id", r.ID, "m")
		redistest.Want(b, "payload", string(r.Payload), "p\x00\xff")
		redistest.Want(b, "header", r.Headers["trace"], "ü")
		redistest.Want(b, "for", r.For, "a")
		redistest.Want(b, "attempt", r.Attempt, 2)
		redistest.Want(b, "error", r.Error, "boom")
		redistest.Want(b, "max_attempts", r.MaxAttempts, 5)
		redistest.Want(b, "expires", r.Expires.UnixMilli(), 4_000_000_000_000)
		redistest.Want(b, "due", r.Due.UnixMilli(), 1)
		redistest.Want(b, "extra", len(r.Extra), 0)
		// The other group is given it, too, and frees it by acknowledging.
		redistest.Want(b, "the other group's", b.read("b", "c", 1)[0].EntryID, r.EntryID)
		b.ack("b", Held{Entry: e.EntryID}, Held{Entry: r.EntryID})
		b.ack("a", Held{Entry: r.EntryID})
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 a=0 b=0", "a", "b")
	})
}

// Two groups fail one entry, and the same ID is scheduled again meanwhile. With the ID as member, one overwrote the
// other.
func TestRetriesAreUniquePerGroupAndEntry(t *testing.T) {
	everywhere(t, func(b *rig) {
		first := b.deliver([]string{"a", "b"}, "m")[0]
		second := b.deliver([]string{"a", "b"}, "m")[0]
		for _, g := range []string{"a", "b"} {
			for _, e := range []Entry{first, second} {
				redistest.Want(b, "outcome", b.fail(g, e.EntryID, ActionRetry, "", g+e.EntryID), Retried)
			}
		}
		wantList(b, "scheduled again", b.enqueue(Item{ID: "m", When: After(time.Minute), Payload: []byte("new"), Dedup: Refuse}),
			Scheduled)
		b.wantState("due=5 payload=5 meta=4 stream=0 dead=0")
		b.makeDue()
		redistest.Want(b, "moved", b.drain(10).Moved, 5)
		seen := map[string]bool{}
		for _, e := range b.entries(b.k.Stream) {
			redistest.Want(b, "id", e.ID, "m")
			seen[e.For+"/"+e.Error+"/"+string(e.Payload)] = true
		}
		redistest.Want(b, "different deliveries", len(seen), 5)
	})
}

func TestRetryDelaysFollowTheAttempt(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		many := Attempts{Max: 100, Delays: []time.Duration{time.Second, 2 * time.Second, 7 * time.Second}}
		for _, c := range []struct {
			attempt string
			delay   time.Duration
			want    int64
		}{{"1", -1, 1000}, {"2", -1, 2000}, {"3", -1, 7000}, {"4", -1, 7000}, {"99", -1, 7000}, {"1", 0, 0},
			{"2", time.Minute, 60_000}, {"1", 1500 * time.Microsecond, 2}} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "", "attempt", c.attempt, "due_ms", "5")
			e := b.read("g", "c", 1)[0]
			from := b.now()
			redistest.Want(b, "outcome", b.retry("g", many, Failure{Held: Held{Entry: e.EntryID}, Action: ActionRetry,
				Delay: c.delay}), Retried)
			due := int64(b.dueOf("m" + Separator + "g" + Separator + e.EntryID))
			if due < from+c.want || due > b.now()+c.want {
				b.Errorf("after attempt %s, asked for %v: due in %d ms, want %d", c.attempt, c.delay, due-from, c.want)
			}
		}
	})
}

func TestRetryEndsInADeadLetter(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for _, c := range []struct {
			name            string
			attempt, own    string
			action          Action
			max             int
			outcome         Outcome
			attempt0, error string
		}{
			{"by policy", "3", "", ActionRetry, 3, Dead, "3", "boom"},
			{"not yet", "2", "", ActionRetry, 3, Retried, "", ""},
			{"message allows more", "3", "9", ActionRetry, 3, Retried, "", ""},
			{"message allows less", "1", "1", ActionRetry, 3, Dead, "1", "boom"},
			{"asked for", "1", "9", ActionDead, 3, Dead, "1", "boom"},
			{"an action left out is a retry", "3", "", "", 3, Dead, "3", "boom"},
			{"release after the last", "7", "3", ActionRelease, 3, Released, "", ""},
		} {
			b.do("DEL", b.k.Dead, b.k.Due, b.k.Meta, b.k.Payload)
			args := []string{"XADD", b.k.Stream, "*", "id", "m", "payload", "p", "attempt", c.attempt, "due_ms", "77", "h:a", "b",
				"color", "red", "for", "g"}
			if c.own != "" {
				args = append(args, FieldMaxAttempts, c.own)
			}
			b.do(args...)
			e, from := b.read("g", "c", 1)[0], b.now()
			got := b.retry("g", Attempts{Max: c.max, Delays: []time.Duration{0}}, Failure{Held: Held{Entry: e.EntryID},
				Action: c.action, Delay: -1, Reason: "why", Error: "boom"})
			redistest.Want(b, c.name, got, c.outcome)
			if c.outcome != Dead {
				redistest.Want(b, c.name+": scheduled", b.count("ZCARD", b.k.Due), 1)
				continue
			}
			d := b.entries(b.k.Dead)[0]
			if d.Dead.UnixMilli() < from || d.Dead.UnixMilli() > b.now() {
				b.Errorf("%s: dead at %v", c.name, d.Dead)
			}
			raw := b.raw(b.k.Dead)[0].FieldValues
			wantList(b, c.name+": first fields", raw[:4], fields("id", "m", "payload", "p", "attempt", c.attempt0, "due_ms",
				"77")...)
			got2 := [...]string{d.Group, d.Reason, d.Entry, d.Error, d.Headers["a"], d.Extra["color"], d.For}
			redistest.Want(b, c.name+": letter", got2, [...]string{"g", "why", e.EntryID, c.error, "b", "red", ""})
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
		}
	})
}

func TestReleaseKeepsTheAttempt(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.enqueue(Item{ID: "later", When: After(time.Hour)})
		head := b.token()
		redistest.Want(b, "outcome", b.fail("g", e.EntryID, ActionRelease, "", ""), Released)
		redistest.Want(b, "woke", b.token() != head, true)
		redistest.Want(b, "moved at once", b.drain(10).Moved, 1)
		r := b.read("g", "c2", 1)[0]
		redistest.Want(b, "attempt", r.Attempt, 1)
		redistest.Want(b, "payload", string(r.Payload), "payload of m")
		redistest.Want(b, "for", r.For, "g")
		b.wantState("due=1 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}

func TestRetryWakesOnlyForAnEarlierHead(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3")
		step := func(i int, delay time.Duration, wake bool) {
			before := b.token()
			redistest.Want(b, "outcome", b.retry("g", policy, Failure{Held: Held{Entry: es[i].EntryID}, Action: ActionRetry,
				Delay: delay}), Retried)
			redistest.Want(b, "woke", b.token() != before, wake)
		}
		step(0, time.Hour, true)
		step(1, 2*time.Hour, false)
		step(2, time.Minute, true)
	})
}

func TestRetryOfABatchAnswersInOrder(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3", "m4")
		b.ack("g", Held{Entry: es[1].EntryID})
		out, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{
			{Held: Held{Entry: es[3].EntryID, ID: "m4"}, Action: ActionDead, Delay: -1, Reason: ReasonDeadLetter},
			{Held: Held{Entry: es[1].EntryID, ID: "m2"}, Action: ActionRetry, Delay: -1},
			{Held: Held{Entry: es[0].EntryID, ID: "m1"}, Action: ActionRetry, Delay: -1},
			{Held: Held{Entry: es[2].EntryID, ID: "m3"}, Action: ActionRelease, Delay: -1},
			{Held: Held{Entry: "5-1", ID: ""}, Action: ActionRetry, Delay: -1},
		})
		if err != nil {
			b.Fatal(err)
		}
		wantList(b, "outcomes", out, Dead, Lost, Retried, Released, Lost)
		b.wantState("due=2 payload=2 meta=2 stream=0 dead=1 g=0", "g")
	})
}

func TestErrorTextsAreCutAtTheDoor(t *testing.T) {
	everywhere(t, func(b *rig) {
		long := strings.Repeat("ü", 600) + "\xff"
		e := b.deliver([]string{"g"}, "m")[0]
		b.fail("g", e.EntryID, ActionRetry, "", long)
		b.makeDue()
		b.drain(1)
		r := b.read("g", "c", 1)[0]
		redistest.Want(b, "error", r.Error, strings.Repeat("ü", 512))
		// The error of an attempt stays if the next failure has none.
		b.fail("g", r.EntryID, ActionRelease, "", "")
		b.drain(1)
		redistest.Want(b, "error after a release", b.read("g", "c", 1)[0].Error, strings.Repeat("ü", 512))
	})
}

// No exit and no timer is early: a retry that is due in 30 ms is not in the stream before.
func TestRetryIsNeverEarly(t *testing.T) {
	everywhere(t, func(b *rig) {
		e, from := b.deliver([]string{"g"}, "m")[0], b.now()
		b.retry("g", policy, Failure{Held: Held{Entry: e.EntryID}, Action: ActionRetry, Delay: 30 * time.Millisecond})
		redistest.Eventually(b, 10*time.Second, func() (bool, string) { return b.drain(1).Moved == 1, "not moved" })
		if at := EntryTime(b.entries(b.k.Stream)[0].EntryID).UnixMilli(); at < from+30 {
			b.Fatalf("delivered after %d ms", at-from)
		}
	})
}

// The scripts have a short way for ordinary retries, and a long one for all others. Both must deliver the same: a mixed
// batch in random order goes through so many attempts that their number has two digits.
func TestRetriesOfABatchKeepWhatEachHas(t *testing.T) {
	everywhere(t, func(b *rig) {
		const group = `mailer "ü"`
		b.groups(group)
		texts := []string{
			"plain", "with space_.:/+-", `say "hi"`, `back\slash`, "tab\tand\nlines", "nul\x00byte", "ümlaut", "日本", "\x7f",
			"50% [a-z]* ^$ (x)", "{}", "]", `"`, `\u0041`,
		}
		type message struct{ payload, text, headers string }
		wanted := map[string]message{}
		var items []Item
		for i, text := range texts {
			id := strings.Map(func(r rune) rune { // IDs hold no control characters
				if r < 0x20 || r == 0x7f {
					return '_'
				}
				return r
			}, text)
			headers := map[string]string{}
			if i%3 == 2 {
				headers["h"] = text
			}
			wanted[id] = message{payload: strings.Repeat(text, i), text: text, headers: fmt.Sprint(headers)}
			items = append(items, Item{ID: id, When: After(0), Payload: []byte(wanted[id].payload),
				Meta: EncodeMeta(headers, 0, time.Time{})})
		}
		b.enqueue(items...)
		for attempt := 1; attempt <= 12; attempt++ {
			entries := b.read(group, "c", 100)
			redistest.Want(b, "deliveries", len(entries), len(texts))
			var failures []Failure
			for i, e := range entries {
				m := wanted[e.ID]
				redistest.Want(b, "attempt of "+e.ID, e.Attempt, attempt)
				redistest.Want(b, "payload of "+e.ID, string(e.Payload), m.payload)
				redistest.Want(b, "headers of "+e.ID, fmt.Sprint(e.Headers), m.headers)
				if attempt > 1 {
					redistest.Want(b, "error of "+e.ID, e.Error, m.text)
					redistest.Want(b, "group of "+e.ID, e.For, group)
				}
				f := Failure{Held: Held{Entry: e.EntryID, ID: e.ID}, Action: ActionRetry, Delay: 0, Error: m.text}
				if i%2 == 0 {
					failures = append(failures, f)
				} else {
					failures = append([]Failure{f}, failures...)
				}
			}
			outcomes, err := Retry(b.ctx, b.c, b.k, group, Attempts{Max: 100, Delays: []time.Duration{time.Minute}}, failures)
			if err != nil {
				b.Fatal(err)
			}
			for i, o := range outcomes {
				redistest.Want(b, "outcome of "+failures[i].ID, o, Retried)
			}
			b.makeDue()
			redistest.Want(b, "moved", b.drain(100).Moved, len(texts))
		}
		redistest.Want(b, "dead letters", b.count("XLEN", b.k.Dead), 0)
	})
}

// A meta that looks like a retry's, but is too large, is as malformed as any other.
func TestMetaOfARetryHasTheLimitOfAll(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for id, size := range map[string]int{"small": 100, "middle": 64 << 10, "huge": 512 << 10} {
			b.do("HSET", b.k.Meta, id, `{"id":"`+id+`","for":"g","attempt":"2","error":"`+strings.Repeat("x", size)+`"}`)
			b.do("ZADD", b.k.Due, "1", id)
		}
		d := b.drain(10)
		redistest.Want(b, "moved", d.Moved, 2)
		redistest.Want(b, "buried", d.Dead, 1)
		letter := b.entries(b.k.Dead)[0]
		redistest.Want(b, "letter", letter.ID+": "+letter.Error, "huge: meta is larger than 512 KiB")
	})
}

// Two deliveries of one ID both fail, and their retries are named by the ID: neither overwrites the other.
func TestRetriesThatAreNamedByTheirIDsOverwriteNone(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		var failures []Failure
		for i, together := range []bool{true, true, false} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", fmt.Sprint("p", i), "overlap", "skip")
			e := b.read("g", "c", 1)[0]
			failures = append(failures, Failure{Held: Held{Entry: e.EntryID}, Action: ActionRetry, Delay: time.Hour})
			if together && i == 0 {
				continue
			}
			out, err := Retry(b.ctx, b.c, b.k, "g", policy, failures)
			if err != nil || slices.Contains(out, Lost) {
				b.Fatal(out, err)
			}
			failures = nil
		}
		b.wantState("due=3 payload=3 meta=3 stream=0 dead=0 g=0", "g")
		redistest.Want(b, "named by the ID", b.count("ZCOUNT", b.k.Due, "-inf", "+inf") == 3 &&
			b.try("ZSCORE", b.k.Due, "m"+Separator+"g"+Separator+"0-0").Error() == nil, true)
	})
}
