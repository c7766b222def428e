package lua

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"
)

// Transact runs commands in a transaction, over a connection that may watch keys. done is true if all commands were
// executed without an error. If a watched key has changed, no command is executed, and done is false without an error.
// If the user may not use one of the commands, or MULTI or EXEC, no command is executed. After another error, such as
// WRONGTYPE, some commands may have been executed. If EXEC is refused, the connection is closed. key is one of the keys
// that the commands write: it chooses the server of a cluster, if nothing was sent on the connection before. It takes
// two round trips.
func Transact(ctx context.Context, c rueidis.DedicatedClient, key string, commands ...rueidis.Completed) (done bool, err error) {
	// MULTI is sent alone: if the user may not use it, the commands after it would be executed at once, whatever has
	// changed.
	if err := c.Do(ctx, c.B().Multi().Build().SetSlot(key)).Error(); err != nil {
		return false, Classify("MULTI", err)
	}
	replies := c.DoMulti(ctx, slices.Concat(commands, []rueidis.Completed{c.B().Exec().Build()})...)
	last := len(replies) - 1
	for _, reply := range replies[:last] { // the server refuses commands when it queues them
		err = errors.Join(err, reply.Error())
	}
	results, failed := replies[last].ToArray()
	if rueidis.IsRedisNil(failed) {
		return false, Classify("EXEC", err)
	}
	if failed != nil {
		c.Close() // the transaction may still be open, and the connection's next user would be in it
	}
	err = errors.Join(err, failed)
	for _, result := range results {
		if one := result.Error(); !rueidis.IsRedisNil(one) {
			err = errors.Join(err, one)
		}
	}
	return err == nil, Classify("EXEC", err)
}
