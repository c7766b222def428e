package view

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Consumer is a member of a group, as the server sees it.
type Consumer struct {
	Name    string `json:"name"`
	Pending int64  `json:"pending"`
	Idle    Millis `json:"idle_ms"` // since it last read something; before Redis 7.2, a live consumer without work is idle, too
}

// ReadConsumers returns the consumers of a group; none when there is no such group or stream. One round trip.
func ReadConsumers(ctx context.Context, c rueidis.Client, stream, group string) ([]Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	rows, err := c.Do(ctx, c.B().XinfoConsumers().Key(stream).Group(group).Build()).ToArray()
	if err != nil {
		if err = lua.Classify("XINFO CONSUMERS", err); errors.Is(err, lua.ErrNoGroup) || strings.Contains(err.Error(), "no such key") {
			return nil, nil
		}
		return nil, err
	}
	consumers := make([]Consumer, len(rows))
	for i, row := range rows {
		fields, err := row.AsMap()
		if err != nil {
			return nil, lua.Classify("XINFO CONSUMERS", err)
		}
		name, pending, idle := fields["name"], fields["pending"], fields["idle"]
		one := &consumers[i]
		one.Name, err = name.ToString()
		if err == nil {
			one.Pending, err = pending.AsInt64()
		}
		ms := int64(0)
		if err == nil {
			ms, err = idle.AsInt64()
		}
		if err != nil {
			return nil, lua.Classify("XINFO CONSUMERS", err)
		}
		one.Idle = Millis(time.Duration(ms) * time.Millisecond)
	}
	return consumers, nil
}
