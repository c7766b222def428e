package lua

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

// readMeta reads a JSON object of strings without any code of the product: with Go's decoder, token by token. Control
// characters inside strings are accepted, as by the scripts' decoder; they are escaped first, which changes nothing
// else. Of two fields with one name, the last one counts.
func readMeta(meta string) (fields map[string]string, ok bool) {
	if len(meta) > 512<<10 || !utf8.ValidString(meta) || strings.Contains(meta, "\x00") || halfCharacter(meta) {
		return nil, false
	}
	meta = escapeControls(meta)
	dec := json.NewDecoder(strings.NewReader(meta))
	dec.UseNumber() // no number loses digits
	if open, _ := dec.Token(); open != json.Delim('{') || !json.Valid([]byte(meta)) {
		return nil, false
	}
	fields, odd := map[string]string{}, map[string]bool{}
	for dec.More() {
		name, _ := dec.Token()
		var value any
		if dec.Decode(&value) != nil {
			return nil, false
		}
		text, isText := value.(string)
		fields[name.(string)], odd[name.(string)] = text, !isText
	}
	for name, isOdd := range odd {
		if isOdd || name == FieldPayload || name == FieldDue {
			return nil, false
		}
	}
	return fields, true
}

// soundMeta reports whether a member with these fields can be delivered, and completes the fields.
func soundMeta(member string, fields map[string]string) bool {
	if _, ok := fields[FieldID]; !ok {
		fields[FieldID] = member
	}
	if _, ok := fields[FieldAttempt]; !ok {
		fields[FieldAttempt] = "1"
	}
	for _, count := range []string{FieldAttempt, FieldMaxAttempts, FieldExpires} {
		if value, ok := fields[count]; ok && !countPattern.MatchString(value) {
			return false
		}
	}
	id := fields[FieldID]
	return id != "" && utf8.ValidString(id) && !strings.Contains(id, Separator) && len(fields) <= 1000-2
}

// halfCharacter reports an escape of a surrogate that is not one of a pair.
func halfCharacter(text string) bool {
	for i := strings.IndexByte(text, '\\'); i >= 0 && i+1 < len(text); {
		step := 2
		if unit := escapedUnit(text[i:]); unit >= 0xdc00 && unit < 0xe000 {
			return true
		} else if unit >= 0xd800 && unit < 0xdc00 {
			if low := escapedUnit(text[i+6:]); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			step = 12
		}
		next := strings.IndexByte(text[i+step:], '\\')
		if next < 0 {
			return false
		}
		i += step + next
	}
	return false
}

// escapedUnit returns the number of a \u escape at the beginning of text, or -1.
func escapedUnit(text string) int64 {
	if len(text) < 6 || text[:2] != `\u` {
		return -1
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)
	if err != nil {
		return -1
	}
	return int64(n)
}

func escapeControls(text string) string {
	var out strings.Builder
	inside, escaped := false, false
	for _, c := range []byte(text) {
		switch {
		case escaped: // a control character behind a backslash is no escape of anything
			escaped = false
		case inside && c < ' ':
			fmt.Fprintf(&out, `\u%04x`, c)
			continue
		case inside && c == '\\':
			escaped = true
		case c == '"':
			inside = !inside
		}
		out.WriteByte(c)
	}
	return out.String()
}

var metaSeeds = []struct {
	member, payload, meta string
	hasMeta               bool
}{
	{"m", "p", "", false}, {"", "p", "", false}, {"\xff", "\xfe\x00", "", false}, {"m" + Separator + "g" + Separator + "5-1", "p",
		"", false},
	{"m" + Separator + "g" + Separator + "5-1", "p", `{"id":"m","for":"g","attempt":"4","error":"boom"}`, true},
	{"m", "", "{}", true}, {"m", "", "", true}, {"m", "", "null", true}, {"m", "", "[]", true}, {"m", "", `["a"]`, true},
	{"m", "", `"x"`, true}, {"m", "", "5", true},
	{"m", "p", `{"h:a":"b","h:ü":"世\u4e16\ud83d\ude80","color":"\"\\\/\b\f\n\r\t"}`, true},
	{"m", "p", `{"h:a":null}`, true}, {"m", "p", `{"h:a":1}`, true}, {"m", "p", `{"h:a":true}`, true},
	{"m", "p", `{"h:a":{"b":"c"}}`, true}, {"m", "p", `{"h:a":[]}`, true},
	{"m", "p", `{"h:a":"b"`, true}, {"m", "p", `{"h:a":"b"}}`, true}, {"m", "p", `{"h:a":"b"} x`, true},
	{"m", "p", `{"h:a":"b",}`, true},
	{"m", "p", "\ufeff{}", true},
	{"m", "p", "{\"h:a\":\"\xff\"}", true}, {"m", "p", `{"h:a":"\ud800"}`, true}, {"m", "p", `{"h:a":"\udc00\ud800"}`, true},
	{"m", "p", `{"h:a":"\\ud800"}`, true},
	{"m", "p", `{"h:a":"\u0000"}`, true}, {"m", "p", "{\"h:a\":\"\x00\"}", true}, {"m", "p", "{\"h:a\":\"b\"}\x00{\"h:c\":\"d\"}",
		true},
	{"m", "p", "\x00{}", true},
	{"m", "p", `{"id":""}`, true}, {"m", "p", `{"id":"\u001f"}`, true}, {"m", "p", `{"attempt":"0"}`, true},
	{"m", "p", `{"attempt":"1e3"}`, true},
	{"m", "p", `{"max_attempts":"1000000000000000"}`, true}, {"m", "p", `{"expires_ms":"1"}`, true},
	{"m", "p", `{"expires_ms":"999999999999999"}`, true},
	{"m", "p", `{"expires_ms":"1","for":"g","group":"x","reason":"y","dead_ms":"z","entry":"e","error":"old"}`, true},
	{"m", "p", `{"payload":"x"}`, true}, {"m", "p", `{"due_ms":"5"}`, true}, {"m", "p", `{"":""}`, true},
	{"m", "p", `{"h:a":"1","h:a":"2"}`, true},
	{"m", "p", `{"h:a":1,"h:a":"2"}`, true}, {"m", "p", `{"h:a":"2","h:a":null}`, true}, {"m", "p", " \t\r\n{ \"h:a\" : \"b\" } ",
		true},
	{"m", "p", "\v{}", true},
	{"m", "p", `{"h:a":NaN}`, true}, {"m", "p", `{"h:a":0x10}`, true}, {"m", "p", `{'h:a':'b'}`, true},
	{"m", "p", `{"h:a":"\x41"}`, true},
	{"m", "p", `{"meta":"x","raw":"y"}`, true},
	{"m", "p", "{\"h:a\":\"\\\x16\"}", true}, {"m", "p", "{\"h:a\":\"\x16\"}", true},
	{"m", "p", `{"h:a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, true},
}

// FuzzMetaThroughDrain: a due member with any bytes as name, payload and meta is delivered once with exactly those
// fields, or dead-lettered once with exactly those bytes; and the member after it is delivered.
func FuzzMetaThroughDrain(f *testing.F) {
	for _, s := range metaSeeds {
		f.Add(s.member, s.payload, s.meta, s.hasMeta)
	}
	open := fuzzRig(f, redistest.Shared(f))
	f.Fuzz(func(t *testing.T, member, payload, meta string, hasMeta bool) {
		checkMeta(open(t), member, payload, meta, hasMeta)
	})
}

func checkMeta(b *rig, member, payload, meta string, hasMeta bool) {
	b.Helper()
	b.groups("g")
	if payload != "" {
		b.do("HSET", b.k.Payload, member, payload)
	}
	if hasMeta {
		b.do("HSET", b.k.Meta, member, meta)
	}
	b.do("ZADD", b.k.Due, "5", member, "6", "behind") // "behind" itself may be the member: then it is one
	d := b.drain(10)
	if d.Wait == 0 {
		d2 := b.drain(10) // a drain stops after its bytes
		d = Drained{Moved: d.Moved + d2.Moved, Dead: d.Dead + d2.Dead, Wait: d2.Wait, Late: d.Late,
			Refusal: d.Refusal + d2.Refusal, DeadRefusal: d.DeadRefusal + d2.DeadRefusal}
	}
	others := 1
	if member == "behind" {
		others = 0
	}
	if d.Moved+d.Dead != 1+others || d.Wait >= 0 || d.Refusal != "" {
		b.Fatalf("%+v", d)
	}
	b.wantState(fmt.Sprintf("due=0 payload=0 meta=0 stream=%d dead=%d", d.Moved, d.Dead))
	fields, readable := map[string]string{}, true
	if !hasMeta {
		meta = ""
	} else {
		fields, readable = readMeta(meta)
		if decoded, ok := DecodeMeta(member, meta); ok && meta != "" && (!readable || decoded.Attempt < 1) {
			b.Fatalf("meta %q is sound for inspection, %+v, and cannot be read", meta, decoded)
		}
	}
	sound := readable && soundMeta(member, fields)
	got := map[string]string{}
	switch due := map[bool]string{true: "5", false: "6"}[member != "behind"]; {
	case !sound:
		redistest.Want(b, fmt.Sprintf("%.99q with meta %.99q: dead letters", member, meta), d.Dead, 1)
		b.fieldsOf(b.raw(b.k.Dead)[0].FieldValues, got)
		b.wantFields(got, map[string]string{
			FieldPayload: payload, FieldMeta: meta, FieldReason: ReasonMalformed, FieldAttempt: "1", FieldDue: due,
			FieldError: got[FieldError], FieldDead: got[FieldDead],
			FieldID: letterID(member), FieldGroup: letterGroup(member),
		})
		if got[FieldError] == "" {
			b.Fatal("a dead letter that does not say why")
		}
	case expired(fields) || fields[FieldFor] != "" && fields[FieldFor] != "g":
		redistest.Want(b, "dead letters", d.Dead, 1)
		b.fieldsOf(b.raw(b.k.Dead)[0].FieldValues, got)
		letter := inLetter(fields)
		delete(letter, FieldFor)
		letter[FieldPayload], letter[FieldDue], letter[FieldReason], letter[FieldDead] = payload, due, ReasonExpired,
			got[FieldDead]
		if !expired(fields) {
			letter[FieldReason] = ReasonGroupGone
		}
		if group := fields[FieldFor]; group != "" {
			letter[FieldGroup] = group
		}
		delete(got, map[bool]string{true: FieldGroup}[got[FieldGroup] == ""])
		b.wantFields(got, letter)
	default:
		redistest.Want(b, fmt.Sprintf("%.99q with meta %.99q: moved", member, meta), d.Moved, 1+others)
		b.fieldsOf(b.raw(b.k.Stream)[0].FieldValues, got)
		entry := maps.Clone(fields)
		entry[FieldPayload], entry[FieldDue] = payload, due
		b.wantFields(got, entry)
	}
}

func expired(fields map[string]string) bool {
	ms, err := strconv.ParseInt(fields[FieldExpires], 10, 64)
	return err == nil && ms < math.MaxInt64 && ms <= 1_000_000_000_000 // the seeds and the fuzzer stay away from the current time
}

func (b *rig) fieldsOf(list []FieldValue, into map[string]string) {
	b.Helper()
	for _, f := range list {
		if _, twice := into[f.Field]; twice {
			b.Fatalf("field %q twice in %q", f.Field, list)
		}
		into[f.Field] = f.Value
	}
}

// wantFields compares maps of fields; an empty group may be absent.
func (b *rig) wantFields(got, wanted map[string]string) {
	b.Helper()
	if wanted[FieldGroup] == "" {
		if _, ok := got[FieldGroup]; !ok {
			delete(wanted, FieldGroup)
		}
	}
	if !maps.Equal(got, wanted) {
		b.Fatalf("fields\n%.99q, want\n%.99q", got, wanted)
	}
}

// letterID and letterGroup return the ID and the group in the name of a retry.
func letterID(member string) string {
	if parts := strings.Split(member, Separator); len(parts) >= 3 {
		return parts[0]
	}
	return member
}

func letterGroup(member string) string {
	if parts := strings.Split(member, Separator); len(parts) >= 3 {
		return strings.Join(parts[1:len(parts)-1], Separator)
	}
	return ""
}

func TestMetaSeedsThroughDrainEverywhere(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newRig(t, s)
		for i, c := range metaSeeds {
			checkMeta(b.queue(fmt.Sprint("q", i)), c.member, c.payload, c.meta, c.hasMeta)
		}
	})
}
