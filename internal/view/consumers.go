package view

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Consumer is a consumer of a group, as the server describes it.
type Consumer struct {
	Name    string
	Pending int64
	// Idle is the time since the consumer last read; if Tells is false, the time since it last got an entry.
	Idle time.Duration
	// Inactive is the time since the consumer last got an entry. Negative: it never got one, or Tells is false.
	Inactive time.Duration
	Tells    bool // whether the server tells Inactive, as Redis does from 7.2 on
}

// ReadConsumers returns the consumers of a group; none when there is no such group or stream. One round trip.
func ReadConsumers(ctx context.Context, c rueidis.Client, stream, group string) (list []Consumer, err error) {
	err = Ask(ctx, c, ConsumersOf(c, stream, group, &list).OrNoGroup())
	return list, err
}

// ConsumersOf asks for the consumers of a group.
func ConsumersOf(c rueidis.Client, stream, group string, list *[]Consumer) Question {
	return Into(c.B().XinfoConsumers().Key(stream).Group(group).Build(), list, rows(readConsumer))
}

// ConsumersIn reads a reply of XINFO CONSUMERS that is a part of another reply.
func ConsumersIn(reply rueidis.RedisMessage) ([]Consumer, error) { return rowsIn(reply, readConsumer) }

func readConsumer(r *row) Consumer {
	one := Consumer{Name: r.text("name"), Pending: r.number("pending"), Inactive: -1,
		Idle: time.Duration(max(0, r.number("idle"))) * time.Millisecond}
	if _, one.Tells = r.fields["inactive"]; one.Tells {
		one.Inactive = max(-1, time.Duration(r.number("inactive"))*time.Millisecond)
	}
	return one
}
