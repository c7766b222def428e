package bridgetest

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Match is a condition on a message. Functions such as ID and DueIn make one.
type Match struct {
	text  string // for failures
	holds func(k *Kit, m *stored) (bool, error)
}

// ID matches the message with this ID.
func ID(id string) Match {
	return Match{fmt.Sprintf("ID %q", id), func(_ *Kit, m *stored) (bool, error) { return m.ID == id, nil }}
}

// DueIn matches messages that are due exactly d after the time of the kit, to the millisecond.
func DueIn(d time.Duration) Match {
	return Match{"due in " + d.String(), func(k *Kit, m *stored) (bool, error) {
		return m.Due.Equal(k.Now().Add(d).Truncate(time.Millisecond)), nil
	}}
}

// DueAt matches messages that are due exactly at t, to the millisecond.
func DueAt(t time.Time) Match {
	return Match{"due at " + t.Format(time.RFC3339Nano), func(_ *Kit, m *stored) (bool, error) {
		return m.Due.Equal(t.Truncate(time.Millisecond)), nil
	}}
}

// Attempt matches messages whose next or present delivery is the attempt n, from 1.
func Attempt(n int) Match {
	return Match{fmt.Sprintf("attempt %d", n), func(_ *Kit, m *stored) (bool, error) { return m.Attempt == n, nil }}
}

// Header matches messages with this header.
func Header(name, value string) Match {
	return Match{fmt.Sprintf("header %s=%q", name, value), func(_ *Kit, m *stored) (bool, error) {
		got, ok := m.Headers[name]
		return ok && got == value, nil
	}}
}

// Payload matches messages with this payload.
func Payload(payload string) Match {
	return Match{fmt.Sprintf("payload %q", payload), func(_ *Kit, m *stored) (bool, error) {
		return string(m.Payload) == payload, nil
	}}
}

// Where matches a message if the function returns true for its value. It matches no message whose payload does not fit
// the kind. T must be the type of the kind in the search. The text describes the condition in failures, for example "of
// order 42".
func Where[T any](text string, is func(value T) bool) Match {
	return Match{text, func(_ *Kit, m *stored) (bool, error) {
		value, ok := m.value.(T)
		switch {
		case m.value == nil:
			return false, nil
		case !ok:
			return false, fmt.Errorf("Where(%q) needs a %T, and the kind has a %T", text, value, m.value)
		}
		return is(value), nil
	}}
}

// stored is a message that is somewhere in a queue, or a dead letter.
type stored struct {
	lua.Entry
	state  State
	group  string // the only group that a retry is for, or the group of a dead letter
	reason string // of a dead letter
	value  any    // the decoded payload; nil if it does not fit the kind
}

// kind returns the name of the message's kind.
func (m *stored) kind() string { return m.Headers[bridge.KindHeader] }

// describe returns a line about the message for a failure.
func (m *stored) describe(k *Kit) string {
	text := fmt.Sprintf("%q %s", m.ID, m.state)
	if m.state == Scheduled || m.state == Waiting {
		text += fmt.Sprintf(", due in %s", m.Due.Sub(k.Now()))
	}
	if name := m.kind(); name != "" {
		text += fmt.Sprintf(", kind %q", name)
	}
	if m.group != "" {
		text += fmt.Sprintf(", group %q", m.group)
	}
	if m.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", m.Attempt)
	}
	if m.reason != "" {
		text += ", reason " + m.reason
	}
	if m.Error != "" {
		text += fmt.Sprintf(", error %.200q", m.Error)
	}
	return text + fmt.Sprintf(", payload %.200q", m.Payload)
}
