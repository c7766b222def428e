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
	Idle       time.Duration // since it was delivered or extended
	Deliveries int64
	Cancelled  bool // its message was cancelled, and the consumer learns of the cancellation
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
	of := c.B().Xpending().Key(stream).Group(group)
	start := of.Start
	if r.MinIdle > 0 {
		start = of.Idle(r.MinIdle.Milliseconds()).Start
	}
	upToCount := start(cmp.Or(r.From, "-")).End(cmp.Or(r.To, "+")).Count(int64(r.Count))
	build := upToCount.Build
	if r.Consumer != "" {
		build = upToCount.Consumer(r.Consumer).Build
	}
	return Into(build(), list, rows(readPendingRow, "id", "consumer", "idle", "deliveries"))
}

// WalkPending yields the pending entries of a group, in pages of Count.
func WalkPending(ctx context.Context, c rueidis.Client, stream, group string, r PendingRange) iter.Seq2[Pending, error] {
	return Sequence(func(give func(Pending) error) error {
		for r := r; ; {
			page, err := ReadPending(ctx, c, stream, group, r)
			if err != nil {
				return err
			}
			for _, p := range page {
				if err := give(p); err != nil {
					return err
				}
			}
			if len(page) < r.Count {
				return nil
			}
			r.From = "(" + page[len(page)-1].ID.String()
		}
	})
}

func readPendingRow(r *row) Pending {
	n, cancelled := lua.Deliveries(r.number("deliveries"))
	return Pending{ID: r.entryID("id"), Consumer: r.text("consumer"), Idle: time.Duration(r.number("idle")) * time.Millisecond,
		Deliveries: n, Cancelled: cancelled}
}
