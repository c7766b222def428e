package lua

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

// A message may have fields with the names that only dead letters have. A dead letter may have a field named for. Each
// such field is in Extra.
func TestParseEntryAndLetter(t *testing.T) {
	all := fields("id", "m", "payload", "p", "attempt", "3", "due_ms", "1795216995123", "max_attempts", "7",
		"expires_ms", "1795216995124",
		"for", "g", "error", "boom", "group", "h", "reason", "expired", "dead_ms", "5", "entry", "4-1", "h:a", "b", "h:", "c",
		"color", "red")
	entry := Entry{EntryID: "5-1", ID: "m", Payload: []byte("p"), Headers: map[string]string{"a": "b", "": "c"},
		Attempt: 3, Due: time.UnixMilli(1795216995123), MaxAttempts: 7, Expires: time.UnixMilli(1795216995124),
		For: "g", Error: "boom",
		Extra: map[string]string{"color": "red", "group": "h", "reason": "expired", "dead_ms": "5", "entry": "4-1"}}
	redistest.Want(t, "entry", fmt.Sprintf("%+v", ParseEntry("5-1", all)), fmt.Sprintf("%+v", entry))

	letter := Letter{Entry: entry, Group: "h", Reason: "expired", Dead: time.UnixMilli(5), FailedEntry: "4-1"}
	letter.For, letter.Extra = "", map[string]string{"color": "red", "for": "g"}
	redistest.Want(t, "letter", fmt.Sprintf("%+v", ParseLetter("5-1", all)), fmt.Sprintf("%+v", letter))
}

// Other programs may write any text into any field: a value that does not parse counts as absent.
func TestParseEntryTakesAnything(t *testing.T) {
	for _, c := range []struct {
		field, value string
		check        func(e Entry) bool
	}{
		{"attempt", "abc", func(e Entry) bool { return e.Attempt == 1 }},
		{"attempt", "-5", func(e Entry) bool { return e.Attempt == 1 }},
		{"attempt", "0", func(e Entry) bool { return e.Attempt == 1 }},
		{"attempt", "99999999999999999999", func(e Entry) bool { return e.Attempt == 1 }},
		{"max_attempts", "99999999999999999999", func(e Entry) bool { return e.MaxAttempts == 0 }},
		{"max_attempts", "-1", func(e Entry) bool { return e.MaxAttempts == 0 }},
		{"due_ms", "soon", func(e Entry) bool { return e.Due.IsZero() }},
		{"due_ms", "1.5", func(e Entry) bool { return e.Due.IsZero() }},
		{"expires_ms", "99999999999999999999", func(e Entry) bool { return e.Expires.IsZero() }},
		{"payload", "", func(e Entry) bool { return len(e.Payload) == 0 }},
		{"", "", func(e Entry) bool { return e.ID == "9-9" && e.Extra[""] == "" && len(e.Extra) == 1 }},
	} {
		if e := ParseEntry("9-9", fields(c.field, c.value)); !c.check(e) {
			t.Errorf("%s=%q: %+v", c.field, c.value, e)
		}
	}
	if e := ParseEntry("9-9", nil); e.ID != "9-9" || e.Attempt != 1 || e.Headers != nil || e.Extra != nil {
		t.Errorf("no fields: %+v", e)
	}
	for id, ms := range map[string]int64{"1795216995123-4": 1795216995123, "5": 5} {
		redistest.Want(t, "time of "+id, EntryTime(id).UnixMilli(), ms)
	}
	for _, id := range []string{"", "abc", "-", "99999999999999999999-1"} {
		redistest.Want(t, "time of "+id, EntryTime(id).IsZero(), true)
	}
}

// FuzzParseEntry: any bytes are accepted, no number is out of its range, and no field is lost.
func FuzzParseEntry(f *testing.F) {
	f.Add("5-1", "id", "m", "attempt", "3")
	f.Add("", "attempt", "99999999999999999999", "max_attempts", "99999999999999999999")
	f.Add("\xff", "h:\xff", "\x00", "due_ms", "-9223372036854775808")
	f.Add("9-9", "expires_ms", "9223372036854775807", "payload", "\xff\xfe")
	f.Fuzz(func(t *testing.T, entryID, n1, v1, n2, v2 string) {
		e := ParseEntry(entryID, fields(n1, v1, n2, v2))
		// The largest number may come from its own text only, not from a text of a larger number.
		if e.Attempt < 1 || e.MaxAttempts < 0 || e.MaxAttempts == 1<<63-1 && v1 != "9223372036854775807" &&
			v2 != "9223372036854775807" {
			t.Errorf("attempt %d of %d", e.Attempt, e.MaxAttempts)
		}
		if n1 != FieldID && n2 != FieldID && e.ID != entryID {
			t.Errorf("id %q", e.ID)
		}
		_, _ = e.Due.String(), EntryTime(entryID).String()
		for _, f := range fields(n1, v1, n2, v2)[1:] { // of two fields with one name, the last one counts
			if name, ok := strings.CutPrefix(f.Field, HeaderPrefix); ok && e.Headers[name] != f.Value {
				t.Errorf("header %q is %q, want %q", name, e.Headers[name], f.Value)
			}
		}
	})
}

// Go reads back what it wrote as meta. A header may be named like a field, such as id.
func TestMetaRoundTrip(t *testing.T) {
	if got := EncodeMeta(nil, 0, time.Time{}); got != "" {
		t.Errorf("nothing to say is %q", got)
	}
	e, ok := DecodeMeta("m", EncodeMeta(map[string]string{"ü": "<&>\u2028", "id": "x"}, 7, time.UnixMilli(5)))
	if !ok || e.ID != "m" || e.Headers["ü"] != "<&>\u2028" || e.Headers["id"] != "x" || e.MaxAttempts != 7 ||
		e.Expires.UnixMilli() != 5 || e.Attempt != 1 {
		t.Errorf("%v %+v", ok, e)
	}
	if e, ok = DecodeMeta("m", ""); !ok || e.ID != "m" || e.Attempt != 1 {
		t.Errorf("without meta: %v %+v", ok, e)
	}
	if e, ok = DecodeMeta("m\x1fg\x1f5-1", `{"id":"m","for":"g","attempt":"4","error":"boom"}`); !ok || e.ID != "m" ||
		e.For != "g" || e.Attempt != 4 || e.Error != "boom" {
		t.Errorf("a retry: %v %+v", ok, e)
	}
}

// Inspection must not show as sound a meta that drain would dead-letter.
func TestDecodeMetaAgreesWithDrain(t *testing.T) {
	for meta, sound := range map[string]bool{
		`{}`: true, `{"h:a":"b"}`: true, ` {"color":"red"}`: true, `null`: false, `[]`: false, `"x"`: false, `5`: false,
		`{`: false, `{"h:a":null}`: false,
		`{"h:a":5}`: false, `{"h:a":{}}`: false, `{"payload":"x"}`: false, `{"due_ms":"5"}`: false, "{\"h:a\":\"\xff\"}": false,
	} {
		_, ok := DecodeMeta("m", meta)
		redistest.Want(t, meta+" is sound", ok, sound)
	}
}

// FuzzDecodeMeta: a meta that is called sound is an object of strings, and decodes to the same strings.
func FuzzDecodeMeta(f *testing.F) {
	for _, seed := range []string{"", "{}", "null", `{"h:a":"b"}`, `{"h:a":null}`, `{"attempt":"99999999999999999999"}`,
		"{\"h:\xff\":\"\"}", `{"id":"\u001f"}`, `{"payload":"x"}`} {
		f.Add("m", seed)
	}
	f.Fuzz(func(t *testing.T, member, meta string) {
		e, ok := DecodeMeta(member, meta)
		if e.Attempt < 1 || e.MaxAttempts < 0 {
			t.Errorf("attempt %d of %d", e.Attempt, e.MaxAttempts)
		}
		if !ok || meta == "" {
			return
		}
		var fields map[string]string
		if err := json.Unmarshal([]byte(meta), &fields); err != nil || !utf8.ValidString(meta) {
			t.Fatalf("%q is called sound: %v", meta, err)
		}
		headers := map[string]string{}
		for name, value := range fields {
			if header, isHeader := strings.CutPrefix(name, HeaderPrefix); isHeader {
				headers[header] = value
			}
		}
		if !maps.Equal(headers, e.Headers) {
			t.Errorf("%q: headers %q", meta, e.Headers)
		}
	})
}
