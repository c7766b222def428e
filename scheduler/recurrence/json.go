package recurrence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

// wire is the JSON form of a Spec. Integers with _ms are milliseconds; points in time are Unix milliseconds.
type wire struct {
	Name          string            `json:"name,omitempty"`
	Queue         string            `json:"queue,omitempty"`
	Cron          string            `json:"cron,omitempty"`
	Zone          string            `json:"zone,omitempty"`
	EveryMS       int64             `json:"every_ms,omitempty"`
	PhaseMS       int64             `json:"phase_ms,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`        // a string gives its bytes, other JSON its text
	PayloadBase64 []byte            `json:"payload_base64,omitempty"` // the payload if it is not UTF-8
	Headers       map[string]string `json:"headers,omitempty"`
	StartMS       int64             `json:"start_ms,omitempty"`
	EndMS         int64             `json:"end_ms,omitempty"`
	Count         int               `json:"count,omitempty"`
	JitterMS      int64             `json:"jitter_ms,omitempty"`
	Missed        Missed            `json:"missed,omitempty"`
	Overlap       Overlap           `json:"overlap,omitempty"`
	Paused        bool              `json:"paused,omitempty"`
	Owner         string            `json:"owner,omitempty"`
}

// MarshalJSON returns the form stored in Redis.
func (s Spec) MarshalJSON() ([]byte, error) {
	s = s.WithDefaults()
	w := wire{
		Name: s.Name, Queue: s.Queue, Cron: s.Cron, Zone: s.Zone, EveryMS: s.Every.Milliseconds(),
		PhaseMS: s.Phase.Milliseconds(), Headers: s.Headers, StartMS: unixMS(s.Start), EndMS: unixMS(s.End), Count: s.Count,
		JitterMS: s.Jitter.Milliseconds(), Missed: s.Missed, Overlap: s.Overlap, Paused: s.Paused, Owner: s.Owner,
	}
	switch {
	case len(s.Payload) == 0:
	case utf8.Valid(s.Payload):
		text, err := encode(string(s.Payload))
		if err != nil {
			return nil, err
		}
		w.Payload = text
	default:
		w.PayloadBase64 = s.Payload
	}
	return encode(w)
}

// encode is json.Marshal without escaping < and >.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// UnmarshalJSON parses the form of MarshalJSON. It refuses unknown fields, because a field of a newer release would
// otherwise be dropped silently.
func (s *Spec) UnmarshalJSON(text []byte) error {
	var w wire
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return fmt.Errorf("%w recurrence: %w", lua.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return lua.Invalid("recurrence", string(text), "must be one JSON object")
	}
	errs := refuseReplaced(text)
	millis := func(field string, n int64) time.Duration {
		if n < 0 || n > lua.MaxDelay.Milliseconds() {
			errs = append(errs, lua.Invalid(field, fmt.Sprint(n), "must be between 0 and %d (ten years)",
				lua.MaxDelay.Milliseconds()))
			return 0
		}
		return time.Duration(n) * time.Millisecond
	}
	instant := func(field string, n int64) time.Time {
		if n == 0 {
			return time.Time{}
		}
		if n < 1e12 || n > 1e13 {
			errs = append(errs, lua.Invalid(field, fmt.Sprint(n), "must be Unix milliseconds, between 2001-09-09 and 2286-11-20"))
			return time.Time{}
		}
		return time.UnixMilli(n).UTC()
	}
	*s = Spec{
		Name: w.Name, Queue: w.Queue, Cron: w.Cron, Zone: w.Zone, Every: millis("every_ms", w.EveryMS),
		Phase: millis("phase_ms", w.PhaseMS), Headers: w.Headers, Start: instant("start_ms", w.StartMS),
		End: instant("end_ms", w.EndMS), Count: w.Count, Jitter: millis("jitter_ms", w.JitterMS), Missed: w.Missed,
		Overlap: w.Overlap, Paused: w.Paused, Owner: w.Owner, Payload: w.PayloadBase64,
	}
	if w.Payload != nil {
		if w.PayloadBase64 != nil {
			errs = append(errs, lua.Invalid("payload_base64", "", "must not be given beside payload"))
		}
		s.Payload = payloadOf(w.Payload)
	}
	return errors.Join(errs...)
}

// refuseReplaced returns an error for each field whose bytes the JSON decoder would change silently: invalid UTF-8 in a
// string, or half of a UTF-16 surrogate pair. A payload that is not a string is taken as its text, byte for byte.
func refuseReplaced(text []byte) (errs []error) {
	var raw map[string]json.RawMessage
	if json.Unmarshal(text, &raw) != nil {
		return nil
	}
	for _, field := range slices.Sorted(maps.Keys(raw)) {
		value := raw[field]
		if field == "payload" && value[0] != '"' {
			continue
		}
		if utf8.Valid(value) && !lua.HasHalfCharacter(value) {
			continue
		}
		rule := "must be UTF-8"
		if field == "payload" {
			rule = "must be UTF-8; payload_base64 takes any bytes"
		}
		errs = append(errs, lua.Invalid(field, string(value), "%s", rule))
	}
	return errs
}

// payloadOf returns the payload from its JSON form: the bytes of a string, the compact text of other JSON, or nil for
// null.
func payloadOf(value json.RawMessage) []byte {
	var text string
	if json.Unmarshal(value, &text) == nil && value[0] == '"' {
		return []byte(text)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil || compact.String() == "null" {
		return nil
	}
	return compact.Bytes()
}
