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

// ErrNewBridge: a bridge is alive that knows keys of messages, so messages would wait for them again. Nothing was changed.
var ErrNewBridge = errors.New("a bridge is alive that knows keys of messages")

// RolledBack counts what Rollback changed, and names the work that bridges of the release before leave undone.
type RolledBack struct {
	Released    int64 `json:"released"`    // messages that waited for their key, and are due when they were to be
	Recurrences int64 `json:"recurrences"` // that nobody plans who knows none
}

const (
	liveFor     = 5 * time.Second // a bridge that sent a heartbeat so lately is alive
	releaseStep = 100             // messages of one call
)

// Rollback makes all that is scheduled in a queue servable by bridges that know no keys of messages: what waits for its key is
// due when it was to be, and who holds which key is forgotten. Messages of one key may be delivered side by side from then on.
// ErrNewBridge, unless force. One round trip for 100 messages; harmless to repeat, and to be repeated after an error.
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

// releaseWaiting forgets who holds which key of a partition, and makes all messages due that wait: the script that looks for
// messages that are not in line any more does so.
func releaseWaiting(ctx context.Context, c rueidis.Client, k lua.Keys) (released int64, err error) {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	err = c.Do(call, c.B().Unlink().Key(k.Turns).Build()).Error()
	cancel()
	if err != nil {
		return 0, lua.Classify("UNLINK "+k.Turns, err)
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
		case passed.Moved > 0: // those behind them have moved up
			from.Rank = 0
		case passed.Rank == 0:
			return released, nil
		}
	}
}
