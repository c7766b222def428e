package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of one reclaim call, and of one pass over a group.
const (
	reclaimLimit     = 100
	reclaimBytes     = 1 << 20
	reclaimCalls     = 20 // of a pass, per group
	reclaimFruitless = 5  // of these, so many that find only fresh entries
	// the oldest pending entries of a group of which is noted since when they are held
	heldNotes = 100
	// how long a pass takes at most: then other work for the queue has its turn, and the next pass goes on with the next group
	reclaimTime = 10 * time.Second
)

// ReclaimerConfig configures a Reclaimer. Client and Queue are required.
type ReclaimerConfig struct {
	Client rueidis.Client
	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string
	Logger *slog.Logger // nil = nothing is logged
	Actor  string       // how the history of the queue names who reclaims; "" = nobody is named

	Observer observe.Observer // nil = nobody is told

	// Watched counts only that part of an idle time in which reclaimers looked often enough to say that the server was there: at
	// least twice in the shortest visibility timeout of the queue's groups. Entries that an outage, or a step of the server's
	// clock, made look abandoned stay with their consumers; an absence adds its own length to the wait, and never begins it anew.
	// Reclaimers keep what they saw beside the entries, so it makes no difference which of them looks. They also note there since
	// when the oldest deliveries of each group are held. False: the idle time counts as it is, and nothing is noted.
	Watched bool
}

// Reclaimer takes back entries that the groups of a queue hold for longer than their visibility timeout: they are delivered
// again, or dead-lettered. It remembers how far it has looked. Not safe for concurrent use; any number of processes may reclaim
// the same queue.
type Reclaimer struct {
	cfg     ReclaimerConfig
	keys    lua.Keys
	log     *slog.Logger
	cursors map[string]string // group → where the next pass goes on; absent = from the beginning
	warned  string
	odd     string                           // the groups that were left alone in the last pass
	told    map[string]map[view.EntryID]bool // group → stuck entries that the observer was told of
	stuck   loop.Reporter
	lastTry time.Time // when an entry was last found stuck
	last    string    // the group at which the time of the last pass was up; "" = it had time for all groups
	time    time.Duration
	noted   map[string]bool // groups that may have notes since when their deliveries are held
	swept   bool            // what another bridge may have noted of other groups is gone

	policies *policySource
}

// NewReclaimer returns a Reclaimer for one queue.
func NewReclaimer(cfg ReclaimerConfig) *Reclaimer {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	log := cfg.Logger.With(slog.String("queue", cfg.Queue))
	return &Reclaimer{
		cfg: cfg, keys: lua.NewKeys(cfg.Prefix, cfg.Queue).As(cfg.Actor), log: log, cursors: map[string]string{},
		noted:    map[string]bool{},
		told:     map[string]map[view.EntryID]bool{},
		time:     reclaimTime,
		stuck:    loop.Reporter{Log: log, Activity: "dead-lettering of abandoned entries"},
		policies: &policySource{client: cfg.Client, prefix: cfg.Prefix},
	}
}

// ReclaimResult counts what one pass did.
type ReclaimResult struct {
	Retried int // scheduled for another attempt
	Dead    int // dead-lettered
	Skipped int // meant for another group: acknowledged
	Stuck   int // left pending, because the stream of dead letters refused them

	Cancelled int // ended, because their messages were cancelled while a consumer held them

	More       bool          // a bound ended the pass: go on at once
	Visibility time.Duration // the smallest visibility timeout of the groups; zero when there are none

	stream view.StreamInfo
}

// Moved is how many entries left a pending list.
func (r ReclaimResult) Moved() int { return r.Retried + r.Dead + r.Skipped + r.Cancelled }

var errStuck = errors.New("the stream of dead letters refuses entries: they stay pending")

// Reclaim does one pass over every group that exists on the stream, registered or not, each by its own policy. Work per group is
// bounded; the next pass goes on where this one ended. A group that fails does not keep the others from their turn.
// Two round trips, and one per 100 entries taken or 1,000 entries looked at; with an observer, one per 1,000 stuck entries.
func (r *Reclaimer) Reclaim(ctx context.Context) (ReclaimResult, error) {
	var result ReclaimResult
	stream, err := view.ReadStream(ctx, r.cfg.Client, r.keys.Stream)
	if err != nil {
		return result, fmt.Errorf("reclaim %s: %w", r.cfg.Queue, err)
	}
	result.stream = stream
	names := stream.Names()
	swept := r.sweepNotes(ctx, stream)
	maps.DeleteFunc(r.cursors, func(group, _ string) bool { return !slices.Contains(names, group) })
	maps.DeleteFunc(r.told, func(group string, _ map[view.EntryID]bool) bool { return !slices.Contains(names, group) })
	if len(names) == 0 {
		r.reportStuck(result)
		return result, swept
	}
	policies, warning, err := r.policies.read(ctx, r.cfg.Queue, names)
	if err != nil {
		return result, err
	}
	r.warn(warning)

	for _, p := range policies {
		if result.Visibility == 0 || p.VisibilityTimeout < result.Visibility {
			result.Visibility = p.VisibilityTimeout
		}
	}
	errs := []error{swept}
	began, last := time.Now(), ""
	r.reportOdd(names)
	for i, g := range r.inTurn(stream.Groups) {
		if lua.CheckGroup(g.Name) != nil {
			continue // no retry can name this group, and a retry for all groups would multiply the message
		}
		if i > 0 && time.Since(began) > r.time {
			result.More, r.last = true, last
			break
		}
		last = g.Name
		// With a cursor one more call reaches the end, and drops the reclaimer's consumer.
		if g.Pending == 0 && r.cursors[g.Name] == "" {
			delete(r.told, g.Name)
			continue
		}
		before := result.Stuck
		err := r.group(ctx, g.Name, policies[g.Name], &result)
		if err == nil {
			err = r.tellStuck(ctx, g.Name, result.Stuck-before)
		}
		if errors.Is(err, lua.ErrNoGroup) { // destroyed a moment ago
			delete(r.cursors, g.Name)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reclaim %s/%s: %w", r.cfg.Queue, g.Name, err))
		}
		if lua.Temporary(err) || ctx.Err() != nil {
			break
		}
	}
	r.reportStuck(result)
	return result, errors.Join(errs...)
}

// inTurn returns the groups, beginning with the one behind that at which the time of the last pass was up. Otherwise, with
// thousands of groups and a server far away, the first groups would have every turn.
func (r *Reclaimer) inTurn(groups []view.GroupInfo) []view.GroupInfo {
	at := slices.IndexFunc(groups, func(g view.GroupInfo) bool { return g.Name > r.last })
	r.last = ""
	if at < 0 {
		return groups
	}
	return slices.Concat(groups[at:], groups[:at])
}

// group reclaims one group until its pending list was seen, or a bound is reached.
func (r *Reclaimer) group(ctx context.Context, group string, p stream.Policy, result *ReclaimResult) error {
	shortest, fruitless := time.Duration(0), 0
	if r.cfg.Watched {
		shortest = result.Visibility
	}
	notes := 0
	if r.cfg.Watched {
		notes, r.noted[group] = heldNotes, true
	}
	for range reclaimCalls {
		done, err := lua.Reclaim(ctx, r.cfg.Client, r.keys, lua.ReclaimArgs{
			Group: group, Attempts: p.Attempts(), MinIdle: p.VisibilityTimeout,
			Cursor: r.cursors[group], Limit: reclaimLimit, MaxBytes: reclaimBytes,
			Shortest: shortest, Notes: notes,
		})
		if err != nil {
			return err
		}
		notes = 0 // the first call of a pass has noted them
		r.tell(group, done)
		result.Retried += done.Retried
		result.Dead += done.Dead
		result.Skipped += done.Skipped
		result.Stuck += done.Stuck
		result.Cancelled += done.Cancelled
		if done.Cursor == "" {
			delete(r.cursors, group)
			return nil
		}
		r.cursors[group] = done.Cursor
		if done.Moved()+done.Stuck == 0 {
			if fruitless++; fruitless == reclaimFruitless {
				return nil
			}
		}
	}
	result.More = true
	return nil
}

// sweepNotes drops the notes of groups that hold nothing any more, or are gone. It asks when a group may have some, and once at
// the beginning: another bridge may have left some.
func (r *Reclaimer) sweepNotes(ctx context.Context, stream view.StreamInfo) error {
	if !r.cfg.Watched {
		return nil
	}
	holding := map[string]bool{}
	for _, g := range stream.Groups {
		holding[g.Name] = g.Pending > 0
	}
	holds := func(group string) bool { return holding[group] }
	stale := !r.swept
	for group := range r.noted {
		stale = stale || !holds(group)
	}
	if !stale {
		return nil
	}
	if err := lua.ForgetHeld(ctx, r.cfg.Client, r.keys, holds); err != nil {
		return fmt.Errorf("reclaim %s: %w", r.cfg.Queue, err)
	}
	r.swept = true
	maps.DeleteFunc(r.noted, func(group string, _ bool) bool { return !holds(group) })
	return nil
}

// tell tells the observer what one call did. Most calls find nothing.
func (r *Reclaimer) tell(group string, done lua.Reclaimed) {
	if r.cfg.Observer == nil || done.Moved() == 0 {
		return
	}
	queue, _, _ := lua.SplitPartition(r.cfg.Queue)
	s := r.cfg.Observer.Of(observe.Bridge, queue, group)
	for _, one := range []struct {
		event observe.Event
		n     int
	}{
		{observe.Reclaimed, done.Moved()}, {observe.RetriedVisibility, done.Retried},
		{observe.DeadReclaimed, done.Dead},
	} {
		if one.n > 0 {
			s.Add(one.event, one.n)
		}
	}
}

// reportOdd logs one line when other groups than before are left alone.
func (r *Reclaimer) reportOdd(names []string) {
	odd := ""
	for _, name := range names {
		if lua.CheckGroup(name) != nil && len(odd) < 1000 {
			odd += fmt.Sprintf(" %.64q", name)
		}
	}
	if odd = strings.TrimSpace(odd); odd != r.odd {
		r.odd = odd
		if odd != "" {
			r.log.Warn("groups have names that no retry can carry: what they abandon stays pending", slog.String("groups", odd))
		} else {
			r.log.Info("no group has a name that no retry can carry any more")
		}
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

// reportStuck logs one line when entries begin to be stuck, and one when they no longer are. A stuck entry is tried again only
// after another visibility timeout: silence counts as success when it has lasted for two, or when no group holds anything.
func (r *Reclaimer) reportStuck(result ReclaimResult) {
	switch {
	case result.Stuck > 0:
		r.lastTry = time.Now()
		r.stuck.Report(errStuck)
	case result.stream.Pending() == 0, time.Since(r.lastTry) > 2*result.Visibility:
		r.stuck.Report(nil)
	}
}
