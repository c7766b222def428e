package message

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/scheduler/producer"
)

// LineOf returns the line of a message: the inverse of Line.Message. A line has no field for ExpiresIn. Parts of a
// millisecond are rounded up.
func LineOf(m producer.Message) Line {
	l := Line{
		ID:             m.ID,
		In:             Milliseconds(m.Delay),
		At:             unixMilliseconds(m.At),
		Spread:         Milliseconds(m.Spread),
		Headers:        m.Headers,
		MaxAttempts:    number(m.MaxAttempts),
		RetryFor:       Milliseconds(m.RetryFor),
		MaxSnoozes:     number(m.MaxSnoozes),
		MaxCrashes:     number(m.MaxCrashes),
		HandlerTimeout: Milliseconds(m.HandlerTimeout),
		KeepResult:     Milliseconds(m.KeepResult),
		Expires:        unixMilliseconds(m.Expires),
		Dedup:          Milliseconds(m.Dedup),
	}
	switch {
	case len(m.Payload) == 0:
	case isText(m.Payload):
		l.Payload, _ = json.Marshal(string(m.Payload)) // a string has no error
	default:
		l.PayloadBase64 = (*ndjson.Base64)(&m.Payload)
	}
	for _, delay := range m.RetryDelays.List() {
		l.RetryDelays = append(l.RetryDelays, *Milliseconds(delay))
	}
	for name, mode := range replaceModes {
		if m.Replace == mode {
			l.Replace = name
		}
	}
	if m.Key != "" {
		l.Key = &m.Key
	}
	return l
}

// isText reports whether a payload is shorter, or hardly longer, as a JSON string than in base64. JSON writes a control
// character in six bytes.
func isText(payload []byte) bool {
	isControl := func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }
	return utf8.Valid(payload) && !bytes.ContainsFunc(payload, isControl)
}

// Milliseconds returns a duration as a field of a line; nil for 0.
func Milliseconds(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	ms := int64((d + time.Millisecond - 1) / time.Millisecond)
	return &ms
}

func unixMilliseconds(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return &ms
}

func number(n int) *int64 {
	if n == 0 {
		return nil
	}
	wide := int64(n)
	return &wide
}
