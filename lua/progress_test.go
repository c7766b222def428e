package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// saveProgress stores the cursor of an entry that consumer c1 holds.
func (b *testQueue) saveProgress(group string, e Entry, cursor string) Extended {
	b.Helper()
	saved, err := SaveProgress(b.ctx, b.c, b.k, group, "c1", Held{Entry: e.EntryID, ID: e.ID}, []byte(cursor))
	if err != nil {
		b.Fatal(err)
	}
	return saved
}

// nextAttempt drains and reads the next delivery of the only message, and returns it with the progress that it has.
func (b *testQueue) nextAttempt(group string) (Entry, string) {
	b.Helper()
	b.makeDue()
	b.drain(10)
	e := b.read(group, "c1", 1)[0]
	return e, string(e.TakeProgress())
}

// many is a policy with more attempts than a test makes.
var many = Attempts{Max: 1000, Delays: policy.Delays}

// The next attempt must get the progress that an attempt stored: text, any bytes, and the greatest size. It must get
// the progress also if the attempt was abandoned, so that only the server knew the progress.
func TestProgressReachesTheNextAttempt(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		redistest.Want(b, "progress of the first attempt", e.TakeProgress() == nil, true)
		for _, cursor := range []string{"page 7", "\x00\xff", `"{}`, strings.Repeat("é", MaxProgressBytes/2),
			strings.Repeat("\xff", MaxProgressBytes), "a\x1fb\nc"} {
			redistest.Want(b, "saved", b.saveProgress("g", e, cursor), StillHeld)
			b.abandon("g", "c1", e.EntryID)
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: many, MinIdle: time.Minute, Limit: 10,
				MaxBytes: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "fields that are left", b.count("EXISTS", b.k.Progress), 0)
			var got string
			e, got = b.nextAttempt("g")
			if got != cursor {
				b.Errorf("after a reclaim, progress is %.40q, want %.40q", got, cursor)
			}
			for _, action := range []Action{ActionRetry, ActionSnooze, ActionRelease} {
				b.retry("g", many, Failure{Held: Held{Entry: e.EntryID, ID: e.ID}, Action: action, Error: "no", Trace: traceOne,
					Progress: []byte(cursor)})
				if e, got = b.nextAttempt("g"); got != cursor {
					b.Errorf("after %s, progress is %.40q, want %.40q", action, got, cursor)
				}
			}
			e = b.nextOf(e, []byte(cursor))
			e = b.nextOf(e, nil) // a settlement that knows of no cursor leaves the one before
			redistest.Want(b, "progress is kept", string(e.TakeProgress()) == cursor, true)
		}
		e = b.nextOf(e, []byte{})
		redistest.Want(b, "an empty cursor ends the progress", e.TakeProgress() == nil, true)
	})
}

// nextOf fails an entry with a cursor, and returns the message's next delivery.
func (b *testQueue) nextOf(e Entry, cursor []byte) Entry {
	b.Helper()
	b.retry("g", many,
		Failure{Held: Held{Entry: e.EntryID, ID: e.ID}, Action: ActionRetry, Error: "no", Progress: cursor})
	b.makeDue()
	b.drain(10)
	return b.read("g", "c1", 1)[0]
}

// An empty cursor that was stored overrides the cursor of the attempt before, also if a bridge ends the delivery.
func TestEmptyProgressIsProgress(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.nextOf(b.deliver([]string{"g"}, "m")[0], []byte("page 7"))
		b.saveProgress("g", e, "")
		b.abandon("g", "c1", e.EntryID)
		b.reclaim("g", time.Minute)
		_, got := b.nextAttempt("g")
		redistest.Want(b, "progress", got, "")
	})
}

// Progress is stored only by the consumer that holds the entry.
func TestProgressOfALostDeliveryIsRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g", "h"}, "m")[0]
		b.do("XCLAIM", b.k.Stream, "g", "other", "0", e.EntryID, "JUSTID")
		redistest.Want(b, "held by another consumer", b.saveProgress("g", e, "x"), NotHeld)
		b.ack("h", Held{Entry: e.EntryID})
		redistest.Want(b, "acknowledged", b.saveProgress("h", e, "x"), NotHeld)
		redistest.Want(b, "no such group", b.saveProgress("nobody", e, "x"), NotHeld)
		redistest.Want(b, "no such entry", b.saveProgress("g", Entry{EntryID: "1-1", ID: "m"}, "x"), NotHeld)
		redistest.Want(b, "something was stored", b.count("EXISTS", b.k.Progress), 0)
		b.ack("g", Held{Entry: e.EntryID})
		held := b.deliver([]string{"g"}, "n")
		b.cancelRunning("g", "n")
		redistest.Want(b, "cancelled", b.saveProgress("g", held[0], "x"), HeldCancelled)
		redistest.Want(b, "something was stored", b.count("EXISTS", b.k.Progress), 0)
	})
}

// The largest cursor fits, and a larger one is refused with its size, by both scripts that take one.
func TestProgressThatIsTooLargeIsRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		large := []byte(strings.Repeat("x", MaxProgressBytes+1))
		held := Held{Entry: e.EntryID, ID: e.ID}
		_, err := SaveProgress(b.ctx, b.c, b.k, "g", "c1", held, large)
		if err == nil || !strings.Contains(err.Error(), "cursor has 4097 bytes; the limit is 4096") {
			b.Errorf("save_progress: %v", err)
		}
		_, err = Retry(b.ctx, b.c, b.k, "g", policy, []Failure{{Held: held, Action: ActionRetry, Progress: large}})
		if err == nil || !strings.Contains(err.Error(), "progress is longer than 4096 bytes") {
			b.Errorf("retry: %v", err)
		}
		redistest.Want(b, "pending", b.pending("g"), 1)
	})
}

// Two groups work on the same entry, and each has progress of its own.
func TestProgressIsPerGroup(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g", "h"}, "m")[0]
		b.saveProgress("g", e, "of g")
		b.saveProgress("h", e, "of h")
		b.abandon("g", "c1", e.EntryID)
		b.reclaim("g", time.Minute)
		b.makeDue()
		b.drain(10)
		retry := b.read("g", "c1", 1)[0]
		redistest.Want(b, "progress of g", string(retry.TakeProgress()), "of g")
		b.abandon("h", "c1", e.EntryID)
		b.reclaim("h", time.Minute)
		b.makeDue()
		b.drain(10)
		for _, retry := range b.read("h", "c1", 10) {
			if retry.For == "h" {
				redistest.Want(b, "progress of h", string(retry.TakeProgress()), "of h")
			}
		}
	})
}

// After a failover, an entry ID may stand for another message. The cursor of the first message does not reach it.
func TestProgressOfAnotherMessageIsIgnored(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.saveProgress("g", e, "of m")
		b.do("DEL", b.k.Stream)
		b.groups("g")
		b.do("XADD", b.k.Stream, e.EntryID, "id", "other", "payload", "p")
		b.read("g", "c1", 1)
		b.abandon("g", "c1", e.EntryID)
		b.reclaim("g", time.Minute)
		_, got := b.nextAttempt("g")
		redistest.Want(b, "progress", got, "")
	})
}

// A producer cannot give progress to a first attempt, and a field that is no cursor is none.
func TestOnlyARetryHasProgress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fields []FieldValue
		want   string
	}{
		{fields("id", "m", "progress", "x"), ""},
		{fields("id", "m", "for", "g", "progress", "x"), "x"},
		{fields("id", "m", "for", "g", "b64:progress", "/w=="), "\xff"},
		{fields("id", "m", "for", "g", "b64:progress", "no base64"), ""},
		{fields("id", "m", "for", "g", "progress", strings.Repeat("x", MaxProgressBytes+1)), ""},
	} {
		e := ParseEntry("1-1", c.fields)
		redistest.Want(t, fmt.Sprintf("progress in %.80q", c.fields), string(e.TakeProgress()), c.want)
		redistest.Want(t, "other fields", len(e.Extra), 0)
	}
}

// A dead letter keeps the progress, and its redrive goes on from there: for the same group, with the same payload.
func TestRedriveGoesOnFromTheProgressOfTheLetter(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, c := range []struct {
			name string
			how  Redrive
			to   string
			want string
		}{
			{"as it was", Redrive{}, "g", "page 7"},
			{"with other headers", Redrive{Fields: `{"h:a":"b"}`}, "g", "page 7"},
			{"with another payload", Redrive{Payload: new([]byte("x"))}, "g", ""},
			{"for another group", Redrive{To: "h"}, "h", ""},
		} {
			e := b.deliver([]string{"g"}, "m")[0]
			b.groups("h")
			b.retry("g", policy, Failure{Held: Held{Entry: e.EntryID}, Action: ActionDead, Reason: ReasonDeadLetter, Error: "no",
				Progress: []byte("page 7")})
			letter := b.letters()[0]
			redistest.Want(b, "progress of the letter", letter.Extra[FieldProgress], "page 7")
			c.how.Letter, c.how.When = letter.EntryID, After(0)
			if done, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{c.how}); err != nil || done[0] != 1 {
				b.Fatal(done, err)
			}
			b.makeDue()
			b.drain(10)
			for _, again := range b.read(c.to, "c2", 10) {
				if again.For == c.to {
					redistest.Want(b, c.name, string(again.TakeProgress()), c.want)
				}
			}
			b.do("DEL", b.k.Stream)
		}
	})
}

// A retry that expires while it waits becomes a dead letter with its progress.
func TestARetryThatExpiresKeepsItsProgress(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.retry("g", policy, Failure{Held: Held{Entry: e.EntryID}, Action: ActionRetry, Error: "no",
			Progress: []byte("page 7")})
		for member, meta := range b.hash(b.k.Meta) {
			b.do("HSET", b.k.Meta, member, strings.Replace(meta, "{", `{"expires_ms":"1",`, 1))
		}
		b.makeDue()
		b.drain(10)
		letter := b.letters()[0]
		redistest.Want(b, "letter", letter.Reason+" "+letter.Extra[FieldProgress], "expired page 7")
	})
}

// A cursor whose entry nobody holds any more is removed: after a plain XACK, after a crash between a settlement and the
// removal by its worker, and after the group or the stream was deleted. A cursor that somebody may still need stays.
func TestTrimRemovesProgressOfSettledEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		var names []string
		for i := range 300 {
			names = append(names, fmt.Sprintf("m%03d", i))
		}
		all := b.deliver([]string{"g", "h"}, names...)
		for _, e := range all {
			b.saveProgress("g", e, "x")
		}
		kept := all[0]
		b.saveProgress("h", kept, "y")
		for _, e := range all[1:] {
			b.do("XACK", b.k.Stream, "g", e.EntryID)
		}
		b.do("HSET", b.k.Progress, "no entry", "x")
		trim := func() int {
			b.Helper()
			done, err := Trim(b.ctx, b.c, b.k, "", 1000, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			return done.Cursors
		}
		for n := 1; n > 0; {
			n = trim() + trim() + trim() + trim() // a walk over 300 fields takes about 3 calls
		}
		delete := []string{progressField(kept.EntryID, "g"), progressField(kept.EntryID, "h")}
		redistest.Want(b, "fields", b.count("HLEN", b.k.Progress), 2)
		redistest.Want(b, "the fields of the held entry", b.count(append([]string{"HDEL", b.k.Progress}, delete...)...), 2)
		b.saveProgress("g", kept, "x")
		b.saveProgress("h", kept, "y")
		b.do("XGROUP", "DESTROY", b.k.Stream, "g")
		trim()
		redistest.Want(b, "fields after the end of a group", b.count("HLEN", b.k.Progress), 1)
		b.do("DEL", b.k.Stream)
		looks, err := Survey(b.ctx, b.c, []Keys{b.k}, true)
		if err != nil || !looks[0].Untidy {
			b.Fatal("a queue with a cursor is not untidy", looks, err)
		}
		trim()
		redistest.Want(b, "fields after the end of the stream", b.count("EXISTS", b.k.Progress), 0)
	})
}
