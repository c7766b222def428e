package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// upkeep is the loop that maintains one queue. While the queue holds entries, upkeep makes passes over the queue. While
// the queue only needs tidying, upkeep waits for its turn among all such queues. When the queue is empty, the loop
// ends.
type upkeep struct {
	k     *Keeper
	queue string
	log   *slog.Logger
	state loop.Reporter
	stop  context.CancelFunc
	poked chan struct{} // ends a wait

	// Keeper.mu guards busy, noticed and keyed.
	busy    bool // the queue gets passes over its entries: see passBusy
	noticed bool // the queue was noticed while busy
	keyed   bool // messages have ordering keys: the queue gets passes of its own, and waits for no turn

	reclaimer   *Reclaimer
	trimmer     *Trimmer
	lastStream  view.StreamInfo // of the last pass over a busy queue
	quietWait   time.Duration   // wait after the last pass, if no consumer has read since the pass before
	tidyWait    time.Duration   // wait between two tidyings
	turnsWait   time.Duration   // wait between two passes over ordering keys
	tidyAt      time.Time       // next tidying; used only if the queue also gets passes over its ordering keys
	trimAt      time.Time       // next trim of a busy queue
	consumersAt time.Time       // next deletion of idle consumers
	orphansAt   time.Time       // next sweep for orphans of a busy queue
	floods      loop.Floods     // limits log lines about reclaimed entries
}

func newUpkeep(k *Keeper, queue string, busy bool, stop context.CancelFunc) *upkeep {
	log := k.cfg.Logger.With(slog.String("queue", queue))
	u := &upkeep{
		k: k, queue: queue, log: log, state: loop.Reporter{Log: log, Activity: "upkeep"}, stop: stop,
		poked: make(chan struct{}, 1), busy: busy,
		reclaimer: NewReclaimer(ReclaimerConfig{
			Client: k.cfg.Client, Prefix: k.cfg.Prefix, Queue: queue, Logger: k.cfg.Logger, Watched: true,
			Actor: k.cfg.Actor, Observer: k.cfg.Observer,
		}),
		trimmer: NewTrimmer(k.cfg.Client, k.cfg.Prefix, queue),
	}
	u.reclaimer.policies = k.policies
	name, _, _ := lua.SplitPartition(queue)
	u.trimmer.events = observe.SeriesOf(k.cfg.Observer, observe.Bridge, name, "")
	return u
}

func (u *upkeep) isBusy() bool {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	return u.busy
}

func (u *upkeep) isKeyed() bool {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	return u.keyed
}

func (u *upkeep) setKeyed(keyed bool) {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	u.keyed = keyed
}

func (u *upkeep) setBusy(busy bool) {
	u.k.mu.Lock()
	defer u.k.mu.Unlock()
	u.busy = busy
}

// run makes passes until ctx ends, or until there is nothing left to do.
func (u *upkeep) run(ctx context.Context) {
	retry := loop.NewBackoff(10 * time.Second)
	wasBusy := u.isBusy() // at the last pass
	defer u.floods.Close()
	defer u.state.End()
	for {
		needsTurn := !wasBusy && !u.isBusy() && !u.isKeyed()
		if needsTurn && !u.k.tidyTurns.wait(ctx, u.poked) {
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
		if !loop.SleepUntil(ctx, wait, u.poked) {
			return
		}
		wasBusy = u.isBusy()
	}
}

// pass makes one pass over the queue. It returns the wait until the next pass. done: there is nothing left to do.
func (u *upkeep) pass(ctx context.Context) (wait time.Duration, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	if u.isBusy() {
		wait, busy, err := u.passBusy(ctx)
		if busy || err != nil {
			return wait, false, err
		}
		u.setBusy(false)
		u.quietWait = 0
		if err := lua.Forget(ctx, u.k.cfg.Client, u.trimmer.keys); err != nil {
			return 0, false, err
		}
	}
	return u.tidyUp(ctx)
}

// passBusy makes one pass over a queue with entries. busy is false if no entries are left, or if nobody has read them
// for long. A failing step ends the pass only if the server does not answer.
func (u *upkeep) passBusy(ctx context.Context) (wait time.Duration, busy bool, err error) {
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
		trimmed, trimErr := u.trimmer.Trim(ctx) // deletes leases of acknowledged entries
		err = errors.Join(err, trimErr)
		return 0, err != nil || trimmed.More, err
	}
	changed := stream.Length != u.lastStream.Length || !slices.Equal(stream.Groups, u.lastStream.Groups)
	u.lastStream = stream
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
		u.quietWait = interval
		return interval, true, nil
	}
	// No consumer reads. Wait ever longer, and at QuietMax stop: the survey notices the queue when a consumer reads
	// again.
	u.quietWait = min(max(2*u.quietWait, interval), u.k.cfg.QuietMax)
	return u.quietWait, u.quietWait < u.k.cfg.QuietMax, nil
}

// trim trims at most once per KeepMax, because a queue with a short visibility timeout has more passes than trimming
// needs.
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
	if !now.Before(u.consumersAt) {
		u.consumersAt = now.Add(consumerInterval)
		if _, err := DropIdleConsumers(ctx, u.k.cfg.Client, u.k.cfg.Prefix, u.queue, u.k.cfg.ConsumerIdle); err != nil {
			return err
		}
	}
	if now.Before(u.orphansAt) {
		return nil
	}
	u.orphansAt = now.Add(orphanInterval)
	look, err := u.survey(ctx)
	if err == nil {
		_, err = u.sweepOrphans(ctx, look)
	}
	return err
}

// interval returns the time between two passes over a busy queue. visibility is the smallest visibility timeout of its
// groups; zero: there are no groups.
func (u *upkeep) interval(visibility time.Duration) time.Duration {
	if visibility == 0 {
		return u.k.cfg.KeepMax
	}
	return min(max(visibility/5, u.k.cfg.KeepMin), u.k.cfg.KeepMax)
}

// tidyUp makes one pass over a queue without entries.
func (u *upkeep) tidyUp(ctx context.Context) (wait time.Duration, done bool, err error) {
	look, err := u.survey(ctx)
	switch {
	case err != nil:
		return 0, false, err
	case look.Busy && look.Standing == "": // a group holds an entry; see lua.Look.Standing
		u.setBusy(true)
		u.tidyWait = 0
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
	u.setKeyed(trimmed.Turns)
	if trimmed.Turns {
		if err := u.passTurns(ctx); err != nil {
			return 0, false, err
		}
		if wait := time.Until(u.tidyAt); wait > 0 {
			return min(wait, u.turnsWait), false, nil
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
		u.tidyWait = orphanInterval // soon enough to see that a candidate has got a member
	case trimmed.Windows > 0:
		u.tidyWait = tidyMin
	default:
		u.tidyWait = min(max(2*u.tidyWait, tidyMin), tidyMax)
	}
	u.tidyAt = time.Now().Add(u.tidyWait)
	if trimmed.Turns {
		return min(u.tidyWait, u.turnsWait), false, nil
	}
	return u.tidyWait, false, nil
}

// passTurns makes a pass over the ordering keys. The next pass follows within a second if this pass changed something,
// and after twice the last wait otherwise.
func (u *upkeep) passTurns(ctx context.Context) error {
	changes, err := u.trimmer.PassTurns(ctx)
	u.turnsWait = min(max(2*u.turnsWait, minSweepWait), maxSweepWait)
	if changes > 0 {
		u.turnsWait = minSweepWait
	}
	return err
}

// survey reads the state of the queue.
func (u *upkeep) survey(ctx context.Context) (lua.Look, error) {
	looks, err := u.k.survey(ctx, []string{u.queue})
	if err == nil {
		err = looks[0].Err
	}
	if err != nil {
		return lua.Look{}, fmt.Errorf("look at %s: %w", u.queue, err)
	}
	return looks[0], nil
}

// sweepOrphans makes one pass for orphans if the queue may have any. waiting is the number of candidates.
func (u *upkeep) sweepOrphans(ctx context.Context, look lua.Look) (waiting int, err error) {
	if !look.Orphans {
		return 0, nil
	}
	deleted, waiting, err := u.trimmer.SweepOrphans(ctx)
	u.trimmer.report(observe.OrphanDeleted, deleted)
	if deleted > 0 {
		u.log.Info(deletedOrphans, slog.Int("count", deleted))
	}
	return waiting, err
}
