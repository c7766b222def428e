package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestSnoozedMessageComesBackWithTheSameAttempt(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g", "h"}, "m")[0]
		head := b.token()
		redistest.Want(b, "outcome", b.retry("g", Attempts{Max: 1, Delays: []time.Duration{time.Hour}},
			Failure{Held: Held{Entry: e.EntryID}, Action: ActionSnooze, Delay: time.Minute}), Snoozed)
		redistest.Want(b, "woke", b.token() != head, true)
		member := "m" + Separator + "g" + Separator + e.EntryID
		if due := int64(b.dueOf(member)); due < b.now()+30_000 || due > b.now()+60_000 {
			b.Errorf("due in %d ms", due-b.now())
		}
		b.makeDue()
		b.drain(10)
		r := b.read("g", "c2", 1)[0]
		redistest.Want(b, "again", fmt.Sprint(r.ID, r.Attempt, r.For, r.Error, string(r.Payload), r.Extra),
			"m1gpayload of mmap[snoozes:1]")
		b.wantState("due=0 payload=0 meta=0 stream=2 dead=0 g=1", "g")
	})
}

// A snooze is no failure: it uses no attempt, is not limited by age, and keeps the error of the last failure. Only the
// number of snoozes is bounded, so that no message goes round for ever.
func TestSnoozesAreBounded(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		few := Attempts{Max: 2, Delays: []time.Duration{0}, MaxSnoozes: 3}
		for _, c := range []struct {
			what   string
			a      Attempts
			fields []string
			want   string // snoozes, or "dead"
		}{
			{"the first", few, nil, "1"},
			{"at the last attempt", few, []string{"attempt", "2"}, "1"},
			{"the last", few, []string{"snoozes", "2"}, "3"},
			{"one too many", few, []string{"snoozes", "3"}, "dead"},
			{"the message's own", few, []string{"snoozes", "3", "max_snoozes", "4"}, "4"},
			{"the message's own, and too many", few, []string{"snoozes", "4", "max_snoozes", "4"}, "dead"},
			{"nobody said how many", Attempts{Max: 2}, []string{"snoozes", "999"}, "1000"},
			{"nobody said how many, and too many", Attempts{Max: 2}, []string{"snoozes", "1000"}, "dead"},
			{"no number", few, []string{"snoozes", "many", "max_snoozes", "some"}, "1"},
			{"older than it is tried", Attempts{Max: 2, For: time.Second}, nil, "1"},
		} {
			out, delay, rest := b.exits(false, c.a, Failure{Action: ActionSnooze, Delay: time.Minute, Reason: "why",
				Error: "why"}, append(c.fields, "due_ms", "5", "error", "before")...)
			got := rest[FieldSnoozes]
			if out == Dead {
				got = "dead"
				redistest.Want(b, c.what+": reason", rest["reason"], ReasonMaxSnoozes)
			} else if out != Snoozed || !near(delay, 60_000) {
				b.Errorf("%s: %d in %d ms", c.what, out, delay)
			}
			redistest.Want(b, c.what, got, c.want)
			if c.a.For > 0 {
				redistest.Want(b, c.what+": first due", rest[FieldFirstDue], "5")
			}
		}
		for _, delay := range []string{"", "-1", "1m"} {
			b.do("XADD", b.k.Stream, "*", "id", "m")
			e := b.read("g", "c", 1)[0]
			keys := []string{b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta, b.k.Dead, b.k.Wake}
			if _, err := retryScript.integers(b.ctx, b.c, keys,
				[]string{"g", "9", "1000", e.EntryID, "", "snooze", delay, "", ""}, 1, Durability{}); err == nil {
				b.Errorf("a snooze for %q passes", delay)
			}
		}
	})
}

// A deploy that kills workers used up a message's attempts, one per visibility timeout.
func TestCrashesAreCountedApartFromFailures(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		apart := Attempts{Max: 2, Delays: []time.Duration{time.Minute, time.Hour}, MaxCrashes: 3}
		for _, c := range []struct {
			what    string
			a       Attempts
			reclaim bool
			fields  []string
			want    string // attempt, crashes and minutes; or the reason
		}{
			{"the first", apart, true, nil, "1 1 1"},
			{"the second", apart, true, []string{"crashes", "1"}, "1 2 60"},
			{"the last", apart, true, []string{"crashes", "2"}, ReasonCrashes},
			{"at the last attempt", apart, true, []string{"attempt", "2"}, "2 1 1"},
			{"a failure is none", apart, false, []string{"crashes", "2"}, "2 2 1"},
			{"the message's own", apart, true, []string{"crashes", "2", "max_crashes", "9"}, "1 3 60"},
			{"the message wants none", apart, true, []string{"max_crashes", "0"}, "2  1"},
			{"not counted", Attempts{Max: 2, Delays: apart.Delays}, true, nil, "2  1"},
			{"not counted, and the last", Attempts{Max: 2, Delays: apart.Delays}, true, []string{"attempt", "2"}, "visibility_timeout"},
			{"by the message alone", Attempts{Max: 2, Delays: apart.Delays}, true, []string{"max_crashes", "1"}, ReasonCrashes},
			{"no number", apart, true, []string{"crashes", "x"}, "1 1 1"},
			{"too old", Attempts{Max: 2, Delays: apart.Delays, MaxCrashes: 3, For: time.Second}, true, nil, ReasonRetryFor},
		} {
			out, delay, rest := b.exits(c.reclaim, c.a, Failure{Action: ActionRetry, Delay: -1, Error: "e"},
				append(c.fields, "due_ms", "5")...)
			got := fmt.Sprint(rest["attempt"], " ", rest[FieldCrashes], " ", (delay+500)/60_000)
			if out == Dead {
				got = rest["reason"]
			}
			redistest.Want(b, c.what, got, c.want)
		}
	})
}

// Deliveries by other clients' claims were no failures either.
func TestForeignClaimsAreCrashesWhereTheseAreCounted(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.do("XCLAIM", b.k.Stream, "g", "c2", "0", e.EntryID)
		b.do("XCLAIM", b.k.Stream, "g", "c3", "0", e.EntryID)
		a := Attempts{Max: 2, Delays: []time.Duration{0}, MaxCrashes: 4}
		for range 2 {
			args := ReclaimArgs{Group: "g", Attempts: a, Limit: 10, MaxBytes: 1 << 20}
			if _, err := Reclaim(b.ctx, b.c, b.k, args); err != nil {
				b.Fatal(err)
			}
			b.drain(10)
			if again := b.read("g", "c", 1); len(again) == 1 {
				redistest.Want(b, "again", fmt.Sprint(again[0].Attempt, again[0].Extra), "1 map[crashes:3]")
			}
		}
		d := b.entries(b.k.Dead)[0]
		redistest.Want(b, "letter", fmt.Sprint(d.Reason, d.Attempt, d.Extra), "crashes1 map[crashes:4]")
		wantList(b, "redriven", b.redrive(Redrive{Letter: d.EntryID, When: After(0)}), RedriveScheduled)
		b.drain(10)
		redistest.Want(b, "a new life", len(b.read("g", "c", 1)[0].Extra), 0)
	})
}
