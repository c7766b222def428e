package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Consumer is a member of a group, as the server sees it.
type Consumer struct {
	Name    string
	Pending int64
	Idle    time.Duration // since it last read something; where the server does not tell Inactive, since it was given something
	// since it was last given something, from Redis 7.2 on; negative: it never was, or the server does not tell
	Inactive time.Duration
	Tells    bool // the server tells Inactive
}

// ReadConsumers returns the consumers of a group; none when there is no such group or stream. One round trip.
func ReadConsumers(ctx context.Context, c rueidis.Client, stream, group string) ([]Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	consumers, err := ParseConsumers(c.Do(ctx, c.B().XinfoConsumers().Key(stream).Group(group).Build()))
	if err != nil {
		if err = lua.Classify("XINFO CONSUMERS "+stream, err); errors.Is(err, lua.ErrNoGroup) || isNoKey(err) {
			return nil, nil
		}
		return nil, err
	}
	return consumers, nil
}

// ParseConsumers reads a reply of XINFO CONSUMERS.
func ParseConsumers(reply rueidis.RedisResult) ([]Consumer, error) {
	rows, err := reply.ToArray()
	if err != nil {
		return nil, err
	}
	consumers := make([]Consumer, len(rows))
	for i, row := range rows {
		if consumers[i], err = parseConsumer(row); err != nil {
			return nil, fmt.Errorf("XINFO CONSUMERS: unexpected reply: %w", err)
		}
	}
	return consumers, nil
}

func parseConsumer(row rueidis.RedisMessage) (one Consumer, err error) {
	fields, err := row.AsMap()
	if err != nil {
		return one, err
	}
	number := func(field string) int64 {
		m := fields[field]
		n, failed := m.AsInt64()
		err = cmp.Or(err, failed)
		return n
	}
	name := fields["name"]
	one.Name, err = name.ToString()
	one.Pending, one.Idle, one.Inactive = number("pending"), time.Duration(max(0, number("idle")))*time.Millisecond, -1
	if _, one.Tells = fields["inactive"]; one.Tells {
		one.Inactive = max(-1, time.Duration(number("inactive"))*time.Millisecond)
	}
	return one, err
}

// isNoKey says whether XINFO found no stream.
func isNoKey(err error) bool { return strings.Contains(err.Error(), "no such key") }
