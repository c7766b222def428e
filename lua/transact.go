package lua

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"
)

// Transact runs commands in a transaction, over a connection that may watch keys. done: all were executed, without an error. It
// is false without an error when what was watched has changed, and nothing was executed. Of a user who may not use one of the
// commands, or MULTI or EXEC, nothing is executed; after another error, as WRONGTYPE, some may be. When EXEC is refused the
// connection ends. Key is one of those that the commands write: it says which server of a cluster the connection goes to, if
// nothing was sent on it before. Two round trips.
func Transact(ctx context.Context, c rueidis.DedicatedClient, key string, commands ...rueidis.Completed) (done bool, err error) {
	// Not in one go: of a user who may not MULTI each command would be executed at once, whatever has changed.
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
		c.Close() // the transaction may be open still: whoever had the connection next would be in it
	}
	err = errors.Join(err, failed)
	for _, result := range results {
		if one := result.Error(); !rueidis.IsRedisNil(one) {
			err = errors.Join(err, one)
		}
	}
	return err == nil, Classify("EXEC", err)
}
