package linefile

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
)

func TestLineErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		`[1]`:                               "is a JSON array: must be an object",
		`{"id":7}`:                          "id: is a JSON number: must be a string",
		`{"in_ms":1.5}`:                     "in_ms: is a JSON number 1.5: must be a whole number",
		`{"in_ms":"1"}`:                     "in_ms: is a JSON string: must be a whole number",
		`{"in_ms":-1}`:                      `in_ms "-1ms": must be between 0 and`,
		`{"in_ms":9223372036854775807}`:     "in_ms 9223372036854775807: is out of range",
		`{"in_ms":1,"at_ms":1}`:             "in_ms and at_ms: only one may be given",
		`{"headers":[]}`:                    "headers: here is a JSON array: must be an object of strings",
		`{"headers":{"a":1}}`:               "headers: here is a JSON number: must be an object of strings",
		`{"max_attempts":0}`:                `max_attempts "0": must be between`,
		`{"payload":1,"payload_base64":""}`: "payload and payload_base64: only one may be given",
		`{"payload_base64":"*"}`:            "payload_base64: is not base64",
		`{"payload":"x"} x`:                 "there is more behind the JSON object",
		`{"payload":"x"`:                    "is not JSON: unexpected EOF",
		"{\"payload\":\"\xff\"}":            "is not UTF-8",
	} {
		_, err := ParseMessage([]byte(line), 1, bridge.NewMessage{Dedup: time.Hour})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", line, err, says)
		}
	}
}

// The bug: null became an empty message, and of two values with one name the last one won.
func TestLinesThatSayTwoThingsOrNoneAreRefused(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`null`: "is not a JSON object", `{"id":null}`: "id: is null", `{"in_ms":null}`: "in_ms: is null",
		`{"headers":null}`:       "headers: is null",
		`{"headers":{"a":null}}`: "headers: a: is null", `{"payload_base64":null}`: "payload_base64: is null",
		`{"id":"a","id":"b"}`: "id: is given twice", `{"payload":"a","payload":"b"}`: "payload: is given twice",
		`{"headers":{"a":"1","a":"2"}}`: "headers: a: is given twice", `{"id":"a","ID":"b"}`: `unknown field "ID"`,
		`{"Payload":"x"}`: `unknown field "Payload"`,
		`{"id":"\ud800"}`: "half a character", `{"payload":"x\udc00"}`: "half a character",
		`{"payload":"\ud83d\ud83d\ude00"}`: "half a character",
		`{"headers":{"a":"\uD83D"}}`:       "half a character",
	} {
		if m, err := ParseMessage([]byte(line), 1, bridge.NewMessage{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", line, m, err, want)
		}
	}
	for line, want := range map[string]bridge.NewMessage{
		`{"id":"a","payload":null}`:                      {ID: "a", Payload: []byte("null")},
		`{"id":"a","payload":{"b":null,"b":1}}`:          {ID: "a", Payload: []byte(`{"b":null,"b":1}`)},
		`{"id":"a","payload":"\ud83d\ude00 \\ud800 \n"}`: {ID: "a", Payload: []byte("😀 \\ud800 \n")},
		`{"id":"a","headers":{"Upper":"\u00e9"}}`:        {ID: "a", Headers: map[string]string{"Upper": "é"}},
	} {
		m, err := ParseMessage([]byte(line), 1, bridge.NewMessage{})
		if err != nil || m.ID != want.ID || !bytes.Equal(m.Payload, want.Payload) ||
			m.Headers["Upper"] != want.Headers["Upper"] {
			t.Errorf("%s: %+v, %v", line, m, err)
		}
	}
}
