package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrNewBridge: a live bridge knows ordering keys, so messages would wait for their keys again. Nothing was changed.
var ErrNewBridge = errors.New("a bridge is alive that knows keys of messages")

// RolledBack counts the changes of Rollback, and the recurrences that bridges of the earlier release do not plan.
type RolledBack struct {
	Released    int64 `json:"released"`    // messages that waited for their key, now due at their original time
	Recurrences int64 `json:"recurrences"` // recurrences of the queue: bridges of the earlier release do not plan them
}

const (
	liveFor     = 5 * time.Second // a bridge is alive if its last heartbeat is at most so old
	releaseStep = 100             // messages per call
)

// Rollback prepares the schedule of a queue for bridges that do not know ordering keys. Messages that wait for their
// key become due at their original due time, and the record of which message holds which key is deleted. From then on
// several messages of one key may be delivered at the same time. ErrNewBridge: a live bridge knows ordering keys, and
// force is false. Rollback takes one round trip per 100 messages. It is harmless to repeat; repeat it after an error.
func Rollback(ctx context.Context, c rueidis.Client, prefix, queue string, force bool) (done RolledBack, err error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return done, err
	}
	if !force {
		if err := noNewBridge(ctx, c, prefix); err != nil {
			return done, fmt.Errorf("roll back %s: %w", queue, err)
		}
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err != nil {
		return done, fmt.Errorf("roll back %s: %w", queue, err)
	}
	for _, partition := range counts.Names(queue) {
		released, err := releaseWaiting(ctx, c, lua.NewKeys(prefix, partition))
		done.Released += released
		if err != nil {
			return done, fmt.Errorf("roll back %s: %w", partition, err)
		}
	}
	k := lua.NewKeys(prefix, queue)
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	done.Recurrences, err = c.Do(call, c.B().Hlen().Key(k.Recurring).Build()).AsInt64()
	return done, lua.Classify("HLEN "+k.Recurring, err)
}

// noNewBridge returns ErrNewBridge if a live bridge knows ordering keys.
func noNewBridge(ctx context.Context, c rueidis.Client, prefix string) error {
	beats, err := view.ReadHeartbeats(ctx, c, prefix)
	if err != nil {
		return err
	}
	for _, b := range beats {
		if !b.Foreign && b.Age.Abs() <= liveFor && b.Identity.Level >= lua.LevelKeys {
			return fmt.Errorf("%w: %s", ErrNewBridge, b.Identity)
		}
	}
	return nil
}

// releaseWaiting deletes the record of the ordering keys of a partition: which message holds a key, and which messages
// wait in line. Then it makes all waiting messages due with PassTurns, which does that for messages without a place in
// line.
func releaseWaiting(ctx context.Context, c rueidis.Client, k lua.Keys) (released int64, err error) {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	err = lua.DropTurns(call, c, k)
	cancel()
	if err != nil {
		return 0, err
	}
	var from lua.TurnsPassed
	for {
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		passed, err := lua.PassTurns(call, c, k, from, releaseStep)
		cancel()
		if err != nil {
			return released, err
		}
		released += int64(passed.Moved)
		from = lua.TurnsPassed{Rank: passed.Rank}
		switch {
		case passed.Moved > 0: // the ranks of the other messages have changed, so begin again
			from.Rank = 0
		case passed.Rank == 0:
			return released, nil
		}
	}
}
