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

// heldTooLong is how long a delivery may be held by a consumer that extends it, until its handler may hang. usual is how long
// deliveries of the group took lately; nil: not known. Then a handler may take what the policy allows it, and no less than two
// minutes.
func heldTooLong(visibility, handlerTimeout time.Duration, usual *time.Duration) time.Duration {
	if usual == nil {
		return max(2*time.Minute, 4*visibility, handlerTimeout+visibility)
	}
	return max(time.Minute, 2*visibility, 10**usual)
}

// heldFound says how many entries are held for too long, and of the one that is held for longest by whom and for how long.
func heldFound(count int64, held time.Duration, consumer string, usual *time.Duration) string {
	found := fmt.Sprintf("%s held for long, the oldest by %s for %s", plural(count, "entry is", "entries are"), shown(consumer),
		held.Round(time.Second))
	if usual == nil {
		return found + "; how long deliveries usually take is not known"
	}
	return found + fmt.Sprintf("; deliveries usually take %s", usual.Round(time.Millisecond))
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
