package bulk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Message is a member of the schedule.
type Message struct {
	ID        string    `json:"id"`
	Group     string    `json:"group,omitempty"` // of a retry; "" = all groups
	Due       time.Time `json:"due,omitzero"`    // zero = the message was not found
	Partition int       `json:"partition,omitempty"`

	member string
}

// MessageOf returns the message of a member of a partition's schedule.
func MessageOf(partition int, member string) Message {
	m := lua.ParseMember(member)
	return Message{ID: m.ID, Group: m.Group, Partition: partition, member: member}
}

// Options control a bulk change. The zero value changes all messages, as fast as possible.
type Options struct {
	// Rate is the greatest number of messages per second; 0 = no limit. After a pause, at most as many as in one second
	// are changed at once.
	Rate   float64
	DryRun bool // change nothing, and only count the changes
	// Spread is for Reschedule: a further delay of 0 to Spread, chosen by hashing the ID. Whole milliseconds.
	Spread time.Duration

	Selected func(Message) // called for each selected message, before it is changed
	Missed   func(Message) // called for each message that was gone or refused
	Progress func(Result)  // called after each step
}

func (o Options) validate() error {
	if !(o.Rate >= 0) || math.IsInf(o.Rate, 0) {
		return lua.Invalid("rate", fmt.Sprint(o.Rate), "must be a number of messages per second, or 0 for no limit")
	}
	return lua.CheckDelay("spread", o.Spread)
}

// Result counts the outcomes of a bulk change.
type Result struct {
	Looked  int64 `json:"looked"`  // members of schedules that were read
	Total   int64 `json:"total"`   // members of schedules to read
	Changed int   `json:"changed"` // messages that were, or in a dry run would be, cancelled, moved or expired
	// Unchanged counts messages that had the new due time already, or had expired already.
	Unchanged int `json:"unchanged"`
	// Gone counts messages that were not scheduled any more when they were to be changed, because they became ready or
	// were cancelled. It also counts messages that were not selected any more, because they were moved or replaced, and
	// IDs that were not found.
	Gone int `json:"gone"`
	// Refused counts messages that Expire cannot change, because their headers of 512 KiB leave no room for an expiry.
	Refused int `json:"refused"`

	To time.Time `json:"to,omitzero"` // for Reschedule: the new due time, or the beginning of the Spread
}

// Bulk cancels, moves or expires many scheduled messages of the queues of a prefix, in bounded steps: one request reads
// a thousand members, one script changes 250, and other commands run in between. It is safe for concurrent use, also by
// several processes: only one of them changes a message.
//
// If a message becomes ready before the change reaches it, it is delivered, and counted as gone. When ctx ends, the
// running step is finished first, so that the result counts every change. Repeat the same call to continue, also after
// an error or a kill: a changed message is not found again, or is counted as unchanged.
//
// The filter is applied to a message when it is read, a moment before the change. If a rate delays the change, and the
// filter is about due times, headers or texts, these are read again before the change. Messages given by ID, or by
// Filter.Messages, are looked up. For any other filter the whole schedule is read once. A message that is scheduled
// meanwhile may be found or not.
type Bulk struct {
	client   rueidis.Client
	prefix   string
	observer observe.Observer // nil = no observer
	by       string           // name in the histories of queues
}

// New returns a Bulk for a prefix ("" = lua.DefaultPrefix). It does not touch Redis.
func New(c rueidis.Client, prefix string) *Bulk {
	return &Bulk{client: c, prefix: cmp.Or(prefix, lua.DefaultPrefix), by: lua.Actor(lua.ActorOperator)}
}

// Observed returns a Bulk that reports cancelled and moved messages to an observer.
func (b *Bulk) Observed(o observe.Observer) *Bulk {
	return &Bulk{client: observe.Wrap(b.client, o), prefix: b.prefix, observer: o, by: b.by}
}

// By returns a Bulk with another name in the histories of queues. By default it is that of this process.
func (b *Bulk) By(name string) *Bulk {
	named := *b
	named.by = name
	return &named
}

// Cancel takes messages out of the schedule. A message counted as changed will never be delivered, and its ID is free
// again.
func (b *Bulk) Cancel(ctx context.Context, queue string, f Filter, o Options) (Result, error) {
	return b.run(ctx, "cancel", queue, f, o, func(r *run) error {
		r.event, r.told = observe.Cancelled, true
		r.change = func(ctx context.Context, k lua.Keys, ms []Message) ([]outcome, error) {
			done, err := lua.Cancel(ctx, b.client, k, members(ms), lua.Durability{})
			return outcomes(done), err
		}
		return nil
	})
}

// Reschedule sets a new due time for messages: at, or if at is zero the server's time plus delay. It asks for the
// server's time once, so all messages get the same due time, unless there is a Spread. It leaves messages alone that
// have the new due time already. So a repeated call with the same at continues where an earlier call stopped.
func (b *Bulk) Reschedule(ctx context.Context, queue string, f Filter, delay time.Duration, at time.Time,
	o Options) (Result, error) {
	return b.run(ctx, "reschedule", queue, f, o, func(r *run) error {
		if !at.IsZero() && delay != 0 {
			return lua.Invalid("delay", delay.String(), "must be zero when a point in time is given")
		}
		if at.IsZero() {
			now, err := view.ServerTimeOf(ctx, b.client, lua.NewKeys(b.prefix, queue).Due)
			if err != nil {
				return err
			}
			at = now.Add(delay)
		}
		if whole := at.Truncate(time.Millisecond); whole.Before(at) { // rounded like lua.At, to recognise equal times
			at = whole.Add(time.Millisecond)
		}
		r.result.To = at
		r.event, r.told = observe.Rescheduled, true
		r.target = func(m Message) time.Time { return at.Add(lua.SpreadOf(m.ID, o.Spread)) }
		r.change = func(ctx context.Context, k lua.Keys, ms []Message) ([]outcome, error) {
			whens := make([]lua.When, len(ms))
			for i, m := range ms {
				whens[i] = lua.At(r.target(m))
			}
			moved, err := lua.RescheduleEach(ctx, b.client, k, members(ms), whens)
			return outcomes(moved), err
		}
		return nil
	}, lua.CheckDelay("delay", delay), checkTime(at), checkTime(end(at, o.Spread)))
}

// Expire makes messages expire now. A message counted as changed will not be delivered: the bridge that owns the queue
// dead-letters it with reason expired, and it can be redriven. While the queue is paused, or no bridge is alive, it
// stays in the schedule.
func (b *Bulk) Expire(ctx context.Context, queue string, f Filter, o Options) (Result, error) {
	return b.run(ctx, "expire", queue, f, o, func(r *run) error {
		r.isDone = func(m Message, meta string, now time.Time) bool {
			e, readable := lua.DecodeMeta(m.ID, meta)
			expired := !readable || !e.Expires.IsZero() && !e.Expires.After(now)
			return expired && !m.Due.After(now)
		}
		r.change = func(ctx context.Context, k lua.Keys, ms []Message) ([]outcome, error) {
			answers, err := lua.Expire(ctx, b.client, k, members(ms))
			out := make([]outcome, len(answers))
			for i, answer := range answers {
				out[i] = map[lua.Expired]outcome{lua.ExpireNow: changed, lua.ExpireBefore: unchanged,
					lua.ExpireNoRoom: refused}[answer]
			}
			return out, err
		}
		return nil
	})
}

func (b *Bulk) run(ctx context.Context, what, queue string, f Filter, o Options, prepare func(*run) error,
	invalid ...error) (Result, error) {
	r := &run{b: b, queue: queue, filter: f, options: o, pace: loop.Pace{Rate: o.Rate}}
	err := errors.Join(append(invalid, lua.CheckPrefix(b.prefix), lua.CheckQueue(queue), f.validate(), o.validate())...)
	if err == nil {
		err = prepare(r)
	}
	if err == nil {
		err = r.everywhere(ctx)
	}
	if r.told && b.observer != nil && r.result.Changed > 0 && !o.DryRun {
		b.observer.Series(observe.Client, queue, "").Add(r.event, r.result.Changed)
	}
	if err != nil {
		return r.result, fmt.Errorf("%s messages of %s: %w", what, queue, err)
	}
	return r.result, nil
}

// end returns the end of a spread that begins at a time. For the zero time it returns the zero time.
func end(at time.Time, spread time.Duration) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(spread)
}

func checkTime(at time.Time) error {
	if at.IsZero() {
		return nil
	}
	return lua.CheckTime("at", at)
}

func members(ms []Message) []string {
	list := make([]string, len(ms))
	for i := range ms {
		list[i] = ms[i].member
	}
	return list
}

// outcome is the outcome of a change for one message.
type outcome int

const (
	gone outcome = iota
	changed
	unchanged
	refused
)

func outcomes(done []bool) []outcome {
	out := make([]outcome, len(done))
	for i, ok := range done {
		if ok {
			out[i] = changed
		}
	}
	return out
}
