package lua

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// export reads the whole schedule page by page, and calls between after each page.
func (b *testQueue) export(limit, maxBytes int, between func(page int)) (all []Exported, pages int) {
	b.Helper()
	for last := (Exported{}); ; pages++ {
		page, err := Export(b.ctx, b.c, b.k, last, limit, maxBytes)
		if err != nil {
			b.Fatal(err)
		}
		if len(page) == 0 {
			return all, pages
		}
		all = append(all, page...)
		last = page[len(page)-1]
		between(pages)
	}
}

// Pages of any size together have each member once, in the order of the schedule, with any bytes of its payload.
func TestExportReadsTheWholeScheduleInOrder(t *testing.T) {
	score := func(e Exported) string { // the in-process server writes an exponent
		n, err := strconv.ParseFloat(e.Score, 64)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprintf("%.0f", n)
	}
	everywhere(t, func(b *testQueue) {
		var members []string
		for i := range 30 {
			id := fmt.Sprintf("m-%02d", i)
			b.do("ZADD", b.k.Due, fmt.Sprint(1_800_000_000_000+i/10), id) // ten of each score
			b.do("HSET", b.k.Payload, id, "payload\x00\xff of "+id)
			b.do("HSET", b.k.Meta, id, `{"h:a":"`+id+`"}`)
			members = append(members, id)
		}
		b.do("ZADD", b.k.Due, "1900000000000", "bare\xff")
		members = append(members, "bare\xff")
		for _, limit := range []int{1, 7, 10, 100} {
			all, _ := b.export(limit, 1<<20, func(int) {})
			var got []string
			for _, e := range all {
				got = append(got, e.Member)
			}
			wantList(b.T, fmt.Sprint("members, ", limit, " a page"), got, members...)
			last := all[len(all)-1]
			redistest.Want(b, "bare", fmt.Sprintf("%s %q %q", score(last), last.Payload, last.Meta), `1900000000000 "" ""`)
			redistest.Want(b, "first", fmt.Sprintf("%s %q %s", score(all[0]), all[0].Payload, all[0].Meta),
				`1800000000000 "payload\x00\xff of m-00" {"h:a":"m-00"}`)
		}
		// A message has 35 bytes, so a page of 50 bytes has two; the last page has the member that is bare.
		_, pages := b.export(100, 50, func(int) {})
		redistest.Want(b, "pages of 50 bytes", pages, 16)
	})
}

// No member is missed if others leave between two pages. If a page began at the rank that follows from the number of
// members read before, it would begin too late.
func TestExportMissesNothingWhenMembersLeave(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for i := range 60 {
			b.do("ZADD", b.k.Due, "5", fmt.Sprintf("m-%02d", i)) // all of one score
		}
		left := 0
		all, _ := b.export(10, 1<<20, func(page int) {
			for i := range 5 { // the last ones of the last page, and of those before it
				left += b.count("ZREM", b.k.Due, fmt.Sprintf("m-%02d", 10*page+9-i))
			}
			if page == 2 { // a member that was read moves behind all others
				b.do("ZADD", b.k.Due, "9", "m-20")
			}
		})
		var got []string
		for _, e := range all {
			got = append(got, e.Member)
		}
		for i := range 60 {
			if id := fmt.Sprintf("m-%02d", i); !slices.Contains(got, id) {
				b.Errorf("%s is missing", id)
			}
		}
		redistest.Want(b, "left", left, 30)
		redistest.Want(b, "read, m-20 twice", len(got), 61)
	})
}

// A restored letter keeps its entry ID, or the millisecond of the ID if another letter has the ID. If the stream has a
// later letter, it gets a new ID. A letter that was restored before is not restored again. The outcomes are
// 1 = restored, 0 = known, -1 = malformed.
func TestRestoreKeepsEntryIDsAndIsNotDoneTwice(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		letter := func(entry, id string) Restore {
			return Restore{Name: "from/" + entry + "/" + id, Entry: entry, Fields: fields("id", id, "payload", "p\x00\xff:1",
				"h:", "", "group", "g")}
		}
		restore := func(letters ...Restore) []Restored {
			b.Helper()
			out, err := RestoreDead(b.ctx, b.c, b.k, time.Hour, letters)
			if err != nil {
				b.Fatal(err)
			}
			return out
		}
		wantList(b.T, "first", restore(letter("1000-5", "a"), letter("1000-5", "b"), letter("2000-0", "c"),
			letter("1500-0", "d")), 1, 1, 1, 1)
		got := b.letters()
		var ids []string
		for _, e := range got {
			ids = append(ids, e.EntryID+"="+e.ID)
		}
		if !slices.Contains(ids, "1000-5=a") || !slices.Contains(ids, "2000-0=c") || !strings.HasSuffix(ids[1], "=b") ||
			!strings.HasSuffix(ids[3], "=d") {
			b.Errorf("letters %q", ids)
		}
		if !b.inProcess() {
			redistest.Want(b, "one of the same millisecond", ids[1], "1000-6=b")
		}
		redistest.Want(b, "payload", string(got[0].Payload), "p\x00\xff:1")
		redistest.Want(b, "empty header name and value", got[0].Headers[""], "")
		wantList(b.T, "again", restore(letter("1000-5", "a"), letter("1000-5", "b"), letter("2000-0", "c"),
			letter("1500-0", "d")), 0, 0, 0, 0)
		b.do("DEL", b.k.Seen)
		wantList(b.T, "and when it is forgotten", restore(letter("1000-5", "a"), letter("2000-0", "c")), 0, 0)
		wantList(b.T, "nothing, and too much", restore(Restore{Name: "x", Entry: "1-1"},
			Restore{Name: "y", Entry: "1-1", Fields: make([]FieldValue, 2001)}), -1, -1)
		redistest.Want(b, "letters", b.count("XLEN", b.k.Dead), 4)
	})
}

// Before, a letter of an edited or foreign export was written under any ID that it named. After the largest ID, no
// letter could be added to that stream any more, and the next malformed message stopped the queue.
func TestRestoreTakesNoEntryIDFromTheFuture(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		now := b.now()
		ahead := []string{
			"18446744073709551615-18446744073709551615", "18446744073709551615-0", ms(now+3_600_000) + "-0", ms(now+600_000) +
				"-18446744073709551615",
			"9999999999999999-5", "00018446744073709551614-1", "99999999999999999999-1",
		}
		var letters []Restore
		for i, entry := range ahead {
			letters = append(letters, Restore{Name: fmt.Sprint("n", i), Entry: entry, Fields: fields("id", fmt.Sprint("m", i),
				"payload", "p")})
		}
		for again, outcome := range []Restored{RestoreDone, RestoreKnown} {
			out, err := RestoreDead(b.ctx, b.c, b.k, time.Hour, letters)
			if err != nil {
				b.Fatal(err)
			}
			wantList(b.T, fmt.Sprint("outcomes of run ", again+1), out, slices.Repeat([]Restored{outcome}, len(ahead))...)
		}
		for _, e := range b.letters() {
			if at := EntryTime(e.EntryID).UnixMilli(); at < now || at > b.now()+61_000 {
				b.Errorf("%s restored as %s, at %d", e.ID, e.EntryID, now)
			}
		}
		b.do("HSET", b.k.Meta, "bad", "broken")
		b.do("ZADD", b.k.Due, "1", "bad", "2", "good")
		d := b.drain(10)
		redistest.Want(b, "after it: moved, buried", fmt.Sprint(d.Moved, d.Dead, d.Refusal), "1 1")
		b.wantState(fmt.Sprintf("due=0 payload=0 meta=0 stream=1 dead=%d", len(ahead)+1))
	})
}

// The clocks of two servers differ a little; each letter keeps its ID nevertheless.
func TestRestoreToleratesAClockThatIsALittleBehind(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		entry := ms(b.now()+50_000) + "-3"
		out, err := RestoreDead(b.ctx, b.c, b.k, time.Hour, []Restore{{Name: "n", Entry: entry, Fields: fields("id", "m")}})
		if err != nil || out[0] != RestoreDone {
			b.Fatal(out, err)
		}
		redistest.Want(b, "entry", b.letters()[0].EntryID, entry)
	})
}

// A letter that the stream refuses must not be remembered as restored.
func TestRestoreIntoAStreamThatRefuses(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		if b.inProcess() {
			return // the streams of that server are never full
		}
		b.fillStream(b.k.Dead)
		_, err := RestoreDead(b.ctx, b.c, b.k, time.Hour, []Restore{{Name: "n", Entry: "1-1", Fields: fields("id", "a")}})
		if err == nil || errors.Is(err, ErrFull) {
			b.Errorf("%v", err)
		}
		redistest.Want(b, "remembered", b.count("ZCARD", b.k.Seen), 0)
	})
}
