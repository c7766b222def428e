package transfer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// roundTrip passes a record through a line of JSON.
func roundTrip(t *testing.T, r Record) Record {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := back.Check(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	return back
}

// Any contents of the schedule must come back unchanged from a record: member, due time, payload and meta. Contents
// that the named fields of a record cannot hold are kept as bytes ("raw").
func TestScheduledRecordsAreLossless(t *testing.T) {
	const sep = lua.Separator
	for _, c := range []struct {
		member, score, payload, meta string
		raw                          bool
	}{
		{"order-42", "1795216995000", "hello <b>", "", false},
		{"öäü-№", "1795216995000", "\xff\x00\xfe",
			`{"h:a":"ü\u0000","max_attempts":"5","expires_ms":"1795217995000","colour":"green"}`, false},
		{"plain with attempt", "1", "", `{"attempt":"7","for":"g","error":"e"}`, false},
		{"a" + sep + "g" + sep + "17-0", "1795216995000", "p", `{"id":"a","for":"g","attempt":"3","error":"oops","h:k":"v"}`,
			false},
		{"a" + sep + sep + "17-0", "1795216995000", "p", `{"id":"a","attempt":"1"}`, false},
		{"a" + sep + "g" + sep + "dead:17-0", "1795216995000", "p", `{"id":"a","for":"g","attempt":"1"}`, false},
		{"a" + sep + sep + "dead:17-0", "1795216995000", "p", `{"id":"a","attempt":"1"}`, false},
		{"a" + sep + "g" + sep + "dead:17-0+", "1795216995000", "p", `{"id":"a","for":"g","attempt":"1"}`, true},
		{"a" + sep + "g" + sep + "ready:17-0", "1795216995000", "p", `{"id":"a","for":"g","attempt":"1"}`, false},
		{"a" + sep + "g" + sep + "17-0", "5", "p", `{"id":"b","for":"g","attempt":"3"}`, true},
		{"a" + sep + "g" + sep + "17-0", "5", "p", "", true},
		{"a" + sep + "g", "5", "p", "", true},
		{"x", "5", "p", `{"h:k":1}`, true},
		{"x", "5", "p", `[]`, true},
		{"x", "5", "p", `{"h:k":"\ud800"}`, true},
		{"x", "5", "p", `not json` + "\xff", true},
		{"x", "5", "p", `{"max_attempts":"007"}`, true},
		{"x", "5", "p", `{"max_attempts":"lots"}`, true},
		{"x", "5", "p", `{"reason":"mine"}`, false},
		{"x", "5", "p", `{"h:":"no name"}`, true},
		{"\xff", "5", "p", "", true},
		{"bell\a", "5", "p", "", true},
		{strings.Repeat("x", 300), "5", "p", "", true},
	} {
		exported := lua.Exported{Member: c.member, Score: c.score, Payload: []byte(c.payload), Meta: c.meta}
		r := roundTrip(t, scheduledRecord(exported))
		member, meta := r.member()
		if member != c.member || !sameMeta(meta, c.meta) || string(r.Payload) != c.payload || fmt.Sprint(r.Due) != c.score {
			t.Errorf("%q %s became %q %s (%+v)", c.member, c.meta, member, meta, r)
		}
		redistest.Want(t, fmt.Sprintf("%q %s is raw", c.member, c.meta), r.Member != nil, c.raw)
	}
	for score, due := range map[string]int64{"1.25": 2, "-inf": 0, "inf": maxDue, "1.795216995123e+12": 1795216995123, "-7": 0,
		"x": 0} {
		redistest.Want(t, "due of "+score, dueOf(score), due)
	}
}

// Any fields of a dead letter must come back unchanged from a record.
func TestDeadRecordsAreLossless(t *testing.T) {
	for _, c := range []struct {
		fields []string
		raw    bool
	}{
		{[]string{"id", "a", "payload", "p\xff", "attempt", "3", "due_ms", "5", "group", "g", "reason", "max_attempts", "dead_ms",
			"7", "entry", "17-0", "error", "oops",
			"h:k", "v", "max_attempts", "3", "expires_ms", "9", "colour", "green", "meta", "[]"}, false},
		{[]string{"id", "a", "reason", "body_lost"}, false},
		{[]string{"payload", ""}, false},
		{[]string{"id", "a", "for", "someone"}, false},
		{[]string{"id", "a", "id", "b"}, true},
		{[]string{"id", "a", "attempt", "many"}, true},
		{[]string{"id", "a", "due_ms", "0"}, true},
		{[]string{"id", "a", "group", ""}, true},
		{[]string{"id", "\xff"}, true},
		{[]string{"id", "a", "\xff", "x"}, true},
		{[]string{"h:k", "\xff"}, true},
	} {
		var found []lua.FieldValue
		have, got := map[string]int{}, map[string]int{}
		for i := 0; i < len(c.fields); i += 2 {
			found = append(found, lua.FieldValue{Field: c.fields[i], Value: c.fields[i+1]})
			have[c.fields[i]+"="+c.fields[i+1]]++
		}
		r := roundTrip(t, deadRecord(3, "17-0", found))
		for _, f := range r.fields() {
			got[f.Field+"="+f.Value]++
		}
		if !maps.Equal(have, got) || r.Letter != "3/17-0" {
			t.Errorf("%q became %v", c.fields, got)
		}
		redistest.Want(t, fmt.Sprintf("%q is raw", c.fields), r.Fields != nil, c.raw)
	}
}

// A payload must be written as text, or as base64 if it is not UTF-8 or would be longer as text.
func TestPayloadsOfRecordsAreShort(t *testing.T) {
	for payload, inLine := range map[string]string{
		"":                          `""`,
		"<b>\"ü\"\u2028":            `"<b>\"ü\"\u2028"`,
		"\xff":                      `{"base64":"/w=="}`,
		strings.Repeat("\x01", 300): `{"base64":"` + strings.Repeat("AQEB", 100) + `"}`,
	} {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		r := Record{Kind: RecordScheduled, ID: "a", Payload: view.Payload(payload)}
		if err := enc.Encode(r); err != nil || !strings.Contains(b.String(), `"payload":`+inLine) {
			t.Errorf("%q: %s %v", payload, &b, err)
		}
		redistest.Want(t, "back", string(roundTrip(t, r).Payload), payload)
	}
}

// A ready entry is imported as a retry for its group, with its attempt. An entry that a retry cannot hold is refused.
func TestReadyRecords(t *testing.T) {
	fields := func(words ...string) (all []lua.FieldValue) {
		for i := 0; i < len(words); i += 2 {
			all = append(all, lua.FieldValue{Field: words[i], Value: words[i+1]})
		}
		return all
	}
	r, ok := readyRecord("17-0", fields("id", "a", "payload", "p\xff", "attempt", "2", "due_ms", "5", "h:bin", "\xff", "group",
		"foreign", "error", "e"), "g")
	redistest.Want(t, "a retry can hold the entry", ok, true)
	member, meta := roundTrip(t, r).member()
	redistest.Want(t, "member", member, "a"+lua.Separator+"g"+lua.Separator+"ready:17-0")
	if !sameMeta(meta, `{"id":"a","for":"g","attempt":"2","b64:h:bin":"/w==","group":"foreign","error":"e"}`) {
		t.Error(meta)
	}
	r, ok = readyRecord("17-0", fields("payload", "p"), "")
	// The entry ID "17-0" stands for the ID, and its time, 17 ms, for the due time. There is no group.
	redistest.Want(t, "without an ID", fmt.Sprint(r.ID, r.Due, r.For, ok), "17-017true")
	for _, odd := range [][]string{{"id", ""}, {"id", "a", "attempt", "x"}, {"id", "a", "\xff", "x"},
		{"id", "a", "max_attempts", "0"}} {
		if r, ok := readyRecord("17-0", fields(odd...), "g"); ok {
			t.Errorf("%q: %+v", odd, r)
		}
	}
}

// A record with an invalid field must be refused, with an error that names the field, before it is sent to Redis.
func TestRecordsAreCheckedBeforeTheyAreSent(t *testing.T) {
	for what, r := range map[string]Record{
		"kind":         {Kind: "other", ID: "a"},
		"id":           {Kind: RecordScheduled},
		"due_ms":       {Kind: RecordScheduled, ID: "a", Due: -1},
		"payload":      {Kind: RecordScheduled, ID: "a", Payload: make([]byte, lua.MaxPayloadBytes+1)},
		"header":       {Kind: RecordScheduled, ID: "a", Headers: map[string]string{"": "x"}},
		"group":        {Kind: RecordScheduled, ID: "a", For: "\a"},
		"entry":        {Kind: RecordReady, ID: "a"},
		"attempt":      {Kind: RecordScheduled, ID: "a", Attempt: -1},
		"max_attempts": {Kind: RecordScheduled, ID: "a", MaxAttempts: -1},
		"expires_ms":   {Kind: RecordScheduled, ID: "a", Expires: -1},
		"error":        {Kind: RecordScheduled, ID: "a", Error: strings.Repeat("x", 1025)},
		"extra":        {Kind: RecordScheduled, ID: "a", Extra: map[string]string{"payload": "x"}},
		"letter":       {Kind: RecordDead, ID: "a", Letter: "x"},
		"fields":       {Kind: RecordDead, Letter: "1-1", Fields: [][]byte{{1}}},
		"member":       {Kind: RecordScheduled, Member: []byte{}},
	} {
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
