package transfer

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/view"
)

// MarshalJSON writes the payload as a string if it is UTF-8, and as {"base64": "…"} if it is not UTF-8 or if base64 is
// much shorter. It may be much shorter because a control character takes six bytes in a string, and no line may be
// longer than the line of the largest payload. A lost payload is null.
func (r Record) MarshalJSON() ([]byte, error) {
	type plain Record
	line := struct {
		plain
		Payload any `json:"payload"`
	}{plain(r), nil}
	switch {
	case r.Payload == nil:
	case utf8.Valid(r.Payload) && escapedSize(r.Payload) <= len(r.Payload)*4/3+64:
		line.Payload = string(r.Payload)
	default:
		line.Payload = view.Base64Payload{Base64: r.Payload}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(line)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

// escapedSize returns about the length of a text as a JSON string.
func escapedSize(text []byte) int {
	n := len(text)
	for _, c := range text {
		switch {
		case c == '"', c == '\\':
			n++
		case c < ' ':
			n += 5
		}
	}
	return n
}
