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
	Idle    time.Duration // since it last read; if the server does not tell Inactive, since it last got an entry
	// since it last got an entry, from Redis 7.2 on; negative: it never did, or the server does not tell
	Inactive time.Duration
	Tells    bool // the server tells Inactive
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

func readConsumer(r *row) Consumer {
	one := Consumer{Name: r.text("name"), Pending: r.number("pending"), Inactive: -1,
		Idle: time.Duration(max(0, r.number("idle"))) * time.Millisecond}
	if _, one.Tells = r.fields["inactive"]; one.Tells {
		one.Inactive = max(-1, time.Duration(r.number("inactive"))*time.Millisecond)
	}
	return one
}
