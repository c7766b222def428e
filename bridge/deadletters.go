package bridge

import (
	"github.com/duestream/duestream/stream/deadletter"
)

// LetterGroup counts the dead letters that one group gave up for one reason with one error: what DeadLetters.Summarize returns.
type LetterGroup = deadletter.LetterGroup
