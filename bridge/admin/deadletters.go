package admin

import (
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/deadletter"
)

// LetterGroup counts the dead letters that one group gave up for one reason with one error: what DeadLetters.Summarize returns.
type LetterGroup = deadletter.LetterGroup

// DeadLetters reads, redrives and purges the dead letters of queues.
type DeadLetters = deadletter.DeadLetters

// DeadLetters returns the dead letters of a prefix.
func (a *Admin) DeadLetters() *DeadLetters {
	return deadletter.New(a.redis.Client, a.prefix)
}

// What DeadLetters takes and returns.
type (
	Letter         = deadletter.Letter
	LetterFilter   = deadletter.Filter
	RedriveOptions = deadletter.RedriveOptions
	RedriveResult  = deadletter.RedriveResult
	Payload        = view.Payload
)
