package doctor

import (
	"fmt"
	"time"
)

// This file holds the rules that Examine and Advise share.

// waitingCheck returns the defect of a group for which entries wait, or nil if there is no defect. oldest is the age of
// the oldest waiting entry. unread is how long entries have waited while no consumer of the group read.
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

// forTarget returns the check to report for a group whose entries wait, and advice that replaces the check's own; ""
// keeps the check's advice. It never advises to destroy a group that has, or may have, a target: the partner would lose
// its messages. known is false if it is unknown whether the group has a target.
func forTarget(c *Check, has, known bool) (check *Check, do string) {
	switch {
	case has:
		return targetBehind, ""
	case !known && c == noConsumer:
		return c, "run a worker"
	}
	return c, ""
}

// slowAfter is how long the workers of a group may need for what waits.
const slowAfter = 10 * time.Minute

// tooSlow returns the text of a finding if the workers of a group are too slow, else "". It also returns "" if no entry
// has waited for nobodyReads, or if no delivery has ended, because the speed is then unknown.
func tooSlow(lag, consumers int64, waiting time.Duration, r Rates, target bool) string {
	if lag == 0 || waiting < nobodyReads || r.Done <= 0 {
		return ""
	}
	seconds := float64(lag) / (r.Done - r.Ready) // until nothing waits
	who := plural(consumers, "consumer does", "consumers do")
	if target {
		who = "the target takes"
	}
	found := fmt.Sprintf("%s %.3g/s, and %.3g/s become ready: ", who, r.Done, r.Ready)
	switch {
	case r.Done <= r.Ready || seconds > 100*time.Hour.Seconds():
		return found + "at this rate they never catch up"
	case seconds > slowAfter.Seconds():
		return found + fmt.Sprintf("at this rate they catch up in %s",
			time.Duration(seconds*float64(time.Second)).Round(time.Minute))
	}
	return ""
}

// heldTooLong returns for how long a consumer may hold and extend a delivery before its handler is suspected to hang.
// usual is how long recent deliveries of the group took. If usual is unknown (nil), the bound follows from the
// visibility timeout and the policy's HandlerTimeout, and is at least two minutes.
func heldTooLong(visibility, handlerTimeout time.Duration, usual *time.Duration) time.Duration {
	if usual == nil {
		return max(2*time.Minute, 4*visibility, handlerTimeout+visibility)
	}
	return max(time.Minute, 2*visibility, 10**usual)
}

// heldFound returns the text of a finding: how many entries are held for too long, and for the longest of them the
// consumer and the time.
func heldFound(count int64, held time.Duration, consumer string, usual *time.Duration) string {
	found := fmt.Sprintf("%s held for long, the oldest by %s for %s", plural(count, "entry is", "entries are"),
		shown(consumer),
		held.Round(time.Second))
	if usual == nil {
		return found + "; how long deliveries usually take is not known"
	}
	return found + fmt.Sprintf("; deliveries usually end within %s", usual.Round(time.Millisecond))
}

// abandonedAfter returns the idle time of a pending entry by which a bridge should have reclaimed it. It is more than
// the visibility timeout, because a bridge reclaims nothing for one visibility timeout after its start.
func abandonedAfter(visibility time.Duration) time.Duration { return 3*visibility + reclaimSlack }

// overdueAfter returns how late messages may be while a bridge serves the given number of partitions.
func overdueAfter(partitions int) time.Duration {
	return overdueSlack + time.Duration(partitions/100)*time.Second
}

// recentLetter returns the text of a finding: the number of dead letters, and the age of a recent one.
func recentLetter(letters string, age time.Duration) string {
	return fmt.Sprintf("%s, one came %s ago", letters, max(0, age).Round(time.Second))
}
