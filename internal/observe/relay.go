package observe

import (
	"context"
	"time"
)

// RelayObserver is an Observer that also follows the relays of outboxes.
type RelayObserver interface {
	// RelayStarted is called when a relay begins to run. ended is called when it has ended; nil = not of interest.
	RelayStarted(RelayView) (ended func())
}

// RelayView is what an observer may read about a running relay.
type RelayView struct {
	Table  string                                       // the name of the table, with or without a schema
	Rows   func(ctx context.Context) (RelayRows, error) // reads the whole table
	Counts func() RelayCounts                           // touches nothing
}

// RelayRows are the rows of an outbox.
type RelayRows struct {
	Waiting, Failed int
	Oldest          time.Duration // age of the oldest waiting row; 0 = none waits
}

// RelayCounts are the rows that a relay has settled since it was made.
type RelayCounts struct{ Scheduled, Cancelled, Duplicates, TooLate, Refused, PutOff int64 }
