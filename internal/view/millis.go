package view

import (
	"encoding/json"
	"time"
)

// Millis is a duration that is written as whole milliseconds.
type Millis time.Duration

// String returns the duration as text.
func (m Millis) String() string { return time.Duration(m).String() }

// MarshalJSON writes whole milliseconds.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

// UnmarshalJSON reads whole milliseconds.
func (m *Millis) UnmarshalJSON(text []byte) error {
	var n int64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	*m = Millis(time.Duration(n) * time.Millisecond)
	return nil
}
