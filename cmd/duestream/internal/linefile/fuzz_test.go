package linefile

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/ndjson"
)

// FuzzLines: for any bytes, the lines are those of a plain split. Each line is refused, or gives a message with the
// values of the line.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "\r\n\n", `{"id":"a"}`, "{}\n{\"payload\":\"x\"}\r\n", `{"payload":"\u00fc\n","headers":{"x":"y"},"in_ms":5}`, `{"payload":[1, 2 ],"at_ms":1795216995000}`,
		`{"payload_base64":"/w=="}`, `{"payload_base64":"/x=="}`, `{"payload":null}`, `{"ID":"a","id":"b"}`, `{"id":null}`, `{"in_ms":1e3}`, `{"in_ms":-0}`, `{"max_attempts":9223372036854775807}`,
		"\ufeff{}", "\xff\n{}", `{"id":"a"}{"id":"b"}`, `{"headers":{"x":null}}`, `{"headers":null,"expires_ms":-1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		plain := bytes.Split(file, []byte("\n"))
		if len(plain[len(plain)-1]) == 0 {
			plain = plain[:len(plain)-1]
		}
		r := ndjson.NewReader(bytes.NewReader(file))
		for i, line := range plain {
			got, tooLong, err := r.Next()
			if err != nil || tooLong || r.Number != i+1 || !bytes.Equal(got, bytes.TrimRight(line, "\r")) {
				t.Fatalf("line %d: %q, %t, %v; want %q", i+1, got, tooLong, err, line)
			}
			checkLine(t, got, r.Number)
		}
		if _, _, err := r.Next(); err != io.EOF {
			t.Errorf("error %v behind the last line", err)
		}
	})
}

func checkLine(t *testing.T, line []byte, number int) {
	t.Helper()
	m, err := ParseMessage(line, number, bridge.NewMessage{Dedup: time.Hour})
	if err != nil {
		return
	}
	var said struct {
		ID             *string
		Payload        any
		Payload_base64 []byte
		Headers        map[string]string
		In_ms, At_ms   *int64
		Max_attempts   *int
		Expires_ms     *int64
	}
	if err := json.Unmarshal(line, &said); err != nil || !utf8.Valid(line) {
		t.Fatalf("%q is taken, and is no JSON of this shape: %v", line, err)
	}
	text, isText := said.Payload.(string)
	switch {
	case said.ID != nil && *said.ID != "" && m.ID != *said.ID, said.ID == nil && !strings.HasPrefix(m.ID, "line-"), m.ID == "":
		t.Errorf("%q has the ID %q", line, m.ID)
	case isText && string(m.Payload) != text, said.Payload_base64 != nil && !bytes.Equal(m.Payload, said.Payload_base64):
		t.Errorf("%q has the payload %q", line, m.Payload)
	case !isText && said.Payload != nil && !json.Valid(m.Payload):
		t.Errorf("%q has the payload %q", line, m.Payload)
	case len(m.Headers) != len(said.Headers), said.In_ms != nil && m.Delay.Milliseconds() != *said.In_ms,
		said.At_ms != nil && m.At.UnixMilli() != *said.At_ms, said.Max_attempts != nil && m.MaxAttempts != *said.Max_attempts:
		t.Errorf("%q became %+v", line, m)
	}
	for name, value := range said.Headers {
		if m.Headers[name] != value {
			t.Errorf("%q has the header %q: %q", line, name, m.Headers[name])
		}
	}
	again, _ := ParseMessage(line, number, bridge.NewMessage{Dedup: time.Hour})
	if again.ID != m.ID {
		t.Errorf("%q is %q, then %q: a file that is run again would be scheduled again", line, m.ID, again.ID)
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"id":"a","payload":{"a":1},"in_ms":5,"headers":{"x":"y"}}`))
	f.Add([]byte(`{"payload":"\ud800","at_ms":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := ParseMessage(line, 1, bridge.NewMessage{Dedup: time.Hour})
		again, errAgain := ParseMessage(line, 1, bridge.NewMessage{Dedup: time.Hour})
		if (err == nil) != (errAgain == nil) || m.ID != again.ID || !bytes.Equal(m.Payload, again.Payload) {
			t.Errorf("the same line is two messages: %+v %v, %+v %v", m, err, again, errAgain)
		}
		if err == nil && m.ID == "" {
			t.Errorf("a message without an ID: %+v", m)
		}
	})
}
