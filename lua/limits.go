package lua

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of arguments. They are checked before Redis is asked.
const (
	MaxQueueBytes       = 128
	MaxPrefixBytes      = 128
	MaxGroupBytes       = 256
	MaxIDBytes          = 256
	MaxPayloadBytes     = 16 << 20
	MaxHeaders          = 64
	MaxHeaderNameBytes  = 128
	MaxHeaderValueBytes = 8 << 10
	MaxHeaderBytes      = 32 << 10 // names and values together
	MaxErrorBytes       = 1 << 10
	MaxAttemptsLimit    = 1_000_000
	MaxRecurrenceBytes  = 200 // of a name: an ID is the name and at most 18 bytes more
	MaxDelay            = 10 * 365 * 24 * time.Hour
	MaxBatch            = 100_000
	MaxSearchTextBytes  = 256 // of a part of payloads that is searched; a longer one makes a call slower
)

// ErrInvalid is in the chain of every *InvalidError.
var ErrInvalid = errors.New("invalid")

// InvalidError says which field was refused, its value (shortened) and the rule it broke.
type InvalidError struct{ Field, Value, Rule string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule)
}

// Unwrap returns ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// Invalid returns an *InvalidError with the value quoted and cut to 64 bytes.
func Invalid(field, value, rule string, args ...any) error {
	if len(value) > 64 {
		value = fmt.Sprintf("%.64q… (%d bytes)", value[:64], len(value))
	} else {
		value = fmt.Sprintf("%q", value)
	}
	return &InvalidError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
}

var prefixName = regexp.MustCompile(`^[A-Za-z0-9._:/-]+$`)

// CheckQueue refuses queue names that are not 1 to 128 of A-Z a-z 0-9 . _ : -
func CheckQueue(name string) error {
	if len(name) > MaxQueueBytes || !isQueueName(name) {
		return Invalid("queue", name, "must be 1 to %d characters of A-Z a-z 0-9 . _ : -", MaxQueueBytes)
	}
	return nil
}

// isQueueName matches ^[A-Za-z0-9._:-]+$ without a regular expression, because every call that names a queue runs it.
func isQueueName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._:-", c) >= 0) {
			return false
		}
	}
	return name != ""
}

// CheckPrefix refuses key prefixes that are not 1 to 128 of A-Z a-z 0-9 . _ : / -
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxPrefixBytes || !prefixName.MatchString(prefix) {
		return Invalid("prefix", prefix, "must be 1 to %d characters of A-Z a-z 0-9 . _ : / -", MaxPrefixBytes)
	}
	return nil
}

// CheckGroup refuses group names that are empty, longer than 256 bytes, not UTF-8, or hold control characters.
func CheckGroup(group string) error { return checkText("group", group, MaxGroupBytes) }

// CheckID refuses message IDs that are empty, longer than 256 bytes, not UTF-8, or hold control characters.
func CheckID(id string) error { return checkText("id", id, MaxIDBytes) }

// CheckKey refuses keys of messages that are empty, longer than 256 bytes, not UTF-8, or hold control characters.
func CheckKey(key string) error { return checkText("key", key, MaxIDBytes) }

// CheckConsumer refuses consumer names that are empty, longer than 256 bytes, not UTF-8, or hold control characters.
func CheckConsumer(name string) error { return checkText("consumer", name, MaxGroupBytes) }

// CheckActor refuses names of actors that are empty, longer than 256 bytes, not UTF-8, or hold control characters.
func CheckActor(name string) error { return checkText("name", name, MaxGroupBytes) }

// CheckRecurrence refuses names of recurrences that are empty, longer than 200 bytes, not UTF-8, or hold control
// characters.
func CheckRecurrence(name string) error { return checkText("name", name, MaxRecurrenceBytes) }

func checkText(field, value string, most int) error {
	switch {
	case value == "":
		return Invalid(field, value, "must not be empty")
	case len(value) > most:
		return Invalid(field, value, "must be at most %d bytes", most)
	case !utf8.ValidString(value):
		return Invalid(field, value, "must be UTF-8")
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Invalid(field, value, "must not hold control characters")
	}
	return nil
}

// CheckPayload refuses payloads larger than 16 MiB. Any bytes pass; empty is allowed.
func CheckPayload(payload []byte) error {
	if len(payload) > MaxPayloadBytes {
		return &InvalidError{"payload", fmt.Sprintf("of %d bytes", len(payload)), fmt.Sprintf("must be at most %d bytes",
			MaxPayloadBytes)}
	}
	return nil
}

// CheckHeaders refuses more than 64 headers, names that are empty, longer than 128 bytes or hold control characters,
// values longer than 8 KiB, more than 32 KiB together, and text that is not UTF-8.
func CheckHeaders(headers map[string]string) error {
	if len(headers) > MaxHeaders {
		return Invalid("headers", fmt.Sprint(len(headers)), "must be at most %d", MaxHeaders)
	}
	total := 0
	for name, value := range headers {
		if err := checkText("header name", name, MaxHeaderNameBytes); err != nil {
			return err
		}
		if !utf8.ValidString(value) {
			return Invalid("header "+name, value, "must be UTF-8")
		}
		if len(value) > MaxHeaderValueBytes {
			return Invalid("header "+name, value, "must be at most %d bytes", MaxHeaderValueBytes)
		}
		total += len(name) + len(value)
	}
	if total > MaxHeaderBytes {
		return Invalid("headers", fmt.Sprint(total, " bytes"), "must be at most %d bytes together", MaxHeaderBytes)
	}
	return nil
}

// CheckDelay refuses delays that are negative or longer than ten years.
func CheckDelay(field string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return Invalid(field, d.String(), "must be between 0 and 3650d (ten years)")
	}
	return nil
}

// CheckTime refuses times before 2001 (a sign of seconds given as milliseconds) and later than year 2286.
func CheckTime(field string, t time.Time) error {
	if ms := t.UnixMilli(); ms < 1e12 || ms > 1e13 {
		return Invalid(field, t.UTC().Format(time.RFC3339), "must be between 2001-09-09 and 2286-11-20")
	}
	return nil
}

// CheckMaxAttempts refuses attempt limits below 1 or above 1,000,000.
func CheckMaxAttempts(n int) error {
	if n < 1 || n > MaxAttemptsLimit {
		return Invalid("max_attempts", fmt.Sprint(n), "must be between 1 and %d", MaxAttemptsLimit)
	}
	return nil
}

// CutText returns s as an error field holds it: UTF-8, at most 1 KiB.
func CutText(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > MaxErrorBytes {
		s = s[:MaxErrorBytes]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}
