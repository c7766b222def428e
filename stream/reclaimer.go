package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Bounds of one reclaim call, and of one pass over a group.
const (
	reclaimLimit     = 100
	reclaimBytes     = 1 << 20
	reclaimCalls     = 20          // of a pass, per group
	reclaimFruitless = 5           // of these, calls that found only fresh entries
	reclaimHeldUp    = 3           // passes in a row that are given up because they were held up: a server may be slow for good
	vigilGap         = time.Second // between two calls of a vigil, when half a visibility timeout is less
	clockSlack       = time.Second // by which the server's clock may be ahead of where it is expected
)

// ReclaimerConfig configures a Reclaimer. Client and Queue are required.
type ReclaimerConfig struct {
	Client rueidis.Client
	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string
	Logger *slog.Logger // nil = nothing is logged

	// CalmSince returns since when nothing has happened that lets entries look abandoned which are not: a restart of the server, a
	// failover, a gap in which this process could not reach it. A group is reclaimed when that is longer ago than its visibility
	// timeout. The zero time means: not calm. A nil function means: always calm. On a cluster it is not asked: there the reclaimer judges
	// by its own calls, because each server has outages of its own.
	CalmSince func() time.Time

	// ServerTime returns the latest that the server's clock can show by now unless it was stepped. A clock that shows more makes
	// everything pending look abandoned at once, before CalmSince can know. Nil, or the zero time: the clock is not compared.
	ServerTime func() time.Time
}

// Reclaimer takes back what the groups of a queue hold for longer than their visibility timeout: it is delivered again, or
// dead-lettered. It remembers how far it has looked. Not safe for concurrent use; any number of processes may reclaim the same queue.
type Reclaimer struct {
	cfg     ReclaimerConfig
	keys    lua.Keys
	log     *slog.Logger
	cursors map[string]string // group → where the next pass goes on; absent = from the beginning
	warned  string
	stuck   condition
	lastTry time.Time // when an entry was last found stuck
	heldUp  int       // passes in a row

	policies *policySource
	vigil    *vigil // on a cluster
}

// NewReclaimer returns a Reclaimer for one queue.
func NewReclaimer(cfg ReclaimerConfig) *Reclaimer {
	if cfg.Prefix == "" {
		cfg.Prefix = lua.DefaultPrefix
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	log := cfg.Logger.With(slog.String("queue", cfg.Queue))
	r := &Reclaimer{
		cfg: cfg, keys: lua.NewKeys(cfg.Prefix, cfg.Queue), log: log, cursors: map[string]string{},
		stuck:    condition{log: log, what: "dead-lettering of abandoned entries"},
		policies: &policySource{client: cfg.Client, prefix: cfg.Prefix},
	}
	if cfg.CalmSince != nil && cfg.Client.Mode() == rueidis.ClientModeCluster {
		r.vigil = &vigil{}
		r.cfg.CalmSince = r.vigil.calmSince
	}
	return r
}

// ReclaimResult counts what one pass did.
type ReclaimResult struct {
	Retried int // scheduled for another attempt
	Buried  int // dead-lettered
	Skipped int // meant for another group: acknowledged
	Stuck   int // left pending, because the stream of dead letters refused them

	More       bool          // a bound ended the pass: go on at once
	Visibility time.Duration // the smallest visibility timeout of the groups; zero when there are none

	stream streamInfo
	unsure bool // a group was left out for now, so that no error says nothing about it
}

// Moved is how many entries left a pending list.
func (r ReclaimResult) Moved() int { return r.Retried + r.Buried + r.Skipped }

var errStuck = errors.New("the stream of dead letters refuses entries: they stay pending")

// Reclaim does one pass over every group that exists on the stream, registered or not, each by its own policy. Work per group is
// bounded; the next pass goes on where this one ended. A group that fails does not keep the others from their turn.
// Two round trips, and one per 100 entries taken or 1,000 entries looked at.
func (r *Reclaimer) Reclaim(ctx context.Context) (ReclaimResult, error) {
	var result ReclaimResult
	clock := r.clock() // before calm is asked: what disturbs it moves the clock afterwards
	began := time.Now()
	stream, err := readStream(ctx, r.cfg.Client, r.keys.Stream)
	if err != nil {
		r.missed(err)
		return result, fmt.Errorf("stream: reclaim %s: %w", r.cfg.Queue, err)
	}
	result.stream = stream
	names := stream.names()
	maps.DeleteFunc(r.cursors, func(group, _ string) bool { return !slices.Contains(names, group) })
	if len(names) == 0 {
		return result, nil
	}
	policies, warning, err := r.policies.read(ctx, r.cfg.Queue, names)
	if err != nil {
		return result, err
	}
	r.warn(warning)

	took, heldUp := time.Since(began), false
	var errs []error
	for _, g := range stream.groups {
		p := policies[g.name]
		if result.Visibility == 0 || p.VisibilityTimeout < result.Visibility {
			result.Visibility = p.VisibilityTimeout
		}
		r.seen(began, result.Visibility)
		if g.pending == 0 && r.cursors[g.name] == "" { // else one call more comes round, and drops the reclaimer's consumer
			continue
		}
		if !r.calm(p.VisibilityTimeout) {
			result.unsure = true
			continue
		}
		// The answers so far were held up for so long that a worker may have missed an extend: the server was away, and this pass is the
		// first to be served again. Workers come before the next one, and by then CalmSince knows, too.
		if took > p.VisibilityTimeout/3 && r.heldUp < reclaimHeldUp {
			heldUp, result.unsure = true, true
			continue
		}
		err := r.group(ctx, g.name, p, clock, &result)
		if errors.Is(err, lua.ErrNoGroup) { // destroyed a moment ago
			delete(r.cursors, g.name)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stream: reclaim %s/%s: %w", r.cfg.Queue, g.name, err))
		}
		if lua.Temporary(err) || ctx.Err() != nil {
			r.missed(err)
			break
		}
	}
	if r.heldUp++; !heldUp {
		r.heldUp = 0
	}
	r.reportStuck(result)
	return result, errors.Join(errs...)
}

// group reclaims one group until its pending list was seen, or a bound is reached.
func (r *Reclaimer) group(ctx context.Context, group string, p Policy, clock clock, result *ReclaimResult) error {
	fruitless := 0
	for range reclaimCalls {
		done, err := lua.Reclaim(ctx, r.cfg.Client, r.keys, lua.ReclaimArgs{
			Group: group, Attempts: p.Attempts(), MinIdle: p.VisibilityTimeout,
			Cursor: r.cursors[group], Limit: reclaimLimit, MaxBytes: reclaimBytes,
			NotAfter: clock.latest(min(clockSlack, p.VisibilityTimeout/3)),
		})
		if err != nil {
			return err
		}
		result.Retried += done.Retried
		result.Buried += done.Buried
		result.Skipped += done.Skipped
		result.Stuck += done.Stuck
		if done.Cursor == "" {
			delete(r.cursors, group)
			return nil
		}
		r.cursors[group] = done.Cursor
		if done.Retried+done.Buried+done.Skipped+done.Stuck == 0 {
			if fruitless++; fruitless == reclaimFruitless {
				return nil
			}
		}
	}
	result.More = true
	return nil
}

func (r *Reclaimer) calm(visibility time.Duration) bool {
	if r.cfg.CalmSince == nil {
		return true
	}
	since := r.cfg.CalmSince()
	return !since.IsZero() && time.Since(since) >= visibility
}

// clock is a reading of the server's clock: its latest time at a moment of ours.
type clock struct{ server, local time.Time }

func (r *Reclaimer) clock() clock {
	if r.cfg.ServerTime == nil {
		return clock{}
	}
	return clock{r.cfg.ServerTime(), time.Now()}
}

// latest is what the server's clock shows by now at most, or a little more; zero when nobody knows. With a third of the visibility
// timeout more, what was extended at the other third is still not idle for long enough.
func (c clock) latest(slack time.Duration) time.Time {
	if c.server.IsZero() {
		return time.Time{}
	}
	return c.server.Add(time.Since(c.local) + slack)
}

func (r *Reclaimer) seen(begun time.Time, visibility time.Duration) {
	if r.vigil != nil {
		r.vigil.seen(begun, max(vigilGap, visibility/2))
	}
}

func (r *Reclaimer) missed(err error) {
	if r.vigil != nil && lua.Temporary(err) {
		r.vigil.missed()
	}
}

// warn logs settings that do not count, once per change.
func (r *Reclaimer) warn(warning error) {
	text := ""
	if warning != nil {
		text = warning.Error()
	}
	if text != "" && text != r.warned {
		r.log.Warn("policy has settings that do not count", slog.Any("error", warning))
	}
	r.warned = text
}

// reportStuck logs one line when entries begin to be stuck, and one when they no longer are. A stuck entry is tried again only after
// another visibility timeout: silence counts as success when it has lasted for two.
func (r *Reclaimer) reportStuck(result ReclaimResult) {
	switch {
	case result.Stuck > 0:
		r.lastTry = time.Now()
		r.stuck.failing(errStuck)
	case time.Since(r.lastTry) > 2*result.Visibility:
		r.stuck.working()
	}
}
