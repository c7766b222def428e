package output

import (
	"time"
)

// ScheduledAt is the JSON of a scheduled message.
type ScheduledAt struct {
	ID    string    `json:"id"`
	Due   time.Time `json:"due"`
	DueMS int64     `json:"due_ms"`
}

// NewScheduledAt returns the JSON of a message that is due at a time.
func NewScheduledAt(id string, due time.Time) ScheduledAt {
	return ScheduledAt{id, due, due.UnixMilli()}
}
