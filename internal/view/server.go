package view

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// ServerTime returns the server's clock.
func ServerTime(ctx context.Context, c rueidis.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return ParseTime(c.Do(ctx, c.B().Time().Build()))
}

// ParseTime reads a reply of TIME.
func ParseTime(reply rueidis.RedisResult) (time.Time, error) {
	clock, err := reply.AsIntSlice()
	if err != nil {
		return time.Time{}, lua.Classify("TIME", err)
	}
	if len(clock) != 2 {
		return time.Time{}, fmt.Errorf("TIME: unexpected reply: %d values", len(clock))
	}
	return time.Unix(clock[0], clock[1]*int64(time.Microsecond)), nil
}
