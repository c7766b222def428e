package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// Bounds of DrainDue: of the messages that a call drains, and of the calls.
const (
	readyLimit = 500
	readyBytes = 1 << 20
	readyCalls = 10
)

// DrainDue has what is due become ready now, oldest first, as a bridge would within milliseconds: for callers whose answer says
// that it is ready. It stops after 5,000 messages, and leaves what is held back, and what Redis refuses, to the bridges. One
// round trip for 500 messages, and one at least.
func DrainDue(ctx context.Context, c rueidis.Client, k Keys) error {
	for range readyCalls {
		drained, err := Drain(ctx, c, k, readyLimit, readyBytes)
		if err != nil || drained.Wait != 0 || drained.Moved+drained.Dead == 0 {
			return err
		}
	}
	return nil
}
