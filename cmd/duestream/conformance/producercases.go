package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	far      = time.Hour   // due later than any case lasts
	inTime   = time.Second // lateness of what came with a wake token
	beforeIt = 1500 * time.Millisecond
)

var producerCases = slices.Concat(arrivalCases, scheduleCases, careCases, hardshipCases, networkCases, scheduleCompletely)

// What producers schedule arrives.
var arrivalCases = []Case{
	{
		Name: "answers", Level: Good, Section: "15",
		Rule: "A producer answers each line before or while it reads the next one, and exits with 0 when its input ends.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			for _, id := range []string{"one", "two", "three"} {
				o, err := t.dueIn(id, far)
				if err != nil {
					return err
				}
				if err := t.taken(p, o); err != nil {
					return fmt.Errorf("with its input still open: %w", err)
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "arrives", Level: Good, Section: "4 and 7",
		Rule: "What was answered with ok arrives as it was ordered, at its due time and not before.",
		run: func(t *trial) error {
			var orders []order
			for i := range 8 {
				o, err := t.dueIn(fmt.Sprintf("m-%d", i), time.Duration(500+100*i)*time.Millisecond)
				if err != nil {
					return err
				}
				o.Payload = []byte("payload of " + o.ID)
				if i%2 == 0 {
					o.Headers = map[string]string{"trace": "7f3a", "n": strconv.Itoa(i)}
				}
				orders = append(orders, o)
			}
			return t.allArrive(orders, samePayload, sameHeaders, inDueTime)
		},
	},
	{
		Name: "due-in-the-past", Level: Good, Section: "4",
		Rule: "A message whose due time is in the past is delivered at once.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			return firstError(t.someInTime(func(round int) (string, error) {
				o, err := t.dueIn(fmt.Sprintf("late-%d", round), -far)
				if err != nil {
					return "", err
				}
				if err := t.taken(p, o); err != nil {
					return "", err
				}
				answered, err := t.now()
				if err != nil {
					return "", err
				}
				return t.late(o.ID, answered, "it was answered with ok")
			}), t.finished(p))
		},
	},
	{
		Name: "wake-token", Level: Good, Section: "7, step 4",
		Rule: "A producer adds a wake token, with MAXLEN 1, after the due time: without it a bridge that sleeps is up to 5 s late.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			wake := t.keys(0).Wake
			if err := t.someInTime(func(round int) (string, error) {
				before, err := t.lastToken(wake)
				if err != nil {
					return "", err
				}
				o, err := t.dueIn(fmt.Sprintf("m-%d", round), beforeIt)
				if err != nil {
					return "", err
				}
				if err := t.taken(p, o); err != nil {
					return "", err
				}
				_, waits, err := t.scheduled(o.ID)
				if err != nil {
					return "", err
				}
				after, err := t.lastToken(wake)
				if err != nil {
					return "", err
				}
				if waits && after == before {
					return "", failf("message %q was answered with ok, is scheduled as the earliest of its queue, and no token was added to %s", o.ID, wake)
				}
				return t.late(o.ID, time.UnixMilli(o.Due), "its due time")
			}); err != nil {
				return err
			}
			if n, err := t.number("XLEN", wake); err != nil || n > 1 {
				return firstError(err, failf("%s holds %d tokens; wanted 1, by MAXLEN 1 (exact, without ~)", wake, n))
			}
			return t.finished(p)
		},
	},
	{
		Name: "payload", Level: Good, Section: "4",
		Rule: "A payload is bytes, any of them, none, or 1 MiB; it arrives as it was ordered.",
		run: func(t *trial) error {
			binary := make([]byte, 256)
			for i := range binary {
				binary[i] = byte(i)
			}
			orders := []order{
				{ID: "binary", Payload: binary}, {ID: "lines", Payload: []byte("\r\n\x00\n\n\r end \x00\r\n")},
				{ID: "broken-utf8", Payload: []byte("é\xff\xfe\xc3")}, {ID: "empty"}, {ID: "zero", Payload: []byte("0")}, {ID: "spaces", Payload: []byte(" \t ")},
				{ID: "large", Payload: []byte(strings.Repeat(string(binary), 1<<12))},
			}
			return t.allArriveSoon(orders, samePayload)
		},
	},
	{
		Name: "headers", Level: Good, Section: "4",
		Rule: "Header names and values and message IDs are UTF-8; they arrive as they were ordered.",
		run: func(t *trial) error {
			return t.allArriveSoon([]order{
				{ID: "none"},
				{ID: "plain", Headers: map[string]string{"trace": "7f3a", "empty": "", "zero": "0", "0": "number", "null": "null", "constructor": "a", "__proto__": "b", "Case": "1", "case": "2"}},
				{ID: `ünïcode "quoted" \ 'id' → 🚚 %s {x}`, Headers: map[string]string{
					"größe": "größer als ∞ 🚚", "with space": "a b", `with "quotes"`: `"'\`, "h:colon": "h:", "line": "one\ntwo\r\n\ttab", "$HOME": "`id`",
				}},
			}, sameHeaders)
		},
	},
	{
		Name: "limits", Level: Good, Section: "4",
		Rule: "max_attempts and expires_ms are fields of the meta, decimal strings; they count.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			if err := t.hold(); err != nil {
				return err
			}
			now, err := t.now()
			if err != nil {
				return err
			}
			at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
			held := order{ID: "held", Due: at(far), MaxAttempts: 7, Expires: at(2 * far), Headers: map[string]string{"kind": "order"}}
			few := order{ID: "few", Due: at(inTime / 2), MaxAttempts: 3}
			stale := order{ID: "stale", Due: at(inTime / 2), Expires: at(inTime)}
			if err := t.taken(p, held, few, stale); err != nil {
				return err
			}
			s, err := t.mustBeScheduled(held.ID)
			if err != nil {
				return err
			}
			for name, want := range map[string]string{
				lua.FieldMaxAttempts: "7", lua.FieldExpires: strconv.FormatInt(held.Expires, 10), lua.HeaderPrefix + "kind": "order",
			} {
				if s.fields[name] != want {
					return failf("the meta of %q has %s %q; wanted %q", held.ID, name, s.fields[name], want)
				}
			}
			if err := t.letGo(stale.Expires); err != nil {
				return err
			}
			e, err := t.arrival(few.ID, 0)
			if err != nil {
				return err
			}
			if got := e.Fields[lua.FieldMaxAttempts]; got != "3" {
				return failf("message %q arrived with max_attempts %q; wanted 3", few.ID, got)
			}
			letter, err := t.letter(stale.ID, 0)
			if err != nil {
				return fmt.Errorf("it could become ready after expires_ms only: %w", err)
			}
			if got := letter.Fields[lua.FieldReason]; got != lua.ReasonExpired {
				return failf("message %q was dead-lettered with reason %q; wanted %q", stale.ID, got, lua.ReasonExpired)
			}
			return t.finished(p)
		},
	},
}

// someInTime tries it a few times, because one message may be late on any machine, and fails when all were late.
func (t *trial) someInTime(try func(round int) (late string, err error)) error {
	var late string
	for round := range 3 {
		var err error
		if late, err = try(round); late == "" || err != nil {
			return err
		}
	}
	return failf("%s", late)
}

// late waits for a message that is due at some time, and says so if it was later than one of the kit's own by a second.
func (t *trial) late(id string, due time.Time, what string) (string, error) {
	own := &trial{rig: t.rig, ctx: t.ctx, cfg: t.cfg, queue: t.queue + "-own", watch: t.watch}
	if err := own.register(); err != nil {
		return "", err
	}
	now, err := t.now()
	if err != nil {
		return "", err
	}
	at := due
	if now.After(due) {
		at = now
	}
	if err := own.schedule(message{id: id, in: at.Sub(now)}); err != nil {
		return "", err
	}
	e, err := t.arrival(id, 0)
	if err != nil {
		return "", err
	}
	control, err := own.arrival(id, 0)
	if err != nil {
		return "", err
	}
	late, usual := e.ready().Sub(due).Round(time.Millisecond), max(0, control.ready().Sub(at).Round(time.Millisecond))
	return missingIf(late >= inTime+usual, fmt.Sprintf("message %q became ready %s after %s; one of the kit's own, with a wake token, took %s", id, late, what, usual)), nil
}

// letGo lets the messages of a held queue go on after a point in time.
func (t *trial) letGo(after int64) error {
	if err := t.await(0, func() (string, error) {
		now, err := t.now()
		return missingIf(now.UnixMilli() <= after, "the server's clock does not go on"), err
	}); err != nil {
		return err
	}
	if _, err := t.number("HDEL", t.keys(0).Policy, admin.SettingHeld); err != nil {
		return err
	}
	return couldNot("XADD", t.do("XADD", t.keys(0).Wake, "MAXLEN", "1", "*", "held", "0").Error())
}

// allArriveSoon is allArrive, due in half a second.
func (t *trial) allArriveSoon(orders []order, check func(entry, order) error) error {
	for i := range orders {
		o, err := t.dueIn("", 500*time.Millisecond)
		if err != nil {
			return err
		}
		orders[i].Due = o.Due
	}
	return t.allArrive(orders, check)
}

// lastToken returns the ID of the last token of a stream, "" when there is none.
func (t *trial) lastToken(stream string) (string, error) {
	entries, err := t.entries(stream)
	if err != nil || len(entries) == 0 {
		return "", err
	}
	return entries[len(entries)-1].ID, nil
}
