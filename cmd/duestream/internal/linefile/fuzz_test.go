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

// For any bytes, the reader returns the lines that a plain split gives. ParseMessage refuses a line, or returns a
// message with the values of the line.
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

// checkLine compares the message that ParseMessage gives with what encoding/json reads from the line.
func checkLine(t *testing.T, line []byte, number int) {
	t.Helper()
	m, err := ParseMessage(line, number, bridge.NewMessage{Dedup: time.Hour})
	if err != nil {
		return // refused
	}
	var fields struct {
		ID             *string
		Payload        any
		Payload_base64 []byte
		Headers        map[string]string
		In_ms, At_ms   *int64
		Max_attempts   *int
		Expires_ms     *int64
	}
	if err := json.Unmarshal(line, &fields); err != nil || !utf8.Valid(line) {
		t.Fatalf("%q is taken, and is no JSON of this shape: %v", line, err)
	}
	text, isText := fields.Payload.(string)
	switch {
	case fields.ID != nil && *fields.ID != "" && m.ID != *fields.ID,
		fields.ID == nil && !strings.HasPrefix(m.ID, "line-"), m.ID == "":
		t.Errorf("%q has the ID %q", line, m.ID)
	case isText && string(m.Payload) != text,
		fields.Payload_base64 != nil && !bytes.Equal(m.Payload, fields.Payload_base64):
		t.Errorf("%q has the payload %q", line, m.Payload)
	case !isText && fields.Payload != nil && !json.Valid(m.Payload):
		t.Errorf("%q has the payload %q", line, m.Payload)
	case len(m.Headers) != len(fields.Headers), fields.In_ms != nil && m.Delay.Milliseconds() != *fields.In_ms,
		fields.At_ms != nil && m.At.UnixMilli() != *fields.At_ms,
		fields.Max_attempts != nil && m.MaxAttempts != *fields.Max_attempts:
		t.Errorf("%q became %+v", line, m)
	}
	for name, value := range fields.Headers {
		if m.Headers[name] != value {
			t.Errorf("%q has the header %q: %q", line, name, m.Headers[name])
		}
	}
	again, _ := ParseMessage(line, number, bridge.NewMessage{Dedup: time.Hour})
	if again.ID != m.ID {
		t.Errorf("%q is %q, then %q: a file that is run again would be scheduled again", line, m.ID, again.ID)
	}
}
