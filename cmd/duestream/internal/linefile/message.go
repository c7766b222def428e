package linefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/ndjson"
)

// fileLine holds the fields that a line of a file may have.
type fileLine struct {
	ID            string            `json:"id"`
	Payload       json.RawMessage   `json:"payload"`
	PayloadBase64 *string           `json:"payload_base64"`
	In            *int64            `json:"in_ms"`
	At            *int64            `json:"at_ms"`
	Spread        *int64            `json:"spread_ms"`
	Headers       map[string]string `json:"headers"`
	MaxAttempts   *int              `json:"max_attempts"`
	RetryDelays   []int64           `json:"retry_delays_ms"`
	RetryFor      *int64            `json:"retry_for_ms"`
	MaxSnoozes    *int              `json:"max_snoozes"`
	MaxCrashes    *int              `json:"max_crashes"`
	Handler       *int64            `json:"handler_timeout_ms"`
	Expires       *int64            `json:"expires_ms"`
	Key           *string           `json:"key"`
}

// ParseMessage parses a line. Missing fields come from defaults. Headers of both are merged; the line's headers win.
// Single values are checked by ScheduleBatch.
func ParseMessage(line []byte, number int, defaults bridge.NewMessage) (m bridge.NewMessage, err error) {
	if !utf8.Valid(line) {
		return m, errors.New("is not UTF-8 (use payload_base64 for a binary payload)")
	}
	var l fileLine
	if err := ndjson.Decode(line, &l); err != nil {
		return m, err
	}
	m = defaults
	m.ID = l.ID
	if len(l.Headers) > 0 {
		m.Headers = maps.Clone(l.Headers)
		for name, value := range defaults.Headers {
			if _, own := l.Headers[name]; !own {
				m.Headers[name] = value
			}
		}
	}
	if m.Payload, err = Payload(l.Payload, l.PayloadBase64); err != nil {
		return m, err
	}
	switch {
	case l.In != nil && l.At != nil:
		return m, errors.New("in_ms and at_ms: only one may be given")
	case l.In != nil:
		m.At = time.Time{}
		if m.Delay, err = milliseconds("in_ms", *l.In); err != nil {
			return m, err
		}
	case l.At != nil:
		m.Delay, m.At = 0, time.UnixMilli(*l.At)
	}
	if l.Spread != nil {
		if m.Spread, err = milliseconds("spread_ms", *l.Spread); err != nil {
			return m, err
		}
	}
	if l.MaxAttempts != nil {
		m.MaxAttempts = *l.MaxAttempts
		if err := admin.CheckMaxAttempts(m.MaxAttempts); err != nil { // 0 in a message means: by the policy
			return m, err
		}
	}
	if err := l.setRetries(&m); err != nil {
		return m, err
	}
	if l.Expires != nil {
		m.Expires, m.ExpiresIn = time.UnixMilli(*l.Expires), 0
	}
	if l.Key != nil {
		m.Key = *l.Key
		if err := admin.CheckKey(m.Key); err != nil { // "" in a message means: no key
			return m, err
		}
	}
	if m.ID == "" {
		sum := sha256.Sum256(line)
		m.ID = fmt.Sprintf("line-%d-%s", number, hex.EncodeToString(sum[:16]))
	}
	return m, nil
}

// setRetries copies the retry fields of the line into the message.
func (l *fileLine) setRetries(m *bridge.NewMessage) (err error) {
	if l.RetryDelays != nil {
		var all []time.Duration
		for _, ms := range l.RetryDelays {
			d, err := milliseconds("retry_delays_ms", ms)
			if err != nil {
				return err
			}
			all = append(all, d)
		}
		m.RetryDelays = bridge.NewDelays(all...)
	}
	if l.RetryFor != nil {
		if m.RetryFor, err = milliseconds("retry_for_ms", *l.RetryFor); err != nil {
			return err
		}
	}
	if l.MaxSnoozes != nil {
		m.MaxSnoozes = *l.MaxSnoozes
	}
	if l.MaxCrashes != nil {
		m.MaxCrashes = *l.MaxCrashes
	}
	if l.Handler != nil {
		if m.HandlerTimeout, err = milliseconds("handler_timeout_ms", *l.Handler); err != nil {
			return err
		}
	}
	return nil
}

// milliseconds converts ms to a duration. It refuses a number that does not fit.
func milliseconds(field string, ms int64) (time.Duration, error) {
	d := time.Duration(ms) * time.Millisecond
	if d.Milliseconds() != ms {
		return 0, fmt.Errorf("%s %d: is out of range", field, ms)
	}
	return d, admin.CheckDelay(field, d)
}

// Payload returns the payload of a line: the bytes of a string, the bytes that base64 text stands for, or any
// other JSON in its compact form.
func Payload(payload json.RawMessage, inBase64 *string) ([]byte, error) {
	switch {
	case payload != nil && inBase64 != nil:
		return nil, errors.New("payload and payload_base64: only one may be given")
	case inBase64 != nil:
		decoded, err := base64.StdEncoding.DecodeString(*inBase64)
		if err != nil {
			return nil, fmt.Errorf("payload_base64: is not base64: %w", err)
		}
		return decoded, nil
	case len(payload) > 0 && payload[0] == '"':
		var text string
		err := json.Unmarshal(payload, &text)
		return []byte(text), err
	}
	var compact bytes.Buffer
	if len(payload) > 0 {
		if err := json.Compact(&compact, payload); err != nil {
			return nil, err
		}
	}
	return compact.Bytes(), nil
}
