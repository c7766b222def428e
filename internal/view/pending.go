package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Pending is an entry that a consumer holds.
type Pending struct {
	ID         EntryID
	Consumer   string
	Idle       time.Duration // since it was delivered or extended
	Deliveries int64
}

// PendingRange selects pending entries, from the oldest on. What is zero does not restrict, but for Count.
type PendingRange struct {
	From, To string // IDs, included; "(" before one: behind it, before it
	Count    int
	Consumer string
}

// ReadPending returns what a group holds. lua.ErrNoGroup: there is no such group, or no stream. One round trip.
func ReadPending(ctx context.Context, c rueidis.Client, stream, group string, r PendingRange) ([]Pending, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	list, err := ParsePending(c.Do(ctx, pendingCommand(c, stream, group, r)))
	return list, lua.Classify("XPENDING "+stream, err)
}

func pendingCommand(c rueidis.Client, stream, group string, r PendingRange) rueidis.Completed {
	if r.From == "" {
		r.From = "-"
	}
	if r.To == "" {
		r.To = "+"
	}
	of := c.B().Xpending().Key(stream).Group(group).Start(r.From).End(r.To).Count(int64(r.Count))
	if r.Consumer != "" {
		return of.Consumer(r.Consumer).Build()
	}
	return of.Build()
}

// ParsePending reads a reply of XPENDING with a range.
func ParsePending(reply rueidis.RedisResult) ([]Pending, error) {
	rows, err := reply.ToArray()
	if err != nil {
		if rueidis.IsRedisNil(err) {
			return nil, nil
		}
		return nil, err
	}
	list := make([]Pending, len(rows))
	for i, row := range rows {
		if list[i], err = parsePending(row); err != nil {
			return nil, fmt.Errorf("XPENDING: unexpected reply: %w", err)
		}
	}
	return list, nil
}

func parsePending(row rueidis.RedisMessage) (p Pending, err error) {
	cells, err := row.ToArray()
	if err == nil && len(cells) < 4 {
		err = fmt.Errorf("%d values where 4 belong", len(cells))
	}
	if err != nil {
		return p, err
	}
	id, err := cells[0].ToString()
	if err == nil {
		p.ID, err = ParseEntryID(id)
	}
	var errs [3]error
	var idle int64
	p.Consumer, errs[0] = cells[1].ToString()
	idle, errs[1] = cells[2].AsInt64()
	p.Deliveries, errs[2] = cells[3].AsInt64()
	p.Idle = time.Duration(idle) * time.Millisecond
	return p, errors.Join(append(errs[:], err)...)
}
