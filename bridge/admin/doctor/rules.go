package doctor

import (
	"fmt"
	"time"
)

// This file holds the rules by which an examination and Advise judge alike.

// waitingCheck says what is wrong with a group for which entries wait: the oldest for so long, and for as long as unread while
// none of its consumers read. Nil: nothing.
func waitingCheck(consumers int, oldest, unread, visibility time.Duration) *Check {
	switch patience := max(nobodyReads, 2*visibility); {
	case oldest < nobodyReads:
		return nil
	case consumers == 0:
		return noConsumer
	case unread > patience:
		return notRead
	case oldest > longWait:
		return behind
	}
	return nil
}

// abandonedAfter is how long an entry may be pending without a sign of life, until a bridge should have taken it back.
func abandonedAfter(visibility time.Duration) time.Duration { return 3*visibility + reclaimSlack }

// overdueAfter is how late messages may be while a bridge serves so many partitions.
func overdueAfter(partitions int) time.Duration {
	return overdueSlack + time.Duration(partitions/100)*time.Second
}

// recentLetter says how long ago one of so many dead letters came.
func recentLetter(letters string, age time.Duration) string {
	return fmt.Sprintf("%s, one came %s ago", letters, max(0, age).Round(time.Second))
}
