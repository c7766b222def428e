// Package message reads messages to schedule: JSON lines from an HTTP batch or a file, and the query parameters of an
// HTTP request for a single message. A parameter has the name of the JSON field.
//
// Invariants:
//   - A line of a batch, a line of a file and a query give the same message, or the same faults
//     (TestLinesAreReadByOneLaw).
package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// Line is the JSON form of a message. A field that is nil or empty is not given.
type Line struct {
	ID             string            `json:"id,omitempty"`
	Payload        json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64  *ndjson.Base64    `json:"payload_base64,omitempty"`
	In             *int64            `json:"in_ms,omitempty"`
	At             *int64            `json:"at_ms,omitempty"`
	Spread         *int64            `json:"spread_ms,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
	MaxAttempts    *int64            `json:"max_attempts,omitempty"`
	RetryDelays    []int64           `json:"retry_delays_ms,omitempty"`
	RetryFor       *int64            `json:"retry_for_ms,omitempty"`
	MaxSnoozes     *int64            `json:"max_snoozes,omitempty"`
	MaxCrashes     *int64            `json:"max_crashes,omitempty"`
	HandlerTimeout *int64            `json:"handler_timeout_ms,omitempty"`
	KeepResult     *int64            `json:"result_ms,omitempty"`
	Expires        *int64            `json:"expires_ms,omitempty"`
	Dedup          *int64            `json:"dedup_ms,omitempty"`
	Replace        string            `json:"replace,omitempty"`
	Key            *string           `json:"key,omitempty"`
}

// Errors of Parse. Its other errors name the place of the fault in the object.
var (
	ErrNotObject = errors.New("is not a JSON object")
	ErrNotUTF8   = errors.New("is not UTF-8: payload_base64 takes any bytes")
)

// Parse reads the object of a message. It refuses unknown fields, and the faults that package ndjson refuses. Message
// checks the values.
func Parse(text []byte) (Line, error) {
	var l Line
	text = bytes.TrimSpace(text)
	if !bytes.HasPrefix(text, []byte("{")) {
		return l, ErrNotObject
	}
	if !utf8.Valid(text) { // the decoder would replace invalid bytes
		return l, ErrNotUTF8
	}
	err := ndjson.Decode(text, &l)
	return l, err
}

// ParseQuery reads the fields of a message, other than payload and headers, from the parameters of a request. The error
// names all faults, each a *lua.InvalidError.
func ParseQuery(q map[string]string) (Line, error) {
	l := Line{ID: q["id"], Replace: q["replace"]}
	var errs []error
	number := func(field, text, rule string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			errs = append(errs, lua.Invalid(field, q[field], "%s", rule))
		}
		return n
	}
	for field, into := range map[string]**int64{"in_ms": &l.In, "at_ms": &l.At, "spread_ms": &l.Spread,
		"max_attempts": &l.MaxAttempts, "retry_for_ms": &l.RetryFor, "max_snoozes": &l.MaxSnoozes,
		"max_crashes": &l.MaxCrashes, "handler_timeout_ms": &l.HandlerTimeout, "result_ms": &l.KeepResult,
		"expires_ms": &l.Expires,
		"dedup_ms":   &l.Dedup} {
		if text, given := q[field]; given {
			n := number(field, text, "must be a whole number")
			*into = &n
		}
	}
	if text, given := q["retry_delays_ms"]; given {
		for one := range strings.SplitSeq(text, ",") {
			n := number("retry_delays_ms", one, "must be whole numbers with commas between")
			l.RetryDelays = append(l.RetryDelays, n)
		}
	}
	for _, field := range []string{"id", "key", "replace"} {
		if text, given := q[field]; given && text == "" {
			errs = append(errs, lua.Invalid(field, text, "must not be empty"))
		}
	}
	if key, given := q["key"]; given {
		l.Key = &key
	}
	return l, errors.Join(errs...)
}

// Message returns the message of the line. Fields that the line does not give come from defaults, except the ID and the
// payload. The headers of the line and of defaults are merged; if both have a header, the line's value counts. The
// error names all faults that this package checks, each a *lua.InvalidError with the field's name in the line. Package
// producer checks the rest.
func (l *Line) Message(defaults producer.Message) (producer.Message, error) {
	var c checks
	m := defaults
	m.ID, m.Headers = l.ID, l.headers(defaults.Headers)
	if l.In != nil || l.At != nil {
		m.Delay, m.At = 0, time.Time{}
	}
	c.duration(&m.Delay, "in_ms", l.In)
	c.instant(&m.At, "at_ms", l.At)
	c.duration(&m.Spread, "spread_ms", l.Spread)
	c.count(&m.MaxAttempts, "max_attempts", l.MaxAttempts)
	c.duration(&m.RetryFor, "retry_for_ms", l.RetryFor)
	c.count(&m.MaxSnoozes, "max_snoozes", l.MaxSnoozes)
	c.count(&m.MaxCrashes, "max_crashes", l.MaxCrashes)
	c.duration(&m.HandlerTimeout, "handler_timeout_ms", l.HandlerTimeout)
	c.duration(&m.KeepResult, "result_ms", l.KeepResult)
	if l.Expires != nil {
		m.ExpiresIn = 0
	}
	c.instant(&m.Expires, "expires_ms", l.Expires)
	c.duration(&m.Dedup, "dedup_ms", l.Dedup)
	if l.In != nil && l.At != nil {
		c.refuse("at_ms", "", "must not stand beside in_ms")
	}
	if l.RetryDelays != nil {
		all := make([]time.Duration, len(l.RetryDelays))
		for i := range l.RetryDelays {
			c.duration(&all[i], "retry_delays_ms", &l.RetryDelays[i])
		}
		m.RetryDelays = lua.NewDelays(all...)
	}
	if l.Replace != "" {
		known := false
		if m.Replace, known = replaceModes[l.Replace]; !known {
			c.refuse("replace", l.Replace, "must be always, later or earlier")
		}
	}
	if l.Key != nil { // "" in a message means: no key
		m.Key = *l.Key
		c.faults = append(c.faults, lua.CheckKey(m.Key))
	}
	var err error
	m.Payload, err = Payload(l.Payload, l.PayloadBase64)
	c.faults = append(c.faults, err)
	return m, errors.Join(c.faults...)
}

var replaceModes = map[string]lua.Dedup{"always": lua.Replace, "later": lua.ReplaceLater, "earlier": lua.ReplaceEarlier}

// headers returns defaults, overwritten by the headers of the line.
func (l *Line) headers(defaults map[string]string) map[string]string {
	if len(l.Headers) == 0 {
		return defaults
	}
	all := maps.Clone(defaults)
	if all == nil {
		return l.Headers
	}
	maps.Copy(all, l.Headers)
	return all
}

// Payload returns the payload from one of two fields. inBase64 gives any bytes. value gives the bytes of a JSON string,
// or the compact text of any other JSON. Payload returns nil if neither is given, and lua.ErrInvalid if both are.
func Payload(value json.RawMessage, inBase64 *ndjson.Base64) ([]byte, error) {
	switch {
	case value != nil && inBase64 != nil:
		return nil, lua.Invalid("payload_base64", "", "must not stand beside payload")
	case inBase64 != nil:
		return *inBase64, nil
	case value == nil:
		return nil, nil
	case bytes.HasPrefix(value, []byte(`"`)):
		var text string
		err := json.Unmarshal(value, &text)
		return []byte(text), err
	}
	var compact bytes.Buffer
	err := json.Compact(&compact, value)
	return compact.Bytes(), err
}

// checks converts the values of a line, and collects their faults. It refuses values that package producer would take
// for missing values. A value that is not given changes nothing.
type checks struct{ faults []error }

func (c *checks) refuse(field, value, rule string) {
	c.faults = append(c.faults, lua.Invalid(field, value, "%s", rule))
}

func (c *checks) duration(into *time.Duration, field string, ms *int64) {
	if ms == nil {
		return
	}
	if most := lua.MaxDelay.Milliseconds(); *ms < 0 || *ms > most {
		c.refuse(field, strconv.FormatInt(*ms, 10), "must be between 0 and "+strconv.FormatInt(most, 10)+" (ten years)")
		return
	}
	*into = time.Duration(*ms) * time.Millisecond
}

func (c *checks) instant(into *time.Time, field string, ms *int64) {
	if ms == nil {
		return
	}
	*into = time.UnixMilli(*ms)
	c.faults = append(c.faults, lua.CheckTime(field, *into))
}

func (c *checks) count(into *int, field string, n *int64) {
	if n == nil {
		return
	}
	if *n < 1 || *n > lua.MaxAttemptsLimit {
		c.refuse(field, strconv.FormatInt(*n, 10), "must be between 1 and 1000000")
		return
	}
	*into = int(*n)
}
