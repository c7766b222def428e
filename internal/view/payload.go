package view

import (
	"encoding/json"
	"unicode/utf8"
)

// Payload is a message's payload. In JSON it is a string if it is UTF-8, and an object {"base64": "…"} if it is not. A
// nil Payload is null.
type Payload []byte

// Base64Payload is the JSON form of a payload that is not UTF-8: {"base64": "…"}.
type Base64Payload struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON writes a string, an object, or null.
func (p Payload) MarshalJSON() ([]byte, error) {
	switch {
	case p == nil:
		return []byte("null"), nil
	case utf8.Valid(p):
		return json.Marshal(string(p))
	default:
		return json.Marshal(Base64Payload{p})
	}
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Payload) UnmarshalJSON(text []byte) error {
	var plain *string
	if json.Unmarshal(text, &plain) == nil {
		*p = nil
		if plain != nil {
			*p = Payload(*plain)
		}
		return nil
	}
	var encoded Base64Payload
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	*p = encoded.Base64
	return nil
}
