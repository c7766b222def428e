package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/duestream/duestream/bridge"
)

// verdict is the next step of a row after its hand-over.
type verdict int

const (
	done      verdict = iota // delete the row
	waitQueue                // keep the row, and take no row of its queue for some time
	waitRow                  // keep the row, and take it again after some time
	stay                     // keep the row, which was not handed over
	refuse                   // keep the row with its error, until somebody decides
)

// verdictOf returns the next step of a row whose hand-over had this result.
func verdictOf(err error) verdict {
	switch {
	case err == nil:
		return done
	case errors.Is(err, errBehind):
		return stay
	case errors.Is(err, bridge.ErrNotDurable): // the next hand-over waits for the durability again
		return waitQueue
	case errors.Is(err, bridge.ErrDuplicate), errors.Is(err, bridge.ErrNotScheduled):
		return done
	case errors.Is(err, bridge.ErrInvalid):
		return refuse
	}
	for _, ofServer := range []error{
		bridge.ErrUnavailable, bridge.ErrFull, bridge.ErrDenied, bridge.ErrUntrusted, bridge.ErrUnsupported,
		bridge.ErrWrongType, bridge.ErrClosed, bridge.ErrUncertain, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, ofServer) {
			return waitQueue
		}
	}
	// ErrOldBridge concerns some messages of a queue only. An unknown error, or JSON of a newer release, may be the
	// fault of this row.
	return waitRow
}

// A row that waits for a reason of its own is handed over again after 1 s, 2 s, 4 s, …, one minute. After about an
// hour it is refused.
const (
	firstWait   = time.Second
	longestWait = time.Minute
	maxTries    = 60
)

// nextWait returns how long a row waits after this number of earlier tries.
func nextWait(tries int64) time.Duration {
	return min(longestWait, firstWait<<min(tries, 10))
}
