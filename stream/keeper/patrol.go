package keeper

import (
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
	patrolRest   = 50 * time.Millisecond // shortest pause between two requests
	patrolMost   = time.Second           // longest pause, however slow the server is
	patrolShare  = 20                    // in between, the pause in multiples of the request's time
	patrolLooks  = 3                     // checks of each candidate, after the first one, while it is being confirmed
	patrolErrors = 10                    // errors in a row that end the round
	patrolRetry  = time.Minute
)

// patrol searches all owned queues for bodies without a member of the schedule. If a queue has more bodies than
// members, its upkeep deletes them. The patrol finds the rest, which are hidden by equally many members without a body.
// Both may sweep one queue at the same time, and so may two bridges: each deletes only bodies that it has seen without
// a member for a minute, and that still have none.
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
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(min(patrolRetry, interval)), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(interval), backoff.WithMaxElapsedTime(0))
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

// round examines all bodies once. It confirms the candidates of many queues together, so that a thousand queues do not
// take a thousand minutes.
func (p *patrol) round(ctx context.Context) error {
	hashes, failed := p.hashes(ctx)
	for inRow := 0; len(hashes) > 0 && inRow < patrolErrors && ctx.Err() == nil; {
		var found []*patrolledHash
		for candidates := 0; len(hashes) > 0 && candidates < orphanCandidates && inRow < patrolErrors; {
			b := hashes[0]
			done, err := p.walk(ctx, b)
			candidates += len(b.found)
			if len(b.found) > 0 {
				found = append(found, b)
			}
			if done || err != nil {
				hashes = hashes[1:]
			}
			inRow++
			if err == nil {
				inRow = 0
			} else if failed == nil {
				failed = err
			}
		}
		if err := p.confirm(ctx, found); failed == nil {
			failed = err
		}
	}
	return failed
}

// hashes returns the hashes of the owned queues that have bodies.
func (p *patrol) hashes(ctx context.Context) (hashes []*patrolledHash, failed error) {
	var mu sync.Mutex
	for queues := range slices.Chunk(p.k.ownedQueues(), lua.MaxSurvey) {
		err := p.k.inBatches(queues, func(batch []string) error {
			looks, err := p.k.survey(ctx, batch)
			mu.Lock()
			defer mu.Unlock()
			for i, look := range looks { // the scheduler surveys all queues, and reports those that cannot be read
				if k := lua.NewKeys(p.k.cfg.Prefix, batch[i]); look.Bodies > 0 {
					hashes = append(hashes, &patrolledHash{newOrphanSweep(k.Payload), batch[i], k.Due},
						&patrolledHash{newOrphanSweep(k.Meta), batch[i], k.Due})
				}
			}
			return err
		})
		if failed == nil {
			failed = err
		}
		if !p.sleep(ctx, lookInterval) {
			break
		}
	}
	return hashes, failed
}

// walk scans a hash to its end, or until there are enough candidates.
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

// confirm checks candidates until they are no longer orphans, or deleted. The time of confirmation begins with a first
// check of all of them, because the walk may have taken much longer without any check.
func (p *patrol) confirm(ctx context.Context, found []*patrolledHash) (failed error) {
	for look := 0; look <= patrolLooks && len(found) > 0; look++ {
		if look > 0 && !p.sleep(ctx, orphanConfirm/patrolLooks) {
			return nil
		}
		for _, b := range found {
			started := p.now()
			if look == 0 {
				b.since(started)
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
			if err != nil && failed == nil {
				failed = fmt.Errorf("sweep orphans of %s: %w", b.queue, err)
			}
			if !p.rest(ctx, started) {
				return nil
			}
		}
	}
	for _, b := range found {
		clear(b.found) // a call failed: these candidates are dropped
	}
	return failed
}

// rest leaves the server to others for a while, after a call that began at started. It returns false if ctx ended.
func (p *patrol) rest(ctx context.Context, started time.Time) bool {
	return p.sleep(ctx, min(max(patrolRest, patrolShare*p.now().Sub(started)), patrolMost))
}
