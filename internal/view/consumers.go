package view

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Consumer is a member of a group, as the server sees it.
type Consumer struct {
	Name    string `json:"name"`
	Pending int64  `json:"pending"`
	Idle    Millis `json:"idle_ms"` // since it last read something; before Redis 7.2, a live consumer without work is idle, too
}

func ReadConsumers(ctx context.Context, c rueidis.Client, stream, group string) ([]Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	list, err := rueidiscompat.NewAdapter(c).XInfoConsumers(ctx, stream, group).Result()
	if err != nil {
		if err = lua.Classify("XINFO CONSUMERS", err); errors.Is(err, lua.ErrNoGroup) || strings.Contains(err.Error(), "no such key") {
			return nil, nil
		}
		return nil, err
	}
	consumers := make([]Consumer, len(list))
	for i, one := range list {
		consumers[i] = Consumer{one.Name, one.Pending, Millis(one.Idle)}
	}
	return consumers, nil
}
