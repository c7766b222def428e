package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/internal/ndjson"
)

// FuzzSettings: any value of any variable gives an error that names the variable, or a policy within its limits.
func FuzzSettings(f *testing.F) {
	names := settings.Variables(&settings.Serve{})
	for i := range names {
		f.Add(uint8(i), "")
		f.Add(uint8(i), "30")
		f.Add(uint8(i), "1h30m")
		f.Add(uint8(i), "-1s")
		f.Add(uint8(i), "true")
		f.Add(uint8(i), "9223372036854775808")
		f.Add(uint8(i), "\xff\n")
		f.Add(uint8(i), "info+9223372036854775807")
	}
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		if strings.ContainsRune(value, 0) {
			return // no variable can hold it
		}
		name := names[int(which)%len(names)]
		t.Setenv(name, value)
		s, policy, err := settings.Read()
		if err != nil {
			if !strings.Contains(err.Error(), name) || !utf8.ValidString(err.Error()) {
				t.Errorf("%s=%q is refused with %q", name, value, err)
			}
			return
		}
		if err := policy.Validate(); err != nil || s.ShutdownTimeout <= 0 || value == "" {
			t.Errorf("%s=%q gives %+v: %v", name, value, s, err)
		}
	})
}

// FuzzForeignVariable: a variable with our prefix is known, matches a pattern of foreign variables, or is refused by
// name.
func FuzzForeignVariable(f *testing.F) {
	for _, seed := range []string{
		"DUESTREAM_MAX_ATEMPTS=3", "DUESTREAM_=", "DUESTREAM_PREFIX", "PATH=x", "duestream_prefix=x",
		"DUESTREAM_TEST_X=\xff", "DUESTREAM_\n=1", "=", "DUESTREAM_A_PORT_1_TCP=x",
	} {
		f.Add(seed)
	}
	known := append(settings.Variables(&settings.Connection{}), settings.Variables(&settings.Serve{})...)
	f.Fuzz(func(t *testing.T, entry string) {
		name, _, _ := strings.Cut(entry, "=")
		err := settings.CheckNames([]string{entry})
		if err != nil && (!strings.HasPrefix(name, "DUESTREAM_") || !strings.Contains(err.Error(), name+" is not a setting")) {
			t.Errorf("%q is refused with %q", entry, err)
		}
		for _, one := range known {
			if name == one && err != nil {
				t.Errorf("%q is refused with %q", entry, err)
			}
			if err == nil && name != one && strings.EqualFold(name, one) && strings.HasPrefix(name, "DUESTREAM_") {
				t.Errorf("%q is taken for nobody's", entry)
			}
		}
	})
}

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
	m, err := parseLine(line, number, bridge.NewMessage{Dedup: time.Hour})
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
	again, _ := parseLine(line, number, bridge.NewMessage{Dedup: time.Hour})
	if again.ID != m.ID {
		t.Errorf("%q is %q, then %q: a file that is run again would be scheduled again", line, m.ID, again.ID)
	}
}
