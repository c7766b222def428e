package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/message"
	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
)

// row is a row that a relay has taken.
type row struct {
	seq       int64
	operation string
	queue, id string
	size      int64         // of text
	text      string        // JSON of the message
	age       time.Duration // since the statement that wrote the row, by the clock of the database
	tries     int64
	key       string // ordering key; "" = none

	// Numbers of the waiting rows just before this one with its ID and with its ordering key; 0 = there is none.
	beforeOfID, beforeOfKey int64
}

// names returns the ID and the ordering key of a row, each with its kind.
func (r *row) names() []string {
	if r.key == "" {
		return []string{"id " + r.id}
	}
	return []string{"id " + r.id, "key " + r.key}
}

// stored is the JSON of a message in a row. It is the JSON of a message in a batch, and has a relative expiry besides.
type stored struct {
	message.Line
	ExpiresIn *int64 `json:"expires_in_ms,omitempty"`
}

// encode returns the JSON of a message.
func encode(m bridge.NewMessage) (string, error) {
	s := stored{Line: message.LineOf(m)}
	if m.ExpiresIn != 0 {
		s.ExpiresIn = message.Milliseconds(m.ExpiresIn)
	}
	text, err := json.Marshal(s)
	return string(text), err
}

// message returns the message of a row. Its relative times are shortened by the age of the row. An error without
// ErrInvalid may mean that a newer release wrote the row.
func (r *row) message() (bridge.NewMessage, error) {
	var s stored
	if err := ndjson.Decode([]byte(r.text), &s); err != nil {
		return bridge.NewMessage{}, fmt.Errorf("the JSON of the message cannot be read: %w", err)
	}
	m, err := s.Message(bridge.NewMessage{})
	if err != nil {
		return m, err
	}
	if m.ID != r.id {
		return m, lua.Invalid("id", m.ID, "must be the id of the row, %q", r.id)
	}
	if s.ExpiresIn != nil {
		m.ExpiresIn = time.Duration(*s.ExpiresIn) * time.Millisecond
		if err := lua.CheckDelay("expires_in_ms", m.ExpiresIn); err != nil {
			return m, err
		}
	}
	return after(m, max(0, r.age)), nil
}

// longAgo is an expiry that has passed by every clock.
var longAgo = time.UnixMilli(1e12)

// after returns the message that a relay sends when the program has asked for it this long ago.
func after(m bridge.NewMessage, age time.Duration) bridge.NewMessage {
	if m.At.IsZero() {
		m.Delay = max(0, m.Delay+lua.SpreadOf(m.ID, m.Spread)-age)
		m.Spread = 0
	}
	if m.ExpiresIn == 0 {
		return m
	}
	if m.ExpiresIn -= age; m.ExpiresIn <= 0 { // it becomes a dead letter as soon as it is ready
		m.ExpiresIn, m.Expires, m.At, m.Delay, m.Spread = 0, longAgo, time.Time{}, 0, 0
	}
	return m
}
