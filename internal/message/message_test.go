package message

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// read reads a line as a message with defaults.
func read(line string, defaults producer.Message) (producer.Message, error) {
	l, err := Parse([]byte(line))
	if err != nil {
		return producer.Message{}, err
	}
	return l.Message(defaults)
}

// A line that cannot be read is refused with the place and the kind of the fault, and without any payload. Regression:
// null became an empty message, and of two values with one name the last one won.
func TestAnUnreadableLineNamesThePlaceOfItsFault(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		``: "is not a JSON object", `[1]`: "is not a JSON object", `null`: "is not a JSON object",
		`{"id":7}`:                          "id: is a JSON number: must be a string",
		`{"in_ms":1.5}`:                     "in_ms: is a JSON number 1.5: must be a whole number",
		`{"in_ms":"1"}`:                     "in_ms: is a JSON string: must be a whole number",
		`{"in_ms":9223372036854775808}`:     "in_ms: is a JSON number 9223372036854775808: must be a whole number",
		`{"headers":[]}`:                    "headers: here is a JSON array: must be an object of strings",
		`{"headers":{"a":1}}`:               "headers: here is a JSON number: must be an object of strings",
		`{"payload_base64":"*"}`:            "payload_base64: is not base64 (",
		`{"payload":"x"} x`:                 "there is more behind the JSON object",
		`{"payload":"x"`:                    "is not JSON: unexpected EOF",
		"{\"payload\":\"\xff\"}":            "is not UTF-8: payload_base64 takes any bytes",
		`{"id":null}`:                       "id: is null",
		`{"in_ms":null}`:                    "in_ms: is null",
		`{"headers":null}`:                  "headers: is null",
		`{"headers":{"a":null}}`:            "headers: a: is null",
		`{"payload_base64":[104]}`:          "payload_base64: is a JSON array: must be a string",
		`{"payload_base64":5}`:              "payload_base64: is a JSON number: must be a string",
		`{"payload_base64":null}`:           "payload_base64: is null",
		`{"id":"a","id":"b"}`:               "id: is given twice",
		`{"payload":"a","payload":"b"}`:     "payload: is given twice",
		`{"headers":{"a":"1","a":"2"}}`:     "headers: a: is given twice",
		`{"id":"a","ID":"b"}`:               `unknown field "ID"`,
		`{"Payload":"x"}`:                   `unknown field "Payload"`,
		`{"id":"\ud800"}`:                   "half a character",
		`{"payload":"x\udc00"}`:             "half a character",
		`{"payload":"\ud83d\ud83d\ude00"}`:  "half a character",
		`{"headers":{"a":"\uD83D"}}`:        "half a character",
		`{"payload":"secret","paylod":"x"}`: `unknown field "paylod"`,
	} {
		if _, err := Parse([]byte(line)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", line, err, says)
		}
	}
}

// A line with values out of their limits is refused with each field, its value and its limit.
func TestAWrongValueIsNamedWithItsLimit(t *testing.T) {
	t.Parallel()
	const tenYears = "must be between 0 and 315360000000 (ten years)"
	for line, says := range map[string]string{
		`{"in_ms":-1}`:                      `in_ms "-1": ` + tenYears,
		`{"in_ms":9223372036854775807}`:     `in_ms "9223372036854775807": ` + tenYears,
		`{"spread_ms":-1}`:                  `spread_ms "-1": ` + tenYears,
		`{"retry_for_ms":315360000001}`:     `retry_for_ms "315360000001": ` + tenYears,
		`{"retry_delays_ms":[1,-2]}`:        `retry_delays_ms "-2": ` + tenYears,
		`{"handler_timeout_ms":-5}`:         `handler_timeout_ms "-5": ` + tenYears,
		`{"dedup_ms":-5}`:                   `dedup_ms "-5": ` + tenYears,
		`{"at_ms":12}`:                      `at_ms "1970-01-01T00:00:00Z": must be between 2001-09-09 and 2286-11-20`,
		`{"expires_ms":-1}`:                 `expires_ms "1969-12-31T23:59:59Z": must be between`,
		`{"in_ms":1,"at_ms":1795216995000}`: `at_ms "": must not stand beside in_ms`,
		`{"max_attempts":0}`:                `max_attempts "0": must be between 1 and 1000000`,
		`{"max_snoozes":1000001}`:           `max_snoozes "1000001": must be between 1 and 1000000`,
		`{"max_crashes":-1}`:                `max_crashes "-1": must be between 1 and 1000000`,
		`{"replace":"yes"}`:                 `replace "yes": must be always, later or earlier`,
		`{"key":""}`:                        `key "": must`,
		`{"payload":1,"payload_base64":""}`: `payload_base64 "": must not stand beside payload`,
	} {
		_, err := read(line, producer.Message{})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", line, err, says)
		}
	}
	_, err := read(`{"in_ms":-1,"max_attempts":0}`, producer.Message{})
	all, isJoined := err.(interface{ Unwrap() []error })
	if !isJoined || len(all.Unwrap()) != 2 || !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("two faults: %v", err)
	}
}

// A payload that is a JSON string is stored as its text, and any other JSON value as compact JSON.
func TestPayloadsOfALine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{}`:                                  "",
		`{"payload":""}`:                      "",
		`{"payload":null}`:                    "null",
		`{"payload":{"b": null, "b": 1.50}}`:  `{"b":null,"b":1.50}`,
		`{"payload":[1, 2 ]}`:                 "[1,2]",
		`{"payload":"\ud83d\ude00 \\ud8 \n"}`: "😀 \\ud8 \n",
		` {"payload_base64":"AP8="} `:         "\x00\xff",
	} {
		if m, err := read(line, producer.Message{}); err != nil || string(m.Payload) != want {
			t.Errorf("%s: payload %q, %v; want %q", line, m.Payload, err, want)
		}
	}
}

// The same fields give the same message, or the same error, in a line of JSON and in the query of a URL.
func TestLinesAreReadByOneLaw(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1795216995000)
	for _, c := range []struct {
		field, inLine, inQuery string
		want                   producer.Message // the zero Message = the field is refused
	}{
		{"id", `"a"`, "a", producer.Message{ID: "a"}},
		{"in_ms", "5", "5", producer.Message{Delay: 5 * time.Millisecond}},
		{"in_ms", "-5", "-5", producer.Message{}},
		{"at_ms", "1795216995000", "1795216995000", producer.Message{At: at}},
		{"at_ms", "5", "5", producer.Message{}},
		{"spread_ms", "5", "5", producer.Message{Spread: 5 * time.Millisecond}},
		{"key", `"k"`, "k", producer.Message{Key: "k"}},
		{"max_attempts", "5", "5", producer.Message{MaxAttempts: 5}},
		{"max_attempts", "0", "0", producer.Message{}},
		{"retry_delays_ms", "[5,6]", "5,6", producer.Message{
			RetryDelays: lua.NewDelays(5*time.Millisecond, 6*time.Millisecond)}},
		{"retry_for_ms", "5", "5", producer.Message{RetryFor: 5 * time.Millisecond}},
		{"max_snoozes", "5", "5", producer.Message{MaxSnoozes: 5}},
		{"max_crashes", "5", "5", producer.Message{MaxCrashes: 5}},
		{"handler_timeout_ms", "5", "5", producer.Message{HandlerTimeout: 5 * time.Millisecond}},
		{"expires_ms", "1795216995000", "1795216995000", producer.Message{Expires: at}},
		{"dedup_ms", "5", "5", producer.Message{Dedup: 5 * time.Millisecond}},
		{"replace", `"later"`, "later", producer.Message{Replace: lua.ReplaceLater}},
		{"replace", `"yes"`, "yes", producer.Message{}},
	} {
		inLine, lineErr := read(fmt.Sprintf(`{%q:%s}`, c.field, c.inLine), producer.Message{})
		l, err := ParseQuery(map[string]string{c.field: c.inQuery})
		if err != nil {
			t.Fatal(err)
		}
		inQuery, queryErr := l.Message(producer.Message{})
		if refused := reflect.DeepEqual(c.want, producer.Message{}); refused {
			if lineErr == nil || fmt.Sprint(lineErr) != fmt.Sprint(queryErr) {
				t.Errorf("%s=%s: the line gives %v, the query %v", c.field, c.inQuery, lineErr, queryErr)
			}
			continue
		}
		if err := errors.Join(lineErr, queryErr); err != nil || !reflect.DeepEqual(inLine, c.want) ||
			!reflect.DeepEqual(inQuery, c.want) {
			t.Errorf("%s=%s: the line gives %+v, the query %+v, %v", c.field, c.inQuery, inLine, inQuery, err)
		}
	}
	for field, text := range map[string]string{
		"in_ms":           "x",
		"retry_delays_ms": "1,,2",
		"id":              "",
		"key":             "",
		"replace":         "",
	} {
		if _, err := ParseQuery(map[string]string{field: text}); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%s=%s: %v", field, text, err)
		}
	}
}

// Fields of a line replace the defaults, header by header. A due time of the line also replaces a delay of the
// defaults, and the other way round. ID and payload have no default.
func TestALineWinsOverDefaults(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1795216995000)
	defaults := producer.Message{ID: "d", Payload: []byte("d"), Delay: time.Hour, Spread: time.Hour, MaxAttempts: 7,
		ExpiresIn: 2 * time.Hour, Headers: map[string]string{"a": "d", "b": "d"}}
	m, err := read(`{}`, defaults)
	want := defaults
	want.ID, want.Payload = "", nil
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("an empty line: %+v, %v", m, err)
	}
	m, err = read(`{"at_ms":1795216995000,"spread_ms":0,"expires_ms":1795216995000,"headers":{"a":"l"}}`, defaults)
	if err != nil || m.Delay != 0 || !m.At.Equal(at) || m.Spread != 0 || m.ExpiresIn != 0 || !m.Expires.Equal(at) ||
		!maps.Equal(m.Headers, map[string]string{"a": "l", "b": "d"}) || defaults.Headers["a"] != "d" {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = read(`{"in_ms":0}`, producer.Message{At: at})
	if err != nil || m.Delay != 0 || !m.At.IsZero() {
		t.Errorf("in_ms beside a default at: %+v, %v", m, err)
	}
}
