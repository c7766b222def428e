package lua

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// CancelledMark is added to the delivery counter of a pending entry, the last number of XPENDING, when its message is
// cancelled while a consumer holds it. TestCancelMarkMatchesTheScripts compares it with the scripts.
const CancelledMark = 1_000_000_000_000

// leastCancelled is the smallest delivery counter of a cancelled delivery. It is below CancelledMark, because each
// XNACK with SILENT subtracts one from the counter, and a worker may repeat this command after a lost reply.
const leastCancelled = CancelledMark / 2

// fatalFrom is the smallest delivery counter that says that a worker gave the message up by XNACK with FATAL. The
// command sets the counter to 2^63 - 1. A claim adds one, and on some servers the counter is then negative.
const fatalFrom = 9_000_000_000_000_000_000

// Deliveries decodes a delivery counter: how often the entry was delivered, and whether its message was cancelled
// meanwhile. n is math.MaxInt64 if a worker gave the message up by XNACK with FATAL.
func Deliveries(counter int64) (n int64, cancelled bool) {
	switch {
	case counter >= fatalFrom || counter < 0:
		return math.MaxInt64, false
	case counter >= leastCancelled:
		return max(0, counter-CancelledMark), true
	}
	return counter, false
}

// GivenBack reports whether a worker gave a pending entry back by XNACK, so that no consumer holds the entry until a
// bridge takes it. consumer and idle are values of XPENDING. If the entry was given back, consumer is empty, and idle
// is -1 ms or counts from 1970. If a consumer with an empty name holds the entry, idle is shorter.
func GivenBack(consumer string, idle time.Duration) bool {
	return consumer == "" && (idle < 0 || idle >= 1e12*time.Millisecond)
}

// EntryVerdict is the result of CancelEntries for one entry.
type EntryVerdict string

// Verdicts of CancelEntries.
const (
	EntryCancelled EntryVerdict = "1" // the entry will not be delivered
	// EntryCancelling: a consumer holds the entry, and learns of the cancellation when it next extends the entry.
	EntryCancelling EntryVerdict = "2"
	EntryUnread     EntryVerdict = "3" // not cancelled: the group has not read the entry yet, and another group needs it
)

// FoundEntry is an entry that CancelEntries found, for one group or for every group.
type FoundEntry struct {
	Entry    string
	ID       string // of the message
	Group    string // "" = every group
	Verdict  EntryVerdict
	Consumer string // with EntryCancelling: the consumer that holds the entry
}

// EntryWalk is one step of a walk through a stream. Each step may use another connection. An empty Cursor begins a
// walk.
type EntryWalk struct {
	Cursor string // entry ID to go on from
	Last   string // entry ID of the last entry to look at; "" = the newest one when the step is executed
	Limit  int    // entries to look at in this step
	Group  string // "" = every group
}

var cancelEntriesScript = load("cancel_entries",
	[]string{"stream", "due", "seen", "wake", "turns", "policy", "history"}, []string{"cursor", "last", "limit", "group"},
	[]string{"id"})

// CancelEntries is a step of a walk that cancels the messages with the given IDs in a stream. It deletes an entry that
// no group holds. If a consumer holds an entry, it marks the delivery: Extend then answers HeldCancelled, and the
// message ends, whatever the consumer does with it. For a single group, it deletes an entry only if no other group
// needs it. It returns the next step, whose Cursor is "" when all entries up to Last were looked at.
func CancelEntries(ctx context.Context, c rueidis.Client, k Keys, w EntryWalk, ids []string,
	d Durability) (next EntryWalk, found []FoundEntry, err error) {
	if w.Cursor == "" {
		w.Cursor = "0-0"
	}
	args := append([]string{w.Cursor, w.Last, strconv.Itoa(w.Limit), w.Group}, ids...)
	s := cancelEntriesScript
	reply, waited := s.runFor(ctx, c, []string{k.Stream, k.Due, k.Seen, k.Wake, k.Turns, k.Policy, k.History},
		append(args, k.Actor), d)
	if waited != nil && !errors.Is(waited, ErrNotDurable) {
		return w, nil, waited
	}
	words, err := reply.AsStrSlice()
	if err == nil && (len(words) < 2 || len(words)%5 != 2) {
		err = fmt.Errorf("%d values", len(words))
	}
	if err != nil {
		return w, nil, s.unexpected(err)
	}
	for i := 2; i < len(words); i += 5 {
		found = append(found, FoundEntry{words[i], words[i+1], words[i+2], EntryVerdict(words[i+3]), words[i+4]})
	}
	w.Cursor, w.Last = words[0], words[1]
	return w, found, waited
}
