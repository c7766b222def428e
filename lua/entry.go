package lua

import (
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/redis/rueidis"
)

// Entry is a stream entry, a dead letter, or a scheduled message, as Go values.
type Entry struct {
	EntryID     string // ID in its stream; empty for a scheduled message
	ID          string // message ID; the entry ID if the entry has no field id
	Payload     []byte
	Headers     map[string]string // nil when there are none
	Attempt     int               // from 1
	Due         time.Time         // zero when the entry does not say
	MaxAttempts int               // 0 = by policy
	Expires     time.Time         // zero = never
	For         string            // group a retry is meant for; empty = all
	Error       string            // of the last failed attempt

	// Dead letters only.
	Group  string
	Reason string
	Dead   time.Time
	Entry  string // ID of the entry that failed

	// Unknown fields, unchanged.
	Extra map[string]string
}

// ParseEntry reads the fields of an entry. It accepts any bytes: a value that does not parse leaves the zero value
// (attempt: 1). Payload shares its memory with the field, which must not be used any more.
func ParseEntry(entryID string, fields []FieldValue) Entry {
	e := Entry{EntryID: entryID, ID: entryID, Attempt: 1}
	for _, f := range fields {
		e.set(f.Field, f.Value)
	}
	return e
}

// bytesOf returns the bytes of a string without a copy. Replies are allocated one by one, and belong to their receiver.
func bytesOf(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// FieldValue is one field of an entry.
type FieldValue = rueidis.XRangeFieldValue

func (e *Entry) set(name, value string) {
	switch name {
	case FieldID:
		e.ID = value
	case FieldPayload:
		e.Payload = bytesOf(value)
	case FieldAttempt:
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			e.Attempt = n
		}
	case FieldDue:
		e.Due = parseMillis(value)
	case FieldMaxAttempts:
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			e.MaxAttempts = n
		}
	case FieldExpires:
		e.Expires = parseMillis(value)
	case FieldFor:
		e.For = value
	case FieldError:
		e.Error = value
	case FieldGroup:
		e.Group = value
	case FieldReason:
		e.Reason = value
	case FieldDead:
		e.Dead = parseMillis(value)
	case FieldEntry:
		e.Entry = value
	default:
		if header, ok := strings.CutPrefix(name, HeaderPrefix); ok {
			setField(&e.Headers, header, value)
		} else {
			setField(&e.Extra, name, value)
		}
	}
}

func setField(m *map[string]string, k, v string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[k] = v
}

func parseMillis(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

// EntryTime returns the server's time at which an entry was added: the first part of its ID.
func EntryTime(entryID string) time.Time {
	ms, _, _ := strings.Cut(entryID, "-")
	return parseMillis(ms)
}
