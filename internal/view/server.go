package view

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// ServerTime returns the server's clock.
func ServerTime(ctx context.Context, c rueidis.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	parts, err := c.Do(ctx, c.B().Time().Build()).AsStrSlice()
	if err != nil {
		return time.Time{}, lua.Classify("TIME", err)
	}
	var sec, usec int64
	if _, err := fmt.Sscan(strings.Join(parts, " "), &sec, &usec); err != nil {
		return time.Time{}, fmt.Errorf("TIME: unexpected reply: %w", err)
	}
	return time.Unix(sec, usec*1000), nil
}
