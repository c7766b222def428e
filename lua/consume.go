package lua

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Held names an entry that a consumer holds. ID is the message ID with which the entry was delivered. The scripts
// compare it with the message ID in the entry, because after a failover an entry ID may stand for another message; if
// ID is "", they do not compare it. Key is the message's ordering key, "" if it has none.
type Held struct{ Entry, ID, Key string }

var ackScript = load("ack", []string{"stream", "due", "wake", "turns", "policy", "history"},
	[]string{"group"}, []string{"entry", "id"})

// Ack acknowledges entries, and frees those that no other group needs. False means lost: the entry was no longer
// pending. One round trip, and one more for each 1 MiB of entries whose ID is compared.
func Ack(ctx context.Context, c rueidis.Client, k Keys, group string, held []Held) ([]bool, error) {
	reply, err := inParts(held, func(held []Held) ([]int64, error) {
		args := append(make([]string, 0, 2+2*len(held)), group)
		for _, h := range held {
			id := h.ID
			if strings.Contains(h.Key, Separator) { // another program wrote this key, and no message waits for such a key
				h.Key = ""
			}
			// A message ID that itself begins with Separator is sent in the long form, too, so that the script does not
			// take its beginning for an ordering key.
			if h.Key != "" || strings.HasPrefix(id, Separator) {
				id = Separator + h.Key + Separator + id
			}
			args = append(args, h.Entry, id)
		}
		return ackScript.integers(ctx, c, []string{k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History},
			append(args, k.Actor),
			len(held), Durability{})
	})
	return truths(reply), err
}

// Outcome is the result of Retry for one entry.
type Outcome int

// Outcomes of Retry.
const (
	Stuck    Outcome = -1 // still pending, because the dead-letter stream refused the entry
	Lost     Outcome = 0  // the entry was not pending any more, or carries another message
	Retried  Outcome = 1
	Dead     Outcome = 2 // dead-lettered
	Released Outcome = 3
	Skipped  Outcome = 4 // acknowledged without a retry, because the entry was for another group
	Snoozed  Outcome = 5

	// CancelledOut: the message was cancelled while a consumer held it. It is not delivered to the group again.
	CancelledOut Outcome = 6
)

// Action says how an entry leaves the pending list.
type Action string

// Actions of a Failure.
const (
	ActionRetry   Action = "retry"   // attempt + 1 after a delay, or a dead letter when attempts are used up
	ActionDead    Action = "dead"    // a dead letter at once
	ActionRelease Action = "release" // again at once, with the same attempt
	ActionSnooze  Action = "snooze"  // again after a delay with the same attempt, or a dead letter
	ActionCancel  Action = "cancel"  // never again, because the message was cancelled
)

// Failure is one entry to take out of a pending list.
type Failure struct {
	Held
	Action Action
	Delay  time.Duration // used by ActionRetry (negative = the policy's delay) and ActionSnooze
	Reason string        // one of the Reason constants, for the dead letter
	Error  string        // at most 1 KiB is kept
	Trace  string        // traceparent of the attempt, kept in FieldLastTrace; "" = none; a malformed one is not kept

	// Progress is the cursor of the attempt, kept in FieldProgress. Empty = the next attempt begins anew; nil = the
	// attempt stored none, so that the next one gets the cursor of the attempt before.
	Progress []byte
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// action returns the script's argument action: the name of the action, and the traceparent and the progress if there
// are any.
func (f *Failure) action() string {
	action := string(f.Action)
	if traceparent.MatchString(f.Trace) {
		action += " " + f.Trace
	}
	if f.Progress != nil {
		action += "\n" + string(f.Progress)
	}
	return action
}

// Attempts is the retry policy that the scripts need. Other fields than Max and Delays are not sent if they are zero.
type Attempts struct {
	Max    int             // how many attempts a message has
	Delays []time.Duration // the i-th is the delay after the i-th failed attempt; the last one repeats; not empty
	For    time.Duration   // the longest time from the first due time to the last attempt; zero = no limit

	MaxSnoozes int // zero = 1,000
	MaxCrashes int // reclaims before a dead letter; zero = a reclaim counts as a failed attempt
}

// args returns two arguments of scripts: max_attempts, followed by the limits that are set, and delays.
func (a Attempts) args() (maxAttempts, delays string) {
	var b strings.Builder
	for i, d := range a.Delays {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(millis(max(0, d)))
	}
	if b.Len() == 0 {
		b.WriteByte('0')
	}
	most := strconv.Itoa(a.Max)
	for _, limit := range []struct {
		name string
		n    int64
	}{{FieldRetryFor, a.For.Milliseconds()}, {FieldMaxSnoozes, int64(a.MaxSnoozes)},
		{FieldMaxCrashes, int64(a.MaxCrashes)}} {
		if limit.n > 0 {
			most += " " + limit.name + "=" + strconv.FormatInt(limit.n, 10)
		}
	}
	return most, b.String()
}

var retryScript = load("retry",
	[]string{"stream", "due", "payload", "meta", "dead", "wake", "turns", "policy", "history"},
	[]string{"group", "max_attempts", "delays"},
	[]string{"entry", "id", "action", "delay", "reason", "error"})

// Retry takes entries out of the group's pending list, each by its Action. Outcomes are in the order of failures. One
// round trip for each 1 MiB of entries.
func Retry(ctx context.Context, c rueidis.Client, k Keys, group string, attempts Attempts,
	failures []Failure) ([]Outcome, error) {
	most, delays := attempts.args()
	reply, err := inParts(failures, func(failures []Failure) ([]int64, error) {
		args := append(make([]string, 0, 4+6*len(failures)), group, most, delays)
		for _, f := range failures {
			delay := ""
			if f.Delay >= 0 {
				delay = millis(f.Delay)
			}
			args = append(args, f.Entry, f.ID, f.action(), delay, f.Reason, CutText(f.Error))
		}
		return retryScript.integers(ctx, c, []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Turns, k.Policy,
			k.History}, append(args, k.Actor), len(failures), Durability{})
	})
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(reply))
	for i, n := range reply {
		outcomes[i] = Outcome(n)
	}
	return outcomes, nil
}

// ReclaimArgs are the arguments of one reclaim.
type ReclaimArgs struct {
	Group    string
	Attempts Attempts
	MinIdle  time.Duration // the visibility timeout
	Cursor   string        // "" = from the beginning
	Limit    int           // entries
	MaxBytes int           // of entries: the entry that reaches the limit is the last one

	// Shortest is the shortest visibility timeout of the queue's groups. If it is set, time in which the server may
	// have been down does not count as idle time: see Reclaim. If it is zero, all idle time counts.
	Shortest time.Duration
	// Notes is a number of entries: for so many of the oldest pending entries, the call records since when a consumer
	// holds them.
	Notes int
}

// Reclaimed is the result of one reclaim, in numbers of entries. Cursor is "" when the whole pending list was seen.
type Reclaimed struct {
	Cursor                        string
	Retried, Dead, Skipped, Stuck int
	Cancelled                     int // ended, because the message was cancelled while its consumer held it

	MoreLeases bool // the call dealt with some ended leases, and more have ended, so the caller calls again
}

// Moved returns how many entries left the pending list.
func (r Reclaimed) Moved() int { return r.Retried + r.Dead + r.Skipped + r.Cancelled }

var reclaimScript = load("reclaim",
	[]string{"stream", "due", "payload", "meta", "dead", "wake", "calm", "turns", "policy",
		"leases", "history", "progress"},
	[]string{"group", "max_attempts", "delays", "consumer", "min_idle", "cursor", "limit",
		"max_bytes", "shortest", "notes"}, nil)

// Reclaim ends the deliveries of entries that the group has held for longer than MinIdle: they count as failed. If
// Shortest is set, idle time counts in full only while reclaims came often enough to show that the server was up,
// because in an outage a consumer cannot extend or acknowledge its entries. ErrNoGroup: the group is gone.
func Reclaim(ctx context.Context, c rueidis.Client, k Keys, a ReclaimArgs) (Reclaimed, error) {
	most, delays := a.Attempts.args()
	cursor := a.Cursor
	if cursor == "" {
		cursor = "0-0"
	}
	reply, err := reclaimScript.list(ctx, c, []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Calm, k.Turns,
		k.Policy, k.Leases, k.History, k.Progress}, []string{
		a.Group, most, delays, ReclaimConsumer, millis(a.MinIdle),
		cursor, strconv.Itoa(a.Limit), strconv.Itoa(a.MaxBytes), millis(a.Shortest), strconv.Itoa(a.Notes), k.Actor,
	}, 7)
	if err != nil {
		return Reclaimed{}, err
	}
	var r Reclaimed
	if r.Cursor, err = reply[0].ToString(); err != nil {
		return r, reclaimScript.unexpected(err)
	}
	if r.Cursor == "0-0" {
		r.Cursor = ""
	}
	leases := 0
	for i, n := range []*int{&r.Retried, &r.Dead, &r.Skipped, &r.Stuck, &r.Cancelled, &leases} {
		v, err := reply[i+1].AsInt64()
		if err != nil {
			return r, reclaimScript.unexpected(err)
		}
		*n = int(v)
	}
	r.MoreLeases = leases == 1
	return r, nil
}

// Forget deletes the notes of reclaims about a queue. Call it when nobody holds an entry of the queue. Two round trips
// for each 1,000 groups.
func Forget(ctx context.Context, c rueidis.Client, k Keys) error {
	return forgetNotes(ctx, c, k, func(string) bool { return true })
}

// ForgetHeld deletes the notes of reclaims about deliveries, except those of groups for which keep returns true. Two
// round trips for each 1,000 groups.
func ForgetHeld(ctx context.Context, c rueidis.Client, k Keys, keep func(group string) bool) error {
	return forgetNotes(ctx, c, k, func(field string) bool {
		group, ofGroup := strings.CutPrefix(field, heldField)
		return ofGroup && !keep(group)
	})
}

func forgetNotes(ctx context.Context, c rueidis.Client, k Keys, selects func(field string) bool) error {
	for cursor := uint64(0); ; {
		page, err := c.Do(ctx, c.B().Hscan().Key(k.Calm).Cursor(cursor).Count(1000).Build()).AsScanEntry()
		if err != nil {
			return Classify("HSCAN", err)
		}
		var fields []string
		for i := 0; i+1 < len(page.Elements); i += 2 {
			if field := page.Elements[i]; selects(field) {
				fields = append(fields, field)
			}
		}
		if len(fields) > 0 {
			if err := deleteNotes(ctx, c, k, fields); err != nil {
				return err
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

var extendScript = load("extend",
	[]string{"stream", "dead", "policy", "history"}, []string{"group", "consumer"}, []string{"entry", "id"})

// Extended is the result of Extend for one entry.
type Extended int

// Results of Extend.
const (
	NotHeld       Extended = 0 // the consumer does not hold the entry any more
	StillHeld     Extended = 1
	HeldCancelled Extended = 2 // the consumer holds the entry, but the message was cancelled: ActionCancel ends it
)

// Extend restarts the visibility timeout of a consumer's entries.
func Extend(ctx context.Context, c rueidis.Client, k Keys, group, consumer string, held []Held) ([]Extended, error) {
	return ExtendIdle(ctx, c, k, group, consumer, 0, held)
}

// ExtendIdle is Extend for entries with a timeout of their own that is shorter than the visibility timeout. The caller
// passes as idle the visibility timeout minus that timeout. The idle time of the entries restarts at idle, so that the
// entries are reclaimed after their own timeout.
func ExtendIdle(ctx context.Context, c rueidis.Client, k Keys, group, consumer string, idle time.Duration,
	held []Held) ([]Extended, error) {
	args := append(make([]string, 0, 3+2*len(held)), group, consumer)
	for _, h := range held {
		if idle > 0 {
			h.Entry += " " + millis(idle)
		}
		args = append(args, h.Entry, h.ID)
	}
	reply, err := extendScript.integers(ctx, c, []string{k.Stream, k.Dead, k.Policy, k.History},
		append(args, k.Actor), len(held),
		Durability{})
	answers := make([]Extended, len(reply))
	for i, n := range reply {
		answers[i] = Extended(n)
	}
	return answers, err
}

var ensureGroupScript = load("ensure_group", []string{"stream"}, []string{"group"}, nil)

// EnsureGroup creates the group at the beginning of the stream, unless it exists. It also succeeds on a full server.
func EnsureGroup(ctx context.Context, c rueidis.Client, k Keys, group string) (created bool, err error) {
	n, err := ensureGroupScript.integer(ctx, c, []string{k.Stream}, []string{group})
	return n == 1, err
}

var dropGroupsScript = load("drop_groups", []string{"stream"}, nil, []string{"group"})

// DropGroups destroys the groups that hold no entry, and returns how many. It destroys none if the stream has entries.
func DropGroups(ctx context.Context, c rueidis.Client, k Keys, groups []string) (int, error) {
	n, err := dropGroupsScript.integer(ctx, c, []string{k.Stream}, groups)
	return int(n), err
}

var dropConsumerScript = load("drop_consumer", []string{"stream"}, []string{"group"}, []string{"consumer"})

// DropConsumers deletes the consumers that hold nothing, and returns how many.
func DropConsumers(ctx context.Context, c rueidis.Client, k Keys, group string, consumers []string) (int, error) {
	n, err := dropConsumerScript.integer(ctx, c, []string{k.Stream}, append([]string{group}, consumers...))
	return int(n), err
}

var receiveScript = load("receive", []string{"stream", "policy", "leases", "wake"},
	[]string{"group", "consumer", "idle", "limit", "within"}, nil)

// Received is the result of one Receive.
type Received struct {
	Entries []Entry
	Last    string // entry ID: the group has been given all entries up to this one; "" = there may be more
	Held    bool   // the policy pauses the workers, so no entry was given
}

// Receive gives a consumer the next entries of its group: at most limit entries, and none after those that reach 1 MiB.
// Entries for other groups are among them. The entries count as failed after within, which is at most the visibility
// timeout. So their idle time starts at visibility minus within. ErrNoGroup: the group is gone.
func Receive(ctx context.Context, c rueidis.Client, k Keys, group, consumer string, within, visibility time.Duration,
	limit int) (Received, error) {
	reply, err := receiveScript.list(ctx, c, []string{k.Stream, k.Policy, k.Leases, k.Wake},
		[]string{group, consumer, millis(max(0, visibility-within)), strconv.Itoa(limit), millis(within)}, 2)
	if err != nil {
		return Received{}, err
	}
	var r Received
	if r.Last, err = reply[0].ToString(); err != nil {
		return r, receiveScript.unexpected(err)
	}
	held, err := reply[1].AsInt64()
	if err != nil {
		return r, receiveScript.unexpected(err)
	}
	r.Held = held == 1
	for _, one := range reply[2:] {
		e, err := one.AsXRangeSlice()
		if err != nil {
			return r, receiveScript.unexpected(err)
		}
		r.Entries = append(r.Entries, ParseEntry(e.ID, e.FieldValues))
	}
	return r, nil
}
