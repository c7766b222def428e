package view

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

// A payload that is UTF-8 is a JSON string, any other an object with base64, and nil is null. Each comes back
// unchanged.
func TestPayloadInJSON(t *testing.T) {
	for _, c := range []struct {
		payload Payload
		text    string
	}{
		{nil, `null`}, {Payload{}, `""`}, {Payload("naïve \"x\""), `"naïve \"x\""`}, {Payload("\xff\x00"), `{"base64":"/wA="}`},
	} {
		text, err := json.Marshal(c.payload)
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "json", string(text), c.text)
		back := Payload("before") // must be replaced
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if string(back) != string(c.payload) || (back == nil) != (c.payload == nil) {
			t.Errorf("back from %s: %q", text, back)
		}
	}
}

// FuzzPayloadJSON: any payload comes back from JSON bit for bit, nil stays nil, and any JSON is read or refused.
func FuzzPayloadJSON(f *testing.F) {
	for _, seed := range []string{
		"", "text", "\xff\x00", "\ufffd", "\u2028<&>", `{"base64":"eA=="}`,
		`{"base64":null}`, `null`, `"x"`, `[1]`, `{"base64":"*"}`, `{"base64":"","x":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []Payload{data, append(Payload{}, data...), nil} {
			text, err := json.Marshal(p)
			if err != nil || !utf8.Valid(text) {
				t.Fatalf("%q becomes %q, %v", p, text, err)
			}
			again := Payload("before")
			if err := json.Unmarshal(text, &again); err != nil || !bytes.Equal(p, again) || (p == nil) != (again == nil) {
				t.Errorf("%q becomes %s becomes %q, %v", p, text, again, err)
			}
		}
		var p Payload
		if json.Unmarshal(data, &p) == nil && !json.Valid(data) {
			t.Errorf("%q is read as %q", data, p)
		}
	})
}
