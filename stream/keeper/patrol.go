package keeper

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

const (
	patrolMinPause = 50 * time.Millisecond // shortest pause between two requests
	patrolMaxPause = time.Second           // longest pause, however slow the server is
	patrolPauses   = 20                    // within these bounds, the pause in multiples of the request's time
	patrolChecks   = 3                     // checks of each candidate after the first one, until it is deleted
	patrolErrors   = 10                    // errors in a row that end the round
	patrolRetry    = time.Minute           // wait after the first round that failed
)

// patrol searches all owned queues for orphans. If a queue has more bodies than members, its upkeep finds and deletes
// the orphans. The patrol finds the orphans of queues in which as many members lack a body, so that the numbers are
// equal. Patrol and upkeep may sweep one queue at the same time, and so may two bridges: each deletes only bodies that
// it has seen without a member for a minute, and that still have none.
type patrol struct {
	k     *Keeper
	state loop.Reporter
	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration) bool
}

func newPatrol(k *Keeper) *patrol {
	return &patrol{k: k, state: loop.Reporter{Log: k.cfg.Logger, Activity: "looking for bodies without a due time"},
		now: time.Now, sleep: loop.Sleep}
}

// patrolledHash is a hash that the patrol examines.
type patrolledHash struct {
	orphanSweep
	queue, due string
}

// run makes a round once per interval, at a random time, so that bridges that were started together do not all make it
// at once. The first round may come soon after the start.
func (p *patrol) run(ctx context.Context) {
	interval := p.k.cfg.PatrolInterval
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(min(patrolRetry, interval)),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(interval),
		backoff.WithMaxElapsedTime(0), // never give up
	)
	for wait := interval/60 + rand.N(interval); p.sleep(ctx, wait); {
		err := p.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.state.Report(err)
			wait = retry.NextBackOff()
		default:
			p.state.Report(nil)
			retry.Reset()
			wait = interval/2 + rand.N(interval)
		}
	}
}

// round examines all bodies once, and returns the first error. It confirms the candidates of many queues together, so
// that a thousand queues do not take a thousand minutes.
func (p *patrol) round(ctx context.Context) error {
	hashes, firstErr := p.hashes(ctx)
	for errorsInRow := 0; len(hashes) > 0 && errorsInRow < patrolErrors && ctx.Err() == nil; {
		var suspects []*patrolledHash // hashes with candidates
		for candidates := 0; len(hashes) > 0 && candidates < orphanCandidates && errorsInRow < patrolErrors; {
			hash := hashes[0]
			done, err := p.walk(ctx, hash)
			candidates += len(hash.candidates)
			if len(hash.candidates) > 0 {
				suspects = append(suspects, hash)
			}
			if done || err != nil {
				hashes = hashes[1:]
			}
			errorsInRow++
			if err == nil {
				errorsInRow = 0
			}
			firstErr = cmp.Or(firstErr, err)
		}
		firstErr = cmp.Or(firstErr, p.confirm(ctx, suspects))
	}
	return firstErr
}

// hashes returns the hashes of the owned queues that have bodies. With an error it leaves out queues that could not be
// surveyed.
func (p *patrol) hashes(ctx context.Context) (hashes []*patrolledHash, firstErr error) {
	var mu sync.Mutex
	for queues := range slices.Chunk(p.k.ownedQueues(), lua.MaxSurvey) {
		err := p.k.inBatches(queues, func(batch []string) error {
			looks, err := p.k.survey(ctx, batch)
			mu.Lock()
			defer mu.Unlock()
			for i, look := range looks { // the scheduler, which surveys all queues, reports queues that cannot be read
				if look.Bodies == 0 {
					continue
				}
				k := lua.NewKeys(p.k.cfg.Prefix, batch[i])
				hashes = append(hashes,
					&patrolledHash{newOrphanSweep(k.Payload), batch[i], k.Due},
					&patrolledHash{newOrphanSweep(k.Meta), batch[i], k.Due})
			}
			return err
		})
		firstErr = cmp.Or(firstErr, err)
		if !p.sleep(ctx, surveyInterval) {
			break
		}
	}
	return hashes, firstErr
}

// walk searches a hash for candidates. done is false if it stopped before the end because there are enough candidates.
func (p *patrol) walk(ctx context.Context, b *patrolledHash) (done bool, err error) {
	for !b.full() && p.k.owns(b.queue) {
		started := p.now()
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		swept, err := lua.SweepOrphans(call, p.k.cfg.Client, b.due, b.hash, b.cursor, orphanLimit, nil)
		cancel()
		if err != nil {
			return false, fmt.Errorf("sweep orphans of %s: %w", b.queue, err)
		}
		b.note(nil, swept, p.now())
		b.cursor = swept.Cursor
		if !p.rest(ctx, started) || b.cursor == "0" {
			return true, nil
		}
	}
	return !b.full(), nil
}

// confirm checks the candidates of hashes until each is deleted, or is no orphan any more. It returns the first error.
// The minute of confirmation begins with the first check of all candidates, because the walk may have taken much
// longer, and checked none of them.
func (p *patrol) confirm(ctx context.Context, hashes []*patrolledHash) (firstErr error) {
	for check := 0; check <= patrolChecks && len(hashes) > 0; check++ {
		if check > 0 && !p.sleep(ctx, orphanConfirm/patrolChecks) {
			return nil
		}
		for _, b := range hashes {
			started := p.now()
			if check == 0 {
				b.restartConfirmation(started)
			}
			call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
			deleted, err := b.pass(call, p.k.cfg.Client, b.due, 0, started)
			cancel()
			if deleted > 0 {
				if p.k.cfg.Observer != nil {
					queue, _, _ := lua.SplitPartition(b.queue)
					p.k.cfg.Observer.Series(observe.Bridge, queue, "").Add(observe.OrphanDeleted, deleted)
				}
				p.k.cfg.Logger.Info(deletedOrphans, slog.String("queue", b.queue), slog.Int("count", deleted))
			}
			if err != nil && firstErr == nil {
				firstErr = fmt.Errorf("sweep orphans of %s: %w", b.queue, err)
			}
			if !p.rest(ctx, started) {
				return nil
			}
		}
	}
	for _, b := range hashes {
		clear(b.candidates) // candidates are left only if a call failed
	}
	return firstErr
}

// rest leaves the server to other clients for a while, after a call that began at started. It returns false if ctx
// ended.
func (p *patrol) rest(ctx context.Context, started time.Time) bool {
	pause := patrolPauses * p.now().Sub(started)
	return p.sleep(ctx, min(max(patrolMinPause, pause), patrolMaxPause))
}
