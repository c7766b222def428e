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
	inTime   = time.Second // most lateness of a message with a wake token
	beforeIt = 1500 * time.Millisecond
)

var producerCases = slices.Concat(arrivalCases, scheduleCases, careCases, hardshipCases, networkCases, scheduleCompletely)

// arrivalCases: scheduled messages arrive.
var arrivalCases = []Case{
	{
		Name: "answers", Level: Good, Section: "15",
		Rule: "A producer answers each line before or while it reads the next one, and exits with 0 when its input ends.",
		run: func(t *trial) {
			p := t.ready()
			for _, id := range []string{"one", "two", "three"} {
				o := t.dueIn(id, far)
				during("with its input still open", func() {
					t.taken(p, o)
				})
			}
			t.finished(p)
		},
	},
	{
		Name: "arrives", Level: Good, Section: "4 and 7",
		Rule: "What was answered with ok arrives as it was ordered, at its due time and not before.",
		run: func(t *trial) {
			var orders []order
			for i := range 8 {
				o := t.dueIn(fmt.Sprintf("m-%d", i), time.Duration(500+100*i)*time.Millisecond)
				o.Payload = []byte("payload of " + o.ID)
				if i%2 == 0 {
					o.Headers = map[string]string{"trace": "7f3a", "n": strconv.Itoa(i)}
				}
				orders = append(orders, o)
			}
			t.allArrive(orders, samePayload, sameHeaders, inDueTime)
		},
	},
	{
		Name: "due-in-the-past", Level: Good, Section: "4",
		Rule: "A message whose due time is in the past is delivered at once.",
		run: func(t *trial) {
			p := t.ready()
			t.someInTime(func(round int) string {
				o := t.dueIn(fmt.Sprintf("late-%d", round), -far)
				t.taken(p, o)
				answered := t.now()
				return t.late(o.ID, answered, "it was answered with ok")
			})
			t.finished(p)
		},
	},
	{
		Name: "wake-token", Level: Good, Section: "7, step 4",
		Rule: "A producer adds a wake token, with MAXLEN 1, after the due time: without it a bridge that sleeps is up to 5 s late.",
		run: func(t *trial) {
			p := t.ready()
			wake := t.keys(0).Wake
			t.someInTime(func(round int) string {
				before := t.lastToken(wake)
				o := t.dueIn(fmt.Sprintf("m-%d", round), beforeIt)
				t.taken(p, o)
				_, waits := t.scheduled(o.ID)
				after := t.lastToken(wake)
				if waits && after == before {
					failf("message %q was answered with ok, is scheduled as the earliest of its queue, and no token was added to %s", o.ID, wake)
				}
				return t.late(o.ID, time.UnixMilli(o.Due), "its due time")
			})
			if n := t.number("XLEN", wake); n > 1 {
				failf("%s holds %d tokens; wanted 1, by MAXLEN 1 (exact, without ~)", wake, n)
			}
			t.finished(p)
		},
	},
	{
		Name: "payload", Level: Good, Section: "4",
		Rule: "A payload is bytes, any of them, none, or 1 MiB; it arrives as it was ordered.",
		run: func(t *trial) {
			binary := make([]byte, 256)
			for i := range binary {
				binary[i] = byte(i)
			}
			orders := []order{
				{ID: "binary", Payload: binary}, {ID: "lines", Payload: []byte("\r\n\x00\n\n\r end \x00\r\n")},
				{ID: "broken-utf8", Payload: []byte("é\xff\xfe\xc3")}, {ID: "empty"}, {ID: "zero", Payload: []byte("0")}, {ID: "spaces", Payload: []byte(" \t ")},
				{ID: "large", Payload: []byte(strings.Repeat(string(binary), 1<<12))},
			}
			t.allArriveSoon(orders, samePayload)
		},
	},
	{
		Name: "headers", Level: Good, Section: "4",
		Rule: "Header names and values and message IDs are UTF-8; they arrive as they were ordered.",
		run: func(t *trial) {
			t.allArriveSoon([]order{
				{ID: "none"},
				{ID: "plain", Headers: map[string]string{"trace": "7f3a", "empty": "", "zero": "0", "0": "number", "null": "null",
					"constructor": "a", "__proto__": "b", "Case": "1", "case": "2"}},
				{ID: `ünïcode "quoted" \ 'id' → 🚚 %s {x}`, Headers: map[string]string{
					"größe": "größer als ∞ 🚚", "with space": "a b", `with "quotes"`: `"'\`, "h:colon": "h:", "line": "one\ntwo\r\n\ttab", "$HOME": "`id`",
				}},
			}, sameHeaders)
		},
	},
	{
		Name: "limits", Level: Good, Section: "4",
		Rule: "max_attempts and expires_ms are fields of the meta, decimal strings; they count.",
		run: func(t *trial) {
			p := t.ready()
			t.hold()
			now := t.now()
			at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
			held := order{ID: "held", Due: at(far), MaxAttempts: 7, Expires: at(2 * far),
				Headers: map[string]string{"kind": "order"}}
			few := order{ID: "few", Due: at(inTime / 2), MaxAttempts: 3}
			stale := order{ID: "stale", Due: at(inTime / 2), Expires: at(inTime)}
			t.taken(p, held, few, stale)
			s := t.mustBeScheduled(held.ID)
			for name, want := range map[string]string{
				lua.FieldMaxAttempts: "7", lua.FieldExpires: strconv.FormatInt(held.Expires, 10), lua.HeaderPrefix + "kind": "order",
			} {
				if s.fields[name] != want {
					failf("the meta of %q has %s %q; wanted %q", held.ID, name, s.fields[name], want)
				}
			}
			t.letGo(stale.Expires)
			e := t.arrival(few.ID, 0)
			if got := e.Fields[lua.FieldMaxAttempts]; got != "3" {
				failf("message %q arrived with max_attempts %q; wanted 3", few.ID, got)
			}
			var letter entry
			during("it could become ready after expires_ms only", func() { letter = t.letter(stale.ID, 0) })
			if got := letter.Fields[lua.FieldReason]; got != lua.ReasonExpired {
				failf("message %q was dead-lettered with reason %q; wanted %q", stale.ID, got, lua.ReasonExpired)
			}
			t.finished(p)
		},
	},
}

// someInTime tries three messages, because one may be late on a busy machine, and fails if all were late.
func (t *trial) someInTime(try func(round int) (late string)) {
	var late string
	for round := range 3 {
		if late = try(round); late == "" {
			return
		}
	}
	failf("%s", late)
}

// late waits for a message that is due at some time. It returns "" unless the message was at least a second later
// than a message that the kit scheduled itself.
func (t *trial) late(id string, due time.Time, what string) string {
	own := &trial{rig: t.rig, ctx: t.ctx, cfg: t.cfg, queue: t.queue + "-own", watch: t.watch}
	own.register()
	now := t.now()
	at := due
	if now.After(due) {
		at = now
	}
	own.schedule(message{id: id, in: at.Sub(now)})
	e := t.arrival(id, 0)
	control := own.arrival(id, 0)
	late, usual := e.ready().Sub(due).Round(time.Millisecond), max(0, control.ready().Sub(at).Round(time.Millisecond))
	return missingIf(late >= inTime+usual, fmt.Sprintf("message %q became ready %s after %s; one of the kit's own, with a wake "+
		"token, took %s", id, late, what, usual))
}

// letGo releases a held queue once the clock of the server has passed after, in Unix ms.
func (t *trial) letGo(after int64) {
	t.after(time.UnixMilli(after))
	t.number("HDEL", t.keys(0).Policy, admin.SettingHeld)
	t.mustDo("XADD", t.keys(0).Wake, "MAXLEN", "1", "*", "held", "0")
}

// allArriveSoon is like allArrive, with all orders due in half a second.
func (t *trial) allArriveSoon(orders []order, check func(entry, order)) {
	for i := range orders {
		orders[i].Due = t.dueIn("", 500*time.Millisecond).Due
	}
	t.allArrive(orders, check)
}

// lastToken returns the ID of the last entry of a stream, or "".
func (t *trial) lastToken(stream string) string {
	entries := t.entries(stream)
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].ID
}
