package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// upkeep is the loop of one queue. While the queue holds entries, upkeep makes passes over it. While it only needs
// tidying, upkeep waits for its turn among all such queues. When the queue is empty, the loop ends.
type upkeep struct {
	k     *Keeper
	queue string
	log   *slog.Logger
	state loop.Reporter
	stop  context.CancelFunc
	poked chan struct{}

	// Guarded by Keeper.mu.
	busy    bool
	noticed bool // noticed while busy
	turns   bool // messages have keys: the queue gets passes of its own, and waits for no turn

	reclaimer *Reclaimer
	trimmer   *Trimmer
	seen      view.StreamInfo
	quiet     time.Duration // the wait while nobody reads
	rest      time.Duration // the wait until the next tidying
	tidyAt    time.Time     // when that ends; only matters to a queue with passes for its keys
	turnRest  time.Duration // the wait between two passes over its keys
	trimAt    time.Time
	consumers time.Time // when to look for idle ones
	orphansAt time.Time
	floods    loop.Floods // limits log lines about reclaimed entries
}

func newUpkeep(k *Keeper, queue string, busy bool, stop context.CancelFunc) *upkeep {
	log := k.cfg.Logger.With(slog.String("queue", queue))
	u := &upkeep{
		k: k, queue: queue, log: log, state: loop.Reporter{Log: log, Activity: "upkeep"}, stop: stop, poked: make(chan struct{},
			1), busy: busy,
		reclaimer: NewReclaimer(ReclaimerConfig{
			Client: k.cfg.Client, Prefix: k.cfg.Prefix, Queue: queue, Logger: k.cfg.Logger, Watched: true,
			Actor: k.cfg.Actor, Observer: k.cfg.Observer,
		}),
		trimmer: NewTrimmer(k.cfg.Client, k.cfg.Prefix, queue),
	}
	u.reclaimer.policies = k.policies
	name, _, _ := lua.SplitPartition(queue)
	u.trimmer.tell = observe.SeriesOf(k.cfg.Observer, observe.Bridge, name, "")
	return u
}

func (u *upkeep) poke() {
	select {
	case u.poked <- struct{}{}:
	default:
	}
}

func (u *upkeep) isBusy() bool {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	return u.busy
}

func (u *upkeep) hasTurns() bool {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	return u.turns
}

func (u *upkeep) setTurns(turns bool) {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	u.turns = turns
}

func (u *upkeep) setBusy(busy bool) {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	u.busy = busy
}

func (u *upkeep) run(ctx context.Context) {
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(10*time.Second), backoff.WithMaxElapsedTime(0))
	wasBusy := u.isBusy()
	defer u.floods.Close()
	for {
		if !wasBusy && !u.isBusy() && !u.hasTurns() && !u.k.tidy.wait(ctx, u.poked) {
			return
		}
		wait, done, err := u.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			u.state.Report(err)
			wait = retry.NextBackOff()
		default:
			u.state.Report(nil)
			retry.Reset()
			if done && u.k.end(u) {
				return
			}
		}
		if !u.wait(ctx, wait) {
			return
		}
		wasBusy = u.isBusy()
	}
}

// wait sleeps until poked, or for d. It returns false if ctx ended.
func (u *upkeep) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-u.poked:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// pass makes one pass over the queue. It returns the wait until the next pass, and whether there is nothing left to do.
func (u *upkeep) pass(ctx context.Context) (wait time.Duration, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	if u.isBusy() {
		wait, busy, err := u.keep(ctx)
		if busy || err != nil {
			return wait, false, err
		}
		u.setBusy(false)
		u.quiet = 0
		if err := lua.Forget(ctx, u.k.cfg.Client, u.trimmer.keys); err != nil {
			return 0, false, err
		}
	}
	return u.tidyUp(ctx)
}

// keep makes one pass over a queue with entries; busy is false if none are left. A failing step ends the pass only if
// the server is not there.
func (u *upkeep) keep(ctx context.Context) (wait time.Duration, busy bool, err error) {
	reclaimed, err := u.reclaimer.Reclaim(ctx)
	if reclaimed.Moved() > 0 {
		u.floods.Log(u.log, slog.LevelInfo, "reclaimed abandoned entries", slog.Int("retried", reclaimed.Retried),
			slog.Int("dead", reclaimed.Dead))
	}
	if lua.Temporary(err) || ctx.Err() != nil {
		return 0, true, err
	}
	stream := reclaimed.stream
	if stream.Length == 0 && stream.Pending() == 0 {
		trimmed, trimErr := u.trimmer.Trim(ctx) // removes leases of acknowledged entries
		err = errors.Join(err, trimErr)
		return 0, err != nil || trimmed.More, err
	}
	changed := stream.Length != u.seen.Length || !slices.Equal(stream.Groups, u.seen.Groups)
	u.seen = stream
	if changed {
		u.trimmer.wake()
	}
	trimmed, trimErr := u.trim(ctx)
	if trimmed.Turns {
		_, turnsErr := u.trimmer.PassTurns(ctx)
		trimErr = errors.Join(trimErr, turnsErr)
	}
	if err := errors.Join(err, trimErr, u.chores(ctx)); err != nil {
		return 0, true, err
	}
	if reclaimed.More || trimmed.More {
		u.trimAt = time.Time{}
		return 0, true, nil
	}
	interval := u.interval(reclaimed.Visibility)
	if stream.Pending() > 0 || changed || trimmed.Freed > 0 {
		u.quiet = interval
		return interval, true, nil
	}
	// Nobody has read these entries for long. The survey will notice the queue when somebody does.
	u.quiet = min(max(2*u.quiet, interval), u.k.cfg.QuietMax)
	return u.quiet, u.quiet < u.k.cfg.QuietMax, nil
}

// trim trims once per KeepMax: a queue with a short visibility timeout has more passes than trimming needs.
func (u *upkeep) trim(ctx context.Context) (TrimResult, error) {
	now := time.Now()
	if now.Before(u.trimAt) {
		return TrimResult{}, nil
	}
	u.trimAt = now.Add(u.k.cfg.KeepMax)
	return u.trimmer.Trim(ctx)
}

// chores does the occasional work for a busy queue.
func (u *upkeep) chores(ctx context.Context) error {
	now := time.Now()
	if !now.Before(u.consumers) {
		u.consumers = now.Add(consumerInterval)
		if _, err := DropIdleConsumers(ctx, u.k.cfg.Client, u.k.cfg.Prefix, u.queue, u.k.cfg.ConsumerIdle); err != nil {
			return err
		}
	}
	if now.Before(u.orphansAt) {
		return nil
	}
	u.orphansAt = now.Add(orphanInterval)
	look, err := u.look(ctx)
	if err == nil {
		_, err = u.sweepOrphans(ctx, look)
	}
	return err
}

func (u *upkeep) interval(visibility time.Duration) time.Duration {
	if visibility == 0 {
		return u.k.cfg.KeepMax
	}
	return min(max(visibility/5, u.k.cfg.KeepMin), u.k.cfg.KeepMax)
}

// tidyUp makes one pass over a queue without entries.
func (u *upkeep) tidyUp(ctx context.Context) (wait time.Duration, done bool, err error) {
	look, err := u.look(ctx)
	switch {
	case err != nil:
		return 0, false, err
	case look.Busy && look.Standing == "":
		u.setBusy(true)
		u.rest = 0
		return u.k.cfg.KeepMin, false, nil
	case !look.Untidy && !look.Turns:
		return 0, true, nil
	}
	if err := lua.Forget(ctx, u.k.cfg.Client, u.trimmer.keys); err != nil {
		return 0, false, err
	}
	trimmed, err := u.trimmer.Trim(ctx)
	if err != nil {
		return 0, false, err
	}
	u.setTurns(trimmed.Turns)
	if trimmed.Turns {
		if err := u.passTurns(ctx); err != nil {
			return 0, false, err
		}
		if rest := time.Until(u.tidyAt); rest > 0 {
			return min(rest, u.turnRest), false, nil
		}
	}
	waiting, err := u.sweepOrphans(ctx, look)
	if err != nil {
		return 0, false, err
	}
	switch {
	case trimmed.More:
		return 0, false, nil
	case waiting > 0:
		u.rest = orphanInterval // soon enough to see that a candidate has got a member
	case trimmed.Windows > 0:
		u.rest = tidyMin
	default:
		u.rest = min(max(2*u.rest, tidyMin), tidyMax)
	}
	u.tidyAt = time.Now().Add(u.rest)
	if trimmed.Turns {
		return min(u.rest, u.turnRest), false, nil
	}
	return u.rest, false, nil
}

// passTurns makes a pass over the keys of messages. The next one follows within a second if something changed, and ever
// later otherwise.
func (u *upkeep) passTurns(ctx context.Context) error {
	moved, err := u.trimmer.PassTurns(ctx)
	u.turnRest = min(max(2*u.turnRest, minSweepWait), maxSweepWait)
	if moved > 0 {
		u.turnRest = minSweepWait
	}
	return err
}

func (u *upkeep) look(ctx context.Context) (lua.Look, error) {
	looks, err := u.k.survey(ctx, []string{u.queue})
	if err == nil {
		err = looks[0].Err
	}
	if err != nil {
		return lua.Look{}, fmt.Errorf("look at %s: %w", u.queue, err)
	}
	return looks[0], nil
}

func (u *upkeep) sweepOrphans(ctx context.Context, look lua.Look) (waiting int, err error) {
	if !look.Orphans {
		return 0, nil
	}
	deleted, waiting, err := u.trimmer.SweepOrphans(ctx)
	u.trimmer.told(observe.OrphanDeleted, deleted)
	if deleted > 0 {
		u.log.Info(deletedOrphans, slog.Int("count", deleted))
	}
	return waiting, err
}
