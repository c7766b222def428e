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
	far    = time.Hour   // due later than any case lasts
	inTime = time.Second // how late a message with a wake token may become ready
)

var producerCases = slices.Concat(arrivalCases, scheduleCases, careCases, hardshipCases, networkCases, scheduleCompletely)

// arrivalCases: scheduled messages arrive.
var arrivalCases = []Case{
	{
		Name: "arrives", Level: Good, Section: "4 and 7",
		Rule: "What was answered with ok arrives as it was ordered, at its due time and not before.",
		producer: func(t *producerTrial) {
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
		producer: func(t *producerTrial) {
			p := t.ready()
			someInTime(func(round int) string {
				o := t.dueIn(fmt.Sprintf("late-%d", round), -far)
				t.taken(p, o)
				answered := t.now()
				return t.late(o.ID, answered, "it was answered with ok")
			})
			t.finished(p)
		},
	},
	{
		Name: "payload", Level: Good, Section: "4",
		Rule: "A payload is bytes, any of them, none, or 1 MiB; it arrives as it was ordered.",
		producer: func(t *producerTrial) {
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
		producer: func(t *producerTrial) {
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
		producer: func(t *producerTrial) {
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

// someInTime tries up to three messages, because one may be late on a busy machine, and fails if all were late. try
// returns "" for a message that was in time.
func someInTime(try func(round int) (late string)) {
	var late string
	for round := range 3 {
		if late = try(round); late == "" {
			return
		}
	}
	failf("%s", late)
}

// late waits for a message that is due at some time. It returns "" unless the message became ready at least inTime
// later than a message with the same due time that the kit scheduled itself, in a queue beside this one. what names the
// due time in the failure text.
func (t *producerTrial) late(id string, due time.Time, what string) string {
	own := &producerTrial{trial: &trial{
		store: store{rig: t.rig, ctx: t.ctx, queue: t.queue + "-own"}, cfg: t.cfg, watch: t.watch,
	}}
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
func (t *producerTrial) letGo(after int64) {
	t.after(time.UnixMilli(after))
	t.number("HDEL", t.keys(0).Policy, admin.SettingHeld)
	t.mustDo("XADD", t.keys(0).Wake, "MAXLEN", "1", "*", "held", "0")
}

// allArriveSoon is like allArrive, with all orders due in half a second.
func (t *producerTrial) allArriveSoon(orders []order, check func(entry, order)) {
	for i := range orders {
		orders[i].Due = t.dueIn("", 500*time.Millisecond).Due
	}
	t.allArrive(orders, check)
}
