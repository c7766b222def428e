package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

const removeTimeout = time.Minute

// Remove deletes the keys of queues and takes them out of the registry. UNLINK frees in the background, and each request is bounded.
func Remove(ctx context.Context, r *bridge.Redis, prefix string, queues ...string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	c, registry := r.Client, lua.NewGlobals(prefix).Queues
	for _, queue := range queues {
		k := lua.NewKeys(prefix, queue)
		var cmds rueidis.Commands
		for _, key := range []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Wake, k.Policy, k.Seen} {
			cmds = append(cmds, c.B().Unlink().Key(key).Build())
		}
		cmds = append(cmds, c.B().Hdel().Key(registry).Field(queue).Build())
		for _, reply := range c.DoMulti(ctx, cmds...) {
			if err := reply.Error(); err != nil {
				return fmt.Errorf("bench: remove queue %s, of which keys are left: %w", queue, lua.Classify("UNLINK", err))
			}
		}
	}
	return nil
}
