package lua

import (
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/redis/rueidis"
)

// Entry is a message as Go values: a stream entry, or a scheduled message.
type Entry struct {
	EntryID     string // ID in its stream; empty for a scheduled message
	ID          string // message ID; the entry ID if the entry has no field id
	Payload     []byte
	Headers     map[string]string // nil when there are none
	Attempt     int               // from 1
	Due         time.Time         // zero = the entry does not say it
	MaxAttempts int               // the message's own limit; 0 = the policy's limit counts
	Expires     time.Time         // zero = never
	For         string            // the only group that a retry is for; empty = every group
	Error       string            // of the last failed attempt
	Extra       map[string]string // all other fields, unchanged
}

// Letter is a dead letter: the message as it failed, with the place and the reason of its failure.
type Letter struct {
	Entry
	Group       string
	Reason      string
	Dead        time.Time
	FailedEntry string // ID of the stream entry that failed
}

// ParseEntry reads the fields of a stream entry. It accepts any bytes: if a value does not parse, the field of the
// Entry keeps its zero value, or for Attempt the value 1. Payload shares its memory with the field, which must not be
// used any more.
func ParseEntry(entryID string, fields []FieldValue) Entry {
	e := Entry{EntryID: entryID, ID: entryID, Attempt: 1}
	for _, f := range fields {
		e.set(f.Field, f.Value)
	}
	return e
}

// ParseLetter reads the fields of a dead letter, as ParseEntry reads those of a stream entry. A letter belongs to its
// Group: it has no For.
func ParseLetter(entryID string, fields []FieldValue) Letter {
	l := Letter{Entry: ParseEntry(entryID, nil)}
	for _, f := range fields {
		switch f.Field {
		case FieldGroup:
			l.Group = f.Value
		case FieldReason:
			l.Reason = f.Value
		case FieldDead:
			l.Dead = parseMillis(f.Value)
		case FieldEntry:
			l.FailedEntry = f.Value
		case FieldFor:
			setField(&l.Extra, f.Field, f.Value)
		default:
			l.set(f.Field, f.Value)
		}
	}
	return l
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
