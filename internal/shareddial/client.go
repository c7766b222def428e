// Package shareddial protects callers of one Redis client from each other while the client connects.
//
// The client library connects when a caller needs a connection, with the context of that caller. All other callers
// wait for the same connection. If the context of the first one is cancelled, all of them get its error, although
// their own contexts are alive and none of their commands was sent.
package shareddial

import (
	"context"
	"errors"

	"github.com/redis/rueidis"
)

// mostTries limits the tries of one call. Each further try needs one more caller that is cancelled while it connects.
const mostTries = 100

// Wrap returns a client that repeats the commands of a caller whose connection failed because another caller was
// cancelled. Do and DoMulti are protected. Dedicated connections are not shared, so they need no protection. The error
// of another caller whose deadline passes while it connects is not hidden, because it looks like that of a server that
// does not answer.
func Wrap(c rueidis.Client) rueidis.Client { return &client{c} }

type client struct{ rueidis.Client }

// Do implements rueidis.Client.
func (c *client) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	reply := c.Client.Do(ctx, cmd)
	for tries := 1; tries < mostTries && othersCancel(ctx, reply); tries++ {
		reply = c.Client.Do(ctx, cmd)
	}
	return reply
}

// DoMulti implements rueidis.Client. It repeats only the commands that were not sent.
func (c *client) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	replies := c.Client.DoMulti(ctx, cmds...)
	for range mostTries - 1 {
		var unsent []rueidis.Completed
		var places []int
		for i, reply := range replies {
			if othersCancel(ctx, reply) {
				unsent, places = append(unsent, cmds[i]), append(places, i)
			}
		}
		if len(unsent) == 0 {
			break
		}
		for i, reply := range c.Client.DoMulti(ctx, unsent...) {
			replies[places[i]] = reply
		}
	}
	return replies
}

// othersCancel reports whether a reply is the error of a cancelled context that is not ctx. Such a command was not
// sent, and the client library keeps it usable.
func othersCancel(ctx context.Context, reply rueidis.RedisResult) bool {
	return errors.Is(reply.NonRedisError(), context.Canceled) && ctx.Err() == nil
}
