package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
)

// line is the JSON form of a message: an object of a batch. The query of a single message has the same names, and so
// have the lines of `duestream schedule --file`.
type line struct {
	ID            string            `json:"id"`
	Payload       json.RawMessage   `json:"payload"` // a string stands for its bytes, any other value for its text
	PayloadBase64 *[]byte           `json:"payload_base64"`
	In            *int64            `json:"in_ms"`
	At            *int64            `json:"at_ms"`
	Spread        *int64            `json:"spread_ms"`
	Headers       map[string]string `json:"headers"`
	MaxAttempts   *int64            `json:"max_attempts"`
	RetryDelays   []int64           `json:"retry_delays_ms"`
	RetryFor      *int64            `json:"retry_for_ms"`
	MaxSnoozes    *int64            `json:"max_snoozes"`
	MaxCrashes    *int64            `json:"max_crashes"`
	Handler       *int64            `json:"handler_timeout_ms"`
	Expires       *int64            `json:"expires_ms"`
	Dedup         *int64            `json:"dedup_ms"`
	Replace       string            `json:"replace"`
	Key           *string           `json:"key"`
}

// parseLine reads an object of a batch.
func parseLine(text []byte) (m bridge.NewMessage, err error) {
	if !strings.HasPrefix(strings.ToValidUTF8(string(text[:min(len(text), 1)]), ""), "{") {
		return m, malformed("the line is not a JSON object")
	}
	if !utf8.Valid(text) { // the decoder would replace invalid bytes
		return m, malformed("the line is not UTF-8: payload_base64 takes any bytes")
	}
	var l line
	if err := ndjson.Decode(text, &l); err != nil {
		return m, malformed("the line is not an object of known fields: %s", shape(err))
	}
	return l.message()
}

// shape returns the part of a decoding error that tells where an object is wrong, without any value in it.
func shape(err error) string {
	text := err.Error()
	if field, _, found := strings.Cut(text, ":"); found && len(field) < 40 && !strings.ContainsAny(field, "\"'\\") {
		return field
	}
	if strings.HasPrefix(text, "unknown field") {
		return cut(text)
	}
	return "it cannot be read"
}

// parseOptions reads a message's options from the query.
func parseOptions(q query) (bridge.NewMessage, error) {
	if len(q) == 0 {
		return bridge.NewMessage{}, nil
	}
	l := line{ID: q["id"], Replace: q["replace"]}
	var errs []error
	for name, into := range map[string]**int64{"in_ms": &l.In, "at_ms": &l.At, "spread_ms": &l.Spread,
		"max_attempts": &l.MaxAttempts, "retry_for_ms": &l.RetryFor, "max_snoozes": &l.MaxSnoozes,
		"max_crashes": &l.MaxCrashes, "handler_timeout_ms": &l.Handler, "expires_ms": &l.Expires,
		"dedup_ms": &l.Dedup} {
		if text, is := q[name]; is {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				err = lua.Invalid(name, text, "must be a whole number")
			}
			*into, errs = &n, append(errs, err)
		}
	}
	if text, is := q["retry_delays_ms"]; is {
		for one := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseInt(one, 10, 64)
			if err != nil {
				err = lua.Invalid("retry_delays_ms", text, "must be whole numbers with commas between")
			}
			l.RetryDelays, errs = append(l.RetryDelays, n), append(errs, err)
		}
	}
	for _, name := range []string{"id", "key", "replace"} {
		if text, is := q[name]; is && text == "" {
			errs = append(errs, lua.Invalid(name, text, "must not be empty"))
		}
	}
	if key, is := q["key"]; is {
		l.Key = &key
	}
	if err := errors.Join(errs...); err != nil {
		return bridge.NewMessage{}, err
	}
	return l.message()
}

// message converts the line, and refuses values that would look like missing ones to package bridge.
func (l *line) message() (m bridge.NewMessage, err error) {
	var errs []error
	wrong := func(is bool, field, value, rule string) {
		if is {
			errs = append(errs, lua.Invalid(field, value, "%s", rule))
		}
	}
	span := func(field string, ms *int64) time.Duration {
		if ms == nil {
			return 0
		}
		d, err := duration(field, *ms)
		errs = append(errs, err)
		return d
	}
	instant := func(field string, ms *int64) time.Time {
		if ms == nil {
			return time.Time{}
		}
		errs = append(errs, lua.CheckTime(field, time.UnixMilli(*ms)))
		return time.UnixMilli(*ms)
	}
	count := func(field string, n *int64) int {
		if n == nil {
			return 0
		}
		wrong(*n < 1 || *n > lua.MaxAttemptsLimit, field, strconv.FormatInt(*n, 10), "must be between 1 and 1000000")
		return int(*n)
	}
	m = bridge.NewMessage{ID: l.ID, Headers: l.Headers, Delay: span("in_ms", l.In), At: instant("at_ms", l.At),
		Spread: span("spread_ms", l.Spread), MaxAttempts: count("max_attempts", l.MaxAttempts),
		RetryFor: span("retry_for_ms", l.RetryFor), MaxSnoozes: count("max_snoozes", l.MaxSnoozes),
		MaxCrashes: count("max_crashes", l.MaxCrashes), HandlerTimeout: span("handler_timeout_ms", l.Handler),
		Expires: instant("expires_ms", l.Expires),
		Dedup:   span("dedup_ms", l.Dedup)}
	wrong(l.In != nil && l.At != nil, "at_ms", "", "must not stand beside in_ms")
	if l.RetryDelays != nil {
		var all []time.Duration
		for i := range l.RetryDelays {
			all = append(all, span("retry_delays_ms", &l.RetryDelays[i]))
		}
		m.RetryDelays = bridge.NewDelays(all...)
	}
	switch l.Replace {
	case "":
	case "always":
		m.Replace = lua.Replace
	case "later":
		m.Replace = lua.ReplaceLater
	case "earlier":
		m.Replace = lua.ReplaceEarlier
	default:
		wrong(true, "replace", l.Replace, "must be always, later or earlier")
	}
	if l.Key != nil {
		m.Key = *l.Key
		errs = append(errs, lua.CheckKey(m.Key))
	}
	wrong(l.Payload != nil && l.PayloadBase64 != nil, "payload_base64", "", "must not stand beside payload")
	if l.PayloadBase64 != nil {
		m.Payload = *l.PayloadBase64
	} else {
		m.Payload = textOf(l.Payload)
	}
	return m, errors.Join(errs...)
}

// textOf returns the bytes of a JSON string, or the text of any other JSON value.
func textOf(value json.RawMessage) []byte {
	value = bytes.TrimSpace(value)
	var text string
	if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil {
		return []byte(text)
	}
	return value
}

func duration(field string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > lua.MaxDelay.Milliseconds() {
		return 0, lua.Invalid(field, strconv.FormatInt(ms, 10), "must be between 0 and %d (ten years)",
			lua.MaxDelay.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}
