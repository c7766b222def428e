package queuetest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

// BeforeScript is a client that calls Run once, before the first script that is called with a key.
type BeforeScript struct {
	rueidis.Client
	Key  string
	Run  func()
	once sync.Once
}

// Do implements rueidis.Client.
func (c *BeforeScript) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if words := cmd.Commands(); strings.HasPrefix(words[0], "EVAL") && slices.Contains(words, c.Key) {
		c.once.Do(c.Run)
	}
	return c.Client.Do(ctx, cmd)
}
