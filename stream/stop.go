package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// awaitHandlers waits until handlers have returned and are settled: for ShutdownTimeout, then for CancelGrace with
// their contexts cancelled. It returns how many handlers have not returned.
func (p *partitionWorker) awaitHandlers(stop context.CancelCauseFunc) int {
	if p.held.emptyWithin(max(0, p.cfg.ShutdownTimeout)) {
		return 0
	}
	p.held.cancelAll(ErrStopping)
	if p.held.emptyWithin(p.cfg.CancelGrace) {
		return 0
	}
	left := p.held.list()
	for _, d := range left {
		p.logDelivery(slog.LevelWarn, "handler did not return: its entry stays pending until the visibility timeout", d)
	}
	stop(ErrStopping)
	return len(left)
}

// lateRead is the time within which a read that failed or was cut off may still reach the server, over its closed
// connection.
const lateRead = 100 * time.Millisecond

// leave releases entries that a cut-off read delivered to this consumer but the worker never saw, and removes the
// consumer if it holds nothing. If this fails, the reclaimer does it. A worker that has not joined its group got no
// entries: entries under its consumer name belong to an earlier worker, or to another worker of the same name.
func (p *partitionWorker) leave() {
	if !p.joined {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), loop.CallTimeout)
	defer cancel()
	if p.cutOff || p.readInDoubt {
		loop.Sleep(ctx, lateRead)
	}
	err := p.releaseUnseen(ctx)
	if err == nil {
		_, err = lua.DropConsumers(ctx, p.cfg.Client, p.keys, p.cfg.Group, []string{p.cfg.Consumer})
	}
	if err != nil && !errors.Is(err, lua.ErrNoGroup) {
		p.log.Warn("could not take leave: what this consumer holds is reclaimed after the visibility timeout",
			slog.Any("error", err))
	}
}

// releaseBatch is the number of entries that one call releases. It is small, because the worker does not know the sizes
// of the entries, and the script holds all of them in memory at once.
const releaseBatch = 20

// releaseUnseen releases, in bounded calls, the pending entries of this consumer that it does not hold.
func (p *partitionWorker) releaseUnseen(ctx context.Context) error {
	for {
		unseen, err := p.unseen(ctx, releaseBatch)
		if err != nil || len(unseen) == 0 {
			return err
		}
		failures := make([]lua.Failure, len(unseen))
		for i, entry := range unseen {
			failures[i] = lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionRelease, Delay: -1}
		}
		outcomes, err := lua.Retry(ctx, p.cfg.Client, p.keys, p.cfg.Group, p.policy.Load().Attempts(), failures)
		if err != nil {
			return err
		}
		for _, outcome := range outcomes {
			switch outcome {
			case lua.Released:
				p.released.Add(1)
				p.report(observe.Released, 1)
			case lua.Stuck: // else this loop would find the entry again and again
				return errors.New("the stream of dead letters refuses an entry")
			}
		}
	}
}
