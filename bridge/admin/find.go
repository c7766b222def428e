package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds what operators look at single messages with.

// Finding is what Find knows of a message: where it is, what happened to it and when, and where was looked.
//
//	type Finding struct {
//		ID      string
//		At      time.Time // by the server's clock, when the look began
//		Places  []Sighting
//		Why     string // why it is nowhere, if that is known; each place has its own Why
//		History []Moment
//		Windows []Window
//		Queues  int   // how many were looked at
//		Looked  int64 // how many members, entries and letters were read, where none can be looked up
//	}
type Finding = inspect.Finding

// Sighting is one Place, with the queue in which it is.
//
//	type Sighting struct {
//		Queue string
//		Place
//		Why        string // why it is not delivered, or not done, in words for people
//		For        string // ready, pending: the group, of a retry
//		Deliveries int64  // pending: how often the entry was delivered, by the server's count
//		Cancelled  bool   // pending: the message was; the consumer is told, and ends it
//		// scheduled, retrying: ID of the entry that went back to the schedule, or of the letter that was redriven
//		Before string
//	}
type Sighting = inspect.Sighting

// Moment is something that happened to a message, or will, with its time by the server's clock.
//
//	type Moment struct {
//		At      time.Time
//		What    string
//		Queue   string
//		Group   string
//		Attempt int
//		Entry   string
//		Detail  string // consumer; reason; the last error
//	}
type Moment = inspect.Moment

// Window says until when a queue refuses the ID of a message, because a message had it before.
//
//	type Window struct {
//		Queue string
//		Until time.Time
//	}
type Window = inspect.Window

// What happened at a Moment.
const (
	MomentMade      = inspect.MomentMade      // scheduled, by the clock of the producer, where the ID is a ULID
	MomentDue       = inspect.MomentDue       // or will be
	MomentReady     = inspect.MomentReady     // drained: added to the stream
	MomentDelivered = inspect.MomentDelivered // to a consumer, as far as is known: see PendingEntry.HeldSince
	MomentDead      = inspect.MomentDead      // given up by a group
	MomentExpires   = inspect.MomentExpires   // from then on it is dead-lettered instead of delivered
)

// FindOptions changes what Find does. The zero value looks in all queues and tells nothing on the way.
type FindOptions struct {
	Queues   []string                  // where to look; none = all queues of the prefix
	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called now and then, one at a time; total grows
}

// Find returns every place where Redis holds a message, in whatever queue of the prefix, and what is known of its history.
// ErrNotFound: there is none; the Finding says where was looked. It opens connections of its own for as long as it looks.
func (a *Admin) Find(ctx context.Context, id string, o FindOptions) (Finding, error) {
	return inspect.Find(ctx, a.redis.Client, a.prefix, id, inspect.FindOptions{
		Queues: o.Queues, Connect: a.redis.Connect(), Seen: o.Seen, Progress: o.Progress,
	})
}

// State is where in its life a message is, at a Place.
//
//	type State string
type State = inspect.State

// States of a Place.
const (
	StateScheduled = inspect.StateScheduled // for the first time, or redriven for all groups
	StateRetrying  = inspect.StateRetrying  // scheduled again for one group
	StateReady     = inspect.StateReady     // in the stream, and not given yet to the groups named
	StatePending   = inspect.StatePending   // held by a consumer
	StateDead      = inspect.StateDead      // given up by a group
)

// Place is one place where Redis holds a message.
//
//	type Place struct {
//		State     State
//		Partition int
//		Group     string   // retrying, pending, dead
//		Groups    []string // ready: those that were not given it yet
//		// ready, pending: ID of the stream entry; dead: of the one that failed
//		Entry       string
//		Letter      string    // dead: its name; see Letter
//		Consumer    string    // pending
//		Idle        Millis    // pending: since it was delivered or extended
//		Held        Millis    // pending: since it was delivered to Consumer, at least
//		HeldSince   time.Time // pending: when that was; see PendingEntry
//		Due         time.Time
//		Key         string
//		Waits       bool // scheduled: it is due, and another message of its key is in flight
//		Attempt     int
//		MaxAttempts int
//		Expires     time.Time
//		Error       string // of the last failed attempt
//		Reason      string // dead
//		Dead        time.Time
//		Headers     map[string]string
//		Payload     Payload
//	}
type Place = inspect.Place

// Locate returns every place where one queue holds a message: scheduled, ready, pending and with whom, retrying, dead.
// ErrNotFound when there is none: acknowledged by every group, cancelled or purged, or never scheduled. A scheduled message is
// found at once; for the rest the queue is walked in bounded steps. Find says more, of all queues, and sooner.
func (a *Admin) Locate(ctx context.Context, queue, id string) ([]Place, error) {
	return inspect.Locate(ctx, a.redis.Client, a.prefix, queue, id)
}

// Peeked is the beginning of a queue's schedule, and how many members it has.
//
//	type Peeked struct {
//		At    time.Time // by the server's clock
//		Next  []Due
//		Total int64 // how many members the schedule has
//		Held  bool
//	}
type Peeked = inspect.Peeked

// Due is one member of a schedule.
//
//	type Due struct {
//		Due         time.Time
//		Overdue     bool // by the server's clock
//		Key         string
//		Waits       bool // it is due, and another message of its key is in flight
//		ID          string
//		Partition   int
//		For         string // a retry: the group
//		Attempt     int
//		MaxAttempts int
//		Expires     time.Time
//		Error       string // of the attempt before
//		Headers     map[string]string
//		Bytes       int64
//		Payload     Payload // when it was asked for
//		Malformed   bool    // its meta cannot be read: it will be a dead letter
//	}
type Due = inspect.Due

// Consumer is one reader of a group, in one partition.
//
//	type Consumer struct {
//		Group      string
//		Consumer   string
//		Partitions []int // in which it reads, or once read
//		Pending    int64 // entries that it holds
//		// Idle is the time since it last read or extended something, in whichever partition that was last. Before Redis
//		// 7.2 a read that returned nothing does not count. Inactive is the time since it was last given an entry; nil
//		// before Redis 7.2.
//		Idle     Millis
//		Inactive *Millis
//		// OldestIdle is how long the entry that it neglects most was neither delivered nor extended. OldestApprox: it is
//		// a lower bound, because only the oldest 10,000 pending entries of the group were read, in each partition.
//		OldestIdle   Millis
//		OldestApprox bool
//		// Alive: Idle is less than the visibility timeout of the group. A consumer that is not alive may have died; where
//		// Inactive is nil, it may also have had nothing to do.
//		Alive bool
//	}
type Consumer = inspect.Consumer

// Peek returns the n members of a queue's schedule that are due first, of all partitions together, in the order in which they
// are due, and how many there are; with payloads if they are asked for. O(n log m) for a schedule of m.
func (a *Admin) Peek(ctx context.Context, queue string, n int, payloads bool) (Peeked, error) {
	return inspect.Peek(ctx, a.redis.Client, a.prefix, queue, n, payloads)
}

// Consumers lists the consumers of a queue's groups, or of one group where group is not "", by group and name. ErrNoGroup.
func (a *Admin) Consumers(ctx context.Context, queue, group string) ([]Consumer, error) {
	return inspect.Consumers(ctx, a.redis.Client, a.prefix, queue, group)
}

// PendingCount says how many entries the workers of a group hold, or with a consumer, how many that one holds. ErrNoGroup.
func (a *Admin) PendingCount(ctx context.Context, queue, group, consumer string) (int64, error) {
	return inspect.PendingCount(ctx, a.redis.Client, a.prefix, queue, group, consumer)
}

// Pause pauses a queue: what is scheduled does not become ready, while what is ready is delivered. With held false it takes that
// back, and what PauseWorkers did; nothing that was scheduled meanwhile is lost. changed is false when it was so already.
func (a *Admin) Pause(ctx context.Context, queue string, held bool) (changed bool, err error) {
	return stream.Pause(ctx, a.redis.Client, a.prefix, queue, held)
}

// PauseWorkers is Pause, and has the workers of all groups take nothing new, within a second or two; they finish what they hold.
// Pause with held false has them go on.
func (a *Admin) PauseWorkers(ctx context.Context, queue string) (changed bool, err error) {
	return stream.PauseWorkers(ctx, a.redis.Client, a.prefix, queue)
}

// Remembered says until when the ID of a message is refused because a message had it before (Dedup); zero when it is not. It
// does not say whether that one is finished: Find does.
func (a *Admin) Remembered(ctx context.Context, queue, id string) (until time.Time, err error) {
	return inspect.Remembered(ctx, a.redis.Client, a.prefix, queue, id)
}
