package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// Bounds of DrainDue: the messages and bytes of a drain, and the number of drains.
const (
	readyLimit = 500
	readyBytes = 1 << 20
	readyCalls = 10
)

// DrainDue makes due messages ready now, oldest first, as a bridge would within milliseconds. It is for callers whose
// answer promises that a message is ready. It stops after 5,000 messages. Messages that are held back, or that Redis
// refuses, are left to the bridges. One round trip for each 500 messages, and one at least.
func DrainDue(ctx context.Context, c rueidis.Client, k Keys) error {
	for range readyCalls {
		drained, err := Drain(ctx, c, k, readyLimit, readyBytes)
		if err != nil || drained.Wait != 0 || drained.Moved+drained.Dead == 0 {
			return err
		}
	}
	return nil
}
