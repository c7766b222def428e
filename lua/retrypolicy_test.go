package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// exits takes an entry with these fields out of the pending list of group g, by a retry or by a reclaim. It returns the
// outcome, the delay in ms and the meta of the retry, or the fields of the dead letter.
func (b *rig) exits(reclaim bool, a Attempts, f Failure, entry ...string) (out Outcome, delay int64, rest map[string]string) {
	b.Helper()
	b.do("DEL", b.k.Dead, b.k.Due, b.k.Meta, b.k.Payload)
	b.do(append([]string{"XADD", b.k.Stream, "*", "id", "m"}, entry...)...)
	e, from := b.read("g", "c", 1)[0], b.now()
	f.Entry = e.EntryID
	if !reclaim {
		out = b.retry("g", a, f)
	} else {
		r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: a, Limit: 10, MaxBytes: 1 << 20})
		if err != nil || r.Retried+r.Dead != 1 {
			b.Fatal(r, err)
		}
		out = Outcome(r.Retried*int(Retried) + r.Dead*int(Dead))
	}
	member := "m" + Separator + "g" + Separator + e.EntryID
	if out != Dead {
		return out, int64(b.dueOf(member)) - from, b.decode(b.text("HGET", b.k.Meta, member))
	}
	rest = map[string]string{}
	for _, one := range b.raw(b.k.Dead)[0].FieldValues {
		rest[one.Field] = one.Value
	}
	return out, 0, rest
}

func (b *rig) decode(meta string) map[string]string {
	e, ok := DecodeMeta("m", meta)
	if !ok {
		b.Fatalf("meta %q", meta)
	}
	all := map[string]string{"attempt": fmt.Sprint(e.Attempt)}
	for name, value := range e.Extra {
		all[name] = value
	}
	return all
}

// near reports whether a delay is the wanted one, or later by what a slow machine needs.
func near(delay, want int64) bool { return delay >= want && delay < want+30_000 }

func TestDelaysOfTheMessageWinOverThoseOfThePolicy(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		a := Attempts{Max: 100, Delays: []time.Duration{time.Hour}}
		long := strings.TrimSuffix(strings.Repeat("1,", MaxDelays+1), ",")
		for _, reclaim := range []bool{false, true} {
			for _, c := range []struct {
				attempt, list string
				asked         time.Duration
				want          int64
			}{
				{"1", "60000,180000,300000", -1, 60_000}, {"2", "60000,180000,300000", -1, 180_000},
				{"3", "60000,180000,300000", -1, 300_000}, {"9", "60000,180000,300000", -1, 300_000}, {"4", "120000", -1, 120_000},
				{"1", "315360000000", -1, 315_360_000_000},
				{"1", "60000", 10 * time.Minute, 600_000}, // the handler's delay wins over both
				// An invalid list does not count.
				{"1", "0", -1, 3_600_000}, {"1", "", -1, 3_600_000}, {"1", "1m", -1, 3_600_000}, {"1", "60000,", -1, 3_600_000},
				{"1", "60000,,1", -1, 3_600_000}, {"1", "60000,0", -1, 3_600_000}, {"1", "315360000001", -1, 3_600_000},
				{"1", "-5", -1, 3_600_000}, {"1", "99999999999999999999999999", -1, 3_600_000}, {"1", long, -1, 3_600_000},
			} {
				if reclaim && c.asked >= 0 {
					continue
				}
				out, delay, meta := b.exits(reclaim, a, Failure{Action: ActionRetry, Delay: c.asked, Error: "e"}, "attempt",
					c.attempt, FieldRetryDelays, c.list)
				if out != Retried || !near(delay, c.want) || meta[FieldRetryDelays] != c.list {
					b.Errorf("reclaim %v, attempt %s, list %.40q, asked for %s: %d in %d ms, want %d; meta %.99v", reclaim, c.attempt,
						c.list, c.asked, out, delay, c.want, meta)
				}
			}
		}
	})
}

func TestAMessageIsNotTriedWhenItIsTooOld(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		now := b.now()
		ago := func(d time.Duration) string { return fmt.Sprint(now - d.Milliseconds()) }
		hour := []time.Duration{time.Hour}
		for _, reclaim := range []bool{false, true} {
			for _, c := range []struct {
				what   string
				a      Attempts
				fields []string
				first  string // of the retry; "dead" = a dead letter
			}{
				{"no limit", Attempts{Max: 9, Delays: hour}, []string{"due_ms", ago(1e6 * time.Second)}, ""},
				{"the next one is in time", Attempts{Max: 9, Delays: hour, For: 3 * time.Hour}, []string{"due_ms", ago(time.Hour)},
					ago(time.Hour)},
				{"the next one is too late", Attempts{Max: 9, Delays: hour, For: 3 * time.Hour},
					[]string{"due_ms", ago(150 * time.Minute)}, "dead"},
				{"it is a retry already", Attempts{Max: 9, Delays: hour, For: 3 * time.Hour},
					[]string{"due_ms", ago(0), "first_due_ms", ago(150 * time.Minute)}, "dead"},
				{"a retry that has time left", Attempts{Max: 9, Delays: hour, For: 3 * time.Hour},
					[]string{"due_ms", ago(0), "first_due_ms", ago(time.Hour)}, ago(time.Hour)},
				{"the message's own limit", Attempts{Max: 9, Delays: hour},
					[]string{"due_ms", ago(time.Hour), "retry_for_ms", "60000"}, "dead"},
				{"the message allows more", Attempts{Max: 9, Delays: hour, For: time.Second},
					[]string{"due_ms", ago(time.Hour), "retry_for_ms", "86400000"}, ago(time.Hour)},
				{"the message has no limit", Attempts{Max: 9, Delays: hour, For: time.Second},
					[]string{"due_ms", ago(time.Hour), "retry_for_ms", "0"}, ""},
				{"a limit that is none", Attempts{Max: 9, Delays: hour},
					[]string{"due_ms", ago(time.Hour), "retry_for_ms", "1d"}, ""},
				{"due at an unknown time", Attempts{Max: 9, Delays: hour, For: 3 * time.Hour}, []string{"due_ms", "soon"}, "added"},
			} {
				out, _, rest := b.exits(reclaim, c.a, Failure{Action: ActionRetry, Delay: -1, Reason: ReasonMaxAttempts,
					Error: "e"}, append(c.fields, "attempt", "2")...)
				first := rest[FieldFirstDue]
				if out == Dead {
					first = "dead"
					if rest["reason"] != ReasonRetryFor || rest["attempt"] != "2" || rest["error"] == "" {
						b.Errorf("%s: dead letter %v", c.what, rest)
					}
				} else if c.first == "added" && first >= ago(0) {
					first = "added"
				}
				if first != c.first || out != Dead && rest["attempt"] != "3" {
					b.Errorf("reclaim %v, %s: %d, first due %s, want %s; %v", reclaim, c.what, out, first, c.first, rest)
				}
			}
		}
		// The attempts count as well, and a release was no attempt.
		for _, c := range []struct {
			action Action
			want   Outcome
			reason string
		}{{ActionRetry, Dead, "why"}, {ActionDead, Dead, "why"}, {ActionRelease, Released, ""}} {
			out, _, rest := b.exits(false, Attempts{Max: 3, Delays: hour, For: time.Second}, Failure{Action: c.action, Delay: -1,
				Reason: "why"}, "attempt", "3", "due_ms", ago(time.Hour))
			redistest.Want(b, string(c.action), out, c.want)
			redistest.Want(b, string(c.action)+": reason", rest["reason"], c.reason)
			redistest.Want(b, string(c.action)+": first due", rest[FieldFirstDue], ago(time.Hour))
		}
	})
}

// A redrive is a new life: the age counts from it.
func TestRedriveForgetsWhenItWasDueFirst(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		_, _, letter := b.exits(false, Attempts{Max: 9, Delays: []time.Duration{0}, For: time.Second},
			Failure{Action: ActionRetry, Delay: -1}, "attempt", "2", "payload", "p", "due_ms", "5", "retry_delays_ms", "7,8",
			"retry_for_ms", "1000")
		redistest.Want(b, "first due", letter[FieldFirstDue], "5")
		wantList(b, "redriven", b.redrive(Redrive{Letter: b.entries(b.k.Dead)[0].EntryID, When: After(0)}), RedriveScheduled)
		b.drain(10)
		e := b.read("g", "c", 1)[0]
		redistest.Want(b, "fields", fmt.Sprint(e.Attempt, e.Extra), "1 map[retry_delays_ms:7,8 retry_for_ms:1000]")
	})
}

// A setting that is not set costs no field and no command. Settings of an older or newer caller are accepted or refused
// as a whole.
func TestLimitsStandBehindMaxAttempts(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		_, _, meta := b.exits(false, Attempts{Max: 9, Delays: []time.Duration{0}}, Failure{Action: ActionRetry, Delay: -1,
			Error: "e"}, "attempt", "1", "due_ms", "5")
		redistest.Want(b, "meta", fmt.Sprint(meta), "map[attempt:2]")
		for text, want := range map[string]string{
			"9": "ok", "9 retry_for_ms=5": "ok", "9 retry_for_ms=5 some_later=7": "ok", "9 ": "ok", "9 retry_for_ms": "ERR",
			"9 retry_for_ms=1d": "ERR", "9 retry_for_ms=5 x": "ERR", "": "ERR", "nine": "ERR", " retry_for_ms=5": "ERR",
			"9 retry_for_ms=-5": "ERR", "9  stream=5": "ERR", "9 stream=5 soonest=1": "ok",
		} {
			b.do("XADD", b.k.Stream, "*", "id", "m")
			e := b.read("g", "c", 1)[0]
			_, err := retryScript.integers(b.ctx, b.c, []string{b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta, b.k.Dead, b.k.Wake,
				b.k.Turns, b.k.Policy, b.k.History}, []string{"g", text, "0", e.EntryID, "", "retry", "", "", "", ""}, 1, Durability{})
			if got := err == nil; got != (want == "ok") {
				b.Errorf("max_attempts %q: %v", text, err)
			}
		}
	})
}

func TestListsOfDelaysAreChecked(t *testing.T) {
	t.Parallel()
	redistest.Want(t, "list", NewDelays(time.Minute, 1500*time.Millisecond, time.Nanosecond), "60000,1500,1")
	redistest.Want(t, "shown", NewDelays(time.Minute, 1500*time.Millisecond).String(), "1m0s,1.5s")
	redistest.Want(t, "read", fmt.Sprint(Delays("60000,1").List()), "[1m0s 1ms]")
	for _, list := range []Delays{"", "1", "315360000000", NewDelays(make([]time.Duration, MaxDelays)...)} {
		if err := CheckDelays(list); (err != nil) != strings.HasPrefix(string(list), "0") {
			t.Errorf("%q: %v", list, err)
		}
	}
	for _, list := range []Delays{"0", ",", "1,", "1, 2", "+1", "-1", "1m", "315360000001", "99999999999999999999",
		Delays(strings.Repeat("1,", MaxDelays) + "1")} {
		if CheckDelays(list) == nil || list.List() != nil {
			t.Errorf("%q passes", list)
		}
	}
}
