// Package shareddial protects callers of one Redis client from two faults of its connections.
//
// The first fault: the client library connects when a caller needs a connection, with the context of that caller. All
// other callers wait for the same connection. If the context of the first one is cancelled, all of them get its error,
// although their own contexts are alive and none of their commands was sent.
//
// The second fault: the library repeats a read on a new connection when the old one fails. After the repeat has
// succeeded, the library clears the arguments of the command and uses their memory for another command. The goroutine
// that writes to the old connection may still read them (rueidis 1.0.79, a data race).
package shareddial

import (
	"context"
	"errors"

	"github.com/redis/rueidis"
)

// mostTries limits the tries of one call. Each further try needs one more caller that is cancelled while it connects.
const mostTries = 100

// Wrap returns a client with two changes. If a caller's command was not sent because another caller was cancelled
// while it connected, the client sends the command again. If the library may repeat a command, the client keeps the
// library from using the memory of its arguments for another command.
//
// Do and DoMulti are protected. Dedicated connections need no protection, because they are neither shared nor
// replaced. If a caller's deadline passes while it connects, the waiting callers still get its error, because a
// server that does not answer causes the same error.
func Wrap(c rueidis.Client) rueidis.Client { return &client{c} }

type client struct{ rueidis.Client }

// Do implements rueidis.Client.
func (c *client) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	keepArguments(cmd)
	reply := c.Client.Do(ctx, cmd)
	for tries := 1; tries < mostTries && othersCancel(ctx, reply); tries++ {
		reply = c.Client.Do(ctx, cmd)
	}
	return reply
}

// DoMulti implements rueidis.Client. It repeats only the commands that were not sent.
func (c *client) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	for _, cmd := range cmds {
		keepArguments(cmd)
	}
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

// keepArguments leaves the memory of a command that the library may repeat to the garbage collector.
func keepArguments(cmd rueidis.Completed) {
	if cmd.IsRetryable() {
		cmd.Pin()
	}
}

// othersCancel reports whether a reply is the error of a cancelled context that is not ctx. Such a command was not
// sent, and the client library keeps it usable.
func othersCancel(ctx context.Context, reply rueidis.RedisResult) bool {
	return errors.Is(reply.NonRedisError(), context.Canceled) && ctx.Err() == nil
}
