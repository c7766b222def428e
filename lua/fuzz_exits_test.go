package lua

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

// wayOut is an exit from the pending list, with its parameters for the reference below.
type wayOut struct {
	name   string
	max    int // attempts by policy
	reason string
	take   func(b *rig, entry string) (Outcome, error)
}

var waysOut = []wayOut{
	{"ack", 3, "", nil},
	{"retry", 3, ReasonMaxAttempts, throughRetry(ActionRetry)},
	{"dead", 3, ReasonMaxAttempts, throughRetry(ActionDead)},
	{"release", 3, ReasonMaxAttempts, throughRetry(ActionRelease)},
	{"reclaim", 3, ReasonVisibilityTimeout, throughReclaim(3)},
	{"last reclaim", 1, ReasonVisibilityTimeout, throughReclaim(1)},
}

func throughRetry(action Action) func(b *rig, entry string) (Outcome, error) {
	return func(b *rig, entry string) (Outcome, error) {
		out, err := Retry(b.ctx, b.c, b.k, "g", policy,
			[]Failure{{Held: Held{Entry: entry}, Action: action, Delay: -1, Reason: ReasonMaxAttempts}})
		if err != nil {
			return 0, err
		}
		return out[0], nil
	}
}

func throughReclaim(attempts int) func(b *rig, entry string) (Outcome, error) {
	return func(b *rig, entry string) (Outcome, error) {
		r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: Attempts{Max: attempts, Delays: policy.Delays},
			Limit: 1, MaxBytes: 1 << 20})
		return map[Reclaimed]Outcome{
			{Retried: 1, Cursor: r.Cursor}: Retried, {Dead: 1, Cursor: r.Cursor}: Dead, {Skipped: 1, Cursor: r.Cursor}: Skipped,
			{Stuck: 1, Cursor: r.Cursor}: Stuck,
		}[r], err
	}
}

// predicted is the result that an exit must have, computed without any code of the product.
type predicted struct {
	outcome Outcome
	letter  map[string]string // Buried: the dead letter, without dead_ms; without error when it is malformed
	entry   map[string]string // Retried, Released: the meta of the retry
}

func predict(entryID string, list []FieldValue, w wayOut) predicted {
	fields, odd := map[string]string{}, false
	for _, f := range list { // of two fields with one name, the last one counts
		fields[f.Field] = f.Value
	}
	if to := fields[FieldFor]; to != "" && to != "g" {
		return predicted{outcome: Skipped}
	}
	for _, f := range list {
		_, taken := fields["b64:"+f.Field]
		odd = odd || !utf8.ValidString(f.Field) || f.Field != FieldPayload && len(f.Value) > 64<<10 || taken &&
			!utf8.ValidString(fields[f.Field])
	}
	id, hasID := fields[FieldID]
	if !hasID {
		id = entryID
	}
	attempt, hasAttempt := fields[FieldAttempt]
	if !hasAttempt {
		attempt = "1"
	}
	most, hasMost := fields[FieldMaxAttempts]
	if !hasMost {
		most = strconv.Itoa(w.max)
	}
	odd = odd || id == "" || strings.Contains(id, Separator) || !utf8.ValidString(id) || !countPattern.MatchString(attempt) ||
		!countPattern.MatchString(most)
	letter := inLetter(fields)
	delete(letter, FieldFor)
	letter[FieldGroup], letter[FieldEntry] = "g", entryID
	const idle = "visibility timeout: not acknowledged within 0 ms"
	if w.reason == ReasonVisibilityTimeout && !odd {
		fields[FieldError], letter[FieldError] = idle, idle
	}
	if odd {
		letter[FieldReason] = ReasonMalformed
		return predicted{outcome: Dead, letter: letter}
	}
	failed, _ := strconv.ParseInt(attempt, 10, 64)
	limit, _ := strconv.ParseInt(most, 10, 64)
	if w.name == "dead" || w.name != "release" && failed >= limit {
		letter[FieldReason], letter[FieldID], letter[FieldAttempt] = w.reason, id, attempt
		return predicted{outcome: Dead, letter: letter}
	}
	p := predicted{outcome: Retried, entry: map[string]string{}}
	delete(fields, FieldPayload)
	delete(fields, FieldDue)
	for name, value := range fields {
		if utf8.ValidString(value) {
			p.entry[name] = value
		} else {
			p.entry["b64:"+name] = base64.StdEncoding.EncodeToString([]byte(value))
		}
	}
	if w.name == "release" {
		p.outcome = Released
	} else {
		failed++
	}
	p.entry[FieldID], p.entry[FieldFor], p.entry[FieldAttempt] = id, "g", strconv.FormatInt(failed, 10)
	return p
}

var exitSeeds = [][]string{
	{"id", "m", "payload", "p"}, {"id", "m", "payload", "\xff\x00", "h:bin", "\xff\x00\x80a"}, {"payload", "p"}, {"", ""},
	{"color", "red", "", "x"},
	{"id", "", "payload", "p"}, {"id", "\xff", "payload", "p"}, {"id", "a" + Separator + "b"}, {"id", "m", "id", "n", "id", ""},
	{"id", "m", "attempt", "abc"}, {"id", "m", "attempt", "0"}, {"id", "m", "attempt", "3"}, {"id", "m", "attempt", "+2"},
	{"attempt", "999999999999999", "max_attempts", "999999999999999"},
	{"id", "m", "attempt", "2", "max_attempts", "2"}, {"id", "m", "max_attempts", ""}, {"id", "m", "max_attempts", "1e3"},
	{"id", "m", "for", "g"}, {"id", "m", "for", "h"}, {"id", "m", "for", ""}, {"id", "\xff", "for", "h"},
	{"id", "m", "for", "\xff"},
	{"id", "m", "expires_ms", "1"}, {"id", "m", "expires_ms", "x"}, {"id", "m", "expires_ms", "\xff"},
	{"id", "m", "error", "\xff"},
	{"id", "m", "error", "old", "reason", "mine"},
	{"id", "m", "\xff", "x"}, {"h:a", "\xff", "b64:h:a", "mine", "payload", "p"}, {"group", "x", "entry", "y", "dead_ms", "z"},
	{"b64:payload", "eA==", "payload", "\xff"},
	{"due_ms", "soon", "b64:due_ms", "x", "b64:id", "y"}, {"meta", "x", "raw", "y", "payload", "\xfe"},
	{"h:ctl", "\x00\n\"\\/\u2028\x7f", "h:", "", "id", "世界"},
	{"payload", strings.Repeat("x", 100<<10), "h:a", strings.Repeat("x", 64<<10)}, {"h:b", strings.Repeat("\xff", 64<<10+1)},
	{"h:b", strings.Repeat("\xff", 64<<10)},
}

// FuzzEntryThroughExits: an entry with any fields leaves the pending list by each exit as predicted. It is scheduled
// again with its whole content, is a dead letter with its whole content, or was for another group. The entry after it
// is not affected, and a redrive brings the dead letter back.
func FuzzEntryThroughExits(f *testing.F) {
	for i, s := range exitSeeds {
		for exit := range waysOut {
			if i%len(waysOut) == exit || i%2 == exit%2 {
				s := append(append([]string{}, s...), "", "", "", "")[:6]
				f.Add(uint8(exit), s[0], s[1], s[2], s[3], s[4], s[5])
			}
		}
	}
	open := fuzzRig(f, redistest.Shared(f))
	f.Fuzz(func(t *testing.T, exit uint8, n1, v1, n2, v2, n3, v3 string) {
		list := fields(n1, v1)
		for _, more := range fields(n2, v2, n3, v3) {
			if more.Field != "" || more.Value != "" {
				list = append(list, more)
			}
		}
		checkExit(open(t), waysOut[int(exit)%len(waysOut)], list)
	})
}

func checkExit(b *rig, w wayOut, list []FieldValue) {
	b.Helper()
	b.groups("g")
	add := []string{"XADD", b.k.Stream, "*"}
	for _, f := range list {
		add = append(add, f.Field, f.Value)
	}
	b.all([][]string{add, {"XADD", b.k.Stream, "*", "id", "behind", "payload", "q"}})
	es := b.read("g", "c", 2)
	first, behind := es[0].EntryID, es[1].EntryID
	if w.take == nil {
		won, err := Ack(b.ctx, b.c, b.k, "g", []Held{{Entry: first, ID: es[0].ID}, {Entry: behind, ID: "behind"}})
		if err != nil {
			b.Fatal(err)
		}
		wantList(b, fmt.Sprintf("acknowledged with %.99q", list), won, true, true)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		return
	}
	p := predict(first, list, w)
	got, err := w.take(b, first)
	if err != nil {
		b.Fatalf("%.99q through %s: %v", list, w.name, err)
	}
	redistest.Want(b, fmt.Sprintf("%.99q through %s", list, w.name), got, p.outcome)
	if out, err := throughRetry(ActionDead)(b, behind); err != nil || out != Dead {
		b.Fatalf("the entry behind: %v, %v", out, err)
	}
	letters := b.raw(b.k.Dead)
	b.do("XDEL", b.k.Dead, letters[len(letters)-1].ID)
	payload := ""
	for _, f := range list {
		if f.Field == FieldPayload {
			payload = f.Value
		}
	}
	switch {
	case p.letter != nil:
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
		b.wantLetter(letters[0].FieldValues, p.letter)
	case p.entry != nil:
		redistest.Want(b, "pending", b.pending("g"), 0)
		b.makeDue()
		b.drain(1)
		b.wantDelivery(p.entry, payload)
	default:
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
	}
	b.redriveAll()
}

// wantLetter compares a dead letter, except its time and the error text of a malformed one.
func (b *rig) wantLetter(list []FieldValue, wanted map[string]string) {
	b.Helper()
	got := map[string]string{}
	b.fieldsOf(list, got)
	wanted[FieldDead] = got[FieldDead]
	if wanted[FieldReason] == ReasonMalformed && got[FieldError] != "" {
		wanted[FieldError] = got[FieldError]
	}
	b.wantFields(got, wanted)
}

// wantDelivery expects the result of a drain of a retry with this meta.
func (b *rig) wantDelivery(meta map[string]string, payload string) {
	b.Helper()
	switch sound := soundMeta("", meta); {
	case !sound:
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1")
		got := map[string]string{}
		b.fieldsOf(b.raw(b.k.Dead)[0].FieldValues, got)
		kept, ok := readMeta(got[FieldMeta])
		if !ok || !maps.Equal(kept, meta) || got[FieldPayload] != payload || got[FieldReason] != ReasonMalformed ||
			got[FieldGroup] != "g" {
			b.Fatalf("dead letter %q for a retry with %.99q", got, meta)
		}
	case expired(meta):
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1")
		redistest.Want(b, "reason", rawField(b.raw(b.k.Dead)[0].FieldValues, FieldReason), ReasonExpired)
	default:
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0")
		got := map[string]string{}
		b.fieldsOf(b.raw(b.k.Stream)[0].FieldValues, got)
		meta[FieldPayload], meta[FieldDue] = payload, got[FieldDue]
		b.wantFields(got, meta)
	}
}

// redriveAll redrives the dead letter, if there is one: it is scheduled for its group with its payload, and delivered
// with all fields that can be carried. A letter without a payload asks for one.
func (b *rig) redriveAll() {
	b.Helper()
	letters := b.raw(b.k.Dead)
	if len(letters) == 0 {
		return
	}
	old := map[string]string{}
	b.fieldsOf(letters[0].FieldValues, old)
	payload, has := old[FieldPayload]
	again := Redrive{Letter: letters[0].ID, When: At(time.UnixMilli(1))}
	if !has {
		out, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{again})
		if err != nil || out[0] != RedriveNoPayload {
			b.Fatalf("redrive without a payload: %v, %v", out, err)
		}
		payload = "given"
		given := []byte(payload)
		again.Payload = &given
	}
	if _, raw := old[FieldRaw]; old[FieldReason] == ReasonMalformed && (old[FieldMeta] != "" || raw) {
		out, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{again})
		if err != nil || out[0] != RedriveUnreadable {
			b.Fatalf("redrive of %.99q without fields: %v, %v", old, out, err)
		}
		again.Fields = "{}"
	}
	out, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{again})
	if err != nil || out[0] != RedriveScheduled {
		b.Fatalf("redrive of %.99q: %v, %v", old, out, err)
	}
	b.drain(1)
	b.wantState("due=0 payload=0 meta=0 stream=1 dead=0")
	got := map[string]string{}
	b.fieldsOf(b.raw(b.k.Stream)[0].FieldValues, got)
	redistest.Want(b, "payload", got[FieldPayload], payload)
	redistest.Want(b, "attempt", got[FieldAttempt], "1")
	redistest.Want(b, "group", got[FieldFor], old[FieldGroup])
	for name, value := range old {
		if ours[name] || !utf8.ValidString(name) || name == FieldMaxAttempts && !countPattern.MatchString(value) {
			continue
		}
		if lettersOwn.MatchString(name) {
			name = strings.TrimPrefix(name, "message:")
		}
		if !utf8.ValidString(value) {
			if _, taken := old["b64:"+name]; taken {
				continue // its name cannot be encoded; the operator saw it in the letter
			}
			name, value = "b64:"+name, base64.StdEncoding.EncodeToString([]byte(value))
		}
		redistest.Want(b, fmt.Sprintf("field %q", name), got[name], value)
	}
}

// ours are the fields that a redrive writes anew or drops.
var ours = map[string]bool{
	FieldID: true, FieldPayload: true, FieldAttempt: true, FieldDue: true, FieldExpires: true, FieldFor: true, FieldError: true,
	FieldGroup: true, FieldReason: true, FieldDead: true, FieldEntry: true, FieldMeta: true, FieldRaw: true,
}

func TestEntrySeedsThroughExitsEverywhere(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, server *redistest.Server) {
		b := newRig(t, server)
		for i, s := range exitSeeds {
			for _, w := range waysOut {
				checkExit(b.queue(fmt.Sprint("q", i, w.name)), w, fields(s...))
			}
		}
	})
}
