package view

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Pending is an entry that a consumer holds.
type Pending struct {
	ID         EntryID
	Consumer   string
	Idle       time.Duration // since the entry was delivered or extended; 0 if GivenBack
	Deliveries int64
	Cancelled  bool // its message was cancelled, and the consumer learns of the cancellation
	GivenBack  bool // the worker gave the entry back by XNACK: no consumer holds it, and a bridge will take it
}

// PendingRange selects pending entries, from the oldest on. Zero fields do not restrict, except Count.
type PendingRange struct {
	From, To string // IDs, inclusive; with "(" in front, exclusive
	Count    int
	Consumer string
	MinIdle  time.Duration
}

// ReadPending returns the pending entries of a group. lua.ErrNoGroup: there is no such group, or no stream. One round
// trip.
func ReadPending(ctx context.Context, c rueidis.Client, stream, group string, r PendingRange) (list []Pending, err error) {
	err = Ask(ctx, c, PendingOf(c, stream, group, r, &list))
	return list, err
}

// PendingOf asks for the pending entries of a group.
func PendingOf(c rueidis.Client, stream, group string, r PendingRange, list *[]Pending) Question {
	// IDLE and the consumer are optional. With them the builder has another type, but its next method is the same. So
	// the method values start and build stand for the next step; nothing is built before the call of build.
	command := c.B().Xpending().Key(stream).Group(group)
	start := command.Start
	if r.MinIdle > 0 {
		start = command.Idle(r.MinIdle.Milliseconds()).Start
	}
	upToCount := start(cmp.Or(r.From, "-")).End(cmp.Or(r.To, "+")).Count(int64(r.Count))
	build := upToCount.Build
	if r.Consumer != "" {
		build = upToCount.Consumer(r.Consumer).Build
	}
	return Into(build(), list, rows(readPendingRow, pendingValues...))
}

// PendingIn reads a reply of XPENDING with a range that is a part of another reply.
func PendingIn(reply rueidis.RedisMessage) ([]Pending, error) {
	return rowsIn(reply, readPendingRow, pendingValues...)
}

// pendingValues are the values of a row of XPENDING.
var pendingValues = []string{"id", "consumer", "idle", "deliveries"}

// WalkPending yields the pending entries of a group, in pages of Count.
func WalkPending(ctx context.Context, c rueidis.Client, stream, group string, r PendingRange) iter.Seq2[Pending, error] {
	return Sequence(func(give func(Pending) error) error {
		next := r // a second iteration starts at r again
		for {
			page, err := ReadPending(ctx, c, stream, group, next)
			if err != nil {
				return err
			}
			for _, p := range page {
				if err := give(p); err != nil {
					return err
				}
			}
			if len(page) < next.Count {
				return nil
			}
			next.From = "(" + page[len(page)-1].ID.String()
		}
	})
}

func readPendingRow(r *row) Pending {
	// A cancellation adds a large mark to the delivery counter.
	n, cancelled := lua.Deliveries(r.number("deliveries"))
	p := Pending{ID: r.entryID("id"), Consumer: r.text("consumer"), Deliveries: n, Cancelled: cancelled,
		Idle: time.Duration(r.number("idle")) * time.Millisecond}
	if p.GivenBack = lua.GivenBack(p.Consumer, p.Idle); p.GivenBack {
		p.Idle = 0
	}
	return p
}
