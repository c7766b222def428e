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
	reclaimCalls     = 20 // per pass and group
	reclaimFruitless = 5  // most of these calls that find only fresh entries, and leave no ended leases
	// oldest pending entries of a group whose time of delivery is noted
	heldNotes = 100
	// longest pass: then other work for the queue has its turn, and the next pass continues with the next group
	reclaimTime = 10 * time.Second
)

// ReclaimerConfig configures a Reclaimer. Client and Queue are required.
type ReclaimerConfig struct {
	Client rueidis.Client
	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string
	Logger *slog.Logger // nil = nothing is logged
	Actor  string       // author of changes in the history of the queue; "" = no name

	Observer observe.Observer // nil = no observer

	// Watched counts idle time only while reclaimers looked often enough to know that the server was there: at least
	// twice in the shortest visibility timeout of the queue's groups. So entries that only seem abandoned after an
	// outage, or after a step of the server's clock, stay with their consumers. An absence of reclaimers adds its own
	// length to the wait, and never restarts it. Reclaimers store their observations beside the entries, so any of them
	// may look. They also note there when the oldest entries of each group were delivered. False: idle time counts as
	// it is, and nothing is noted.
	Watched bool
}

// Reclaimer reclaims entries that a queue's consumers hold for longer than the visibility timeout: they are delivered
// again, or dead-lettered. It keeps a cursor between passes. Not safe for concurrent use; any number of processes may
// reclaim the same queue.
type Reclaimer struct {
	cfg     ReclaimerConfig
	keys    lua.Keys
	log     *slog.Logger
	cursors map[string]string // group → cursor of the next pass; absent = from the beginning
	warned  string
	odd     string                           // groups that were left alone in the last pass
	told    map[string]map[view.EntryID]bool // group → stuck entries reported to the observer
	stuck   loop.Reporter
	lastTry time.Time // when an entry was last found stuck
	last    string    // the group at which the last pass ran out of time; "" = it finished
	time    time.Duration
	noted   map[string]bool // groups that may have notes about deliveries
	swept   bool            // notes of other bridges about other groups were removed

	policies *stream.PolicyReader
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
		policies: stream.NewPolicyReader(cfg.Prefix),
	}
}

// ReclaimResult counts the actions of one pass.
type ReclaimResult struct {
	Retried int // scheduled for another attempt
	Dead    int // dead-lettered
	Skipped int // meant for another group: acknowledged
	Stuck   int // left pending, because the stream of dead letters refused them

	Cancelled int // ended, because their messages were cancelled while a consumer held them

	More       bool          // a bound ended the pass: continue at once
	Visibility time.Duration // the smallest visibility timeout of the groups; zero when there are none

	stream view.StreamInfo
}

// Moved returns the number of entries that left a pending list.
func (r ReclaimResult) Moved() int { return r.Retried + r.Dead + r.Skipped + r.Cancelled }

var errStuck = errors.New("the stream of dead letters refuses entries: they stay pending")

// Reclaim makes one pass over every group that exists on the stream, registered or not, each by its own policy. The
// work per group is bounded; the next pass continues where this one ended. A failing group does not delay the others.
// Two round trips, and one per 100 entries reclaimed or 1,000 entries examined; with an observer, also one per 1,000
// stuck entries.
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
	policies, warning, err := r.policies.Read(ctx, r.cfg.Client, r.cfg.Queue, names)
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
		// With a cursor, one more call reaches the end, and removes the reclaimer's consumer.
		if g.Pending == 0 && r.cursors[g.Name] == "" {
			delete(r.told, g.Name)
			continue
		}
		before := result.Stuck
		err := r.group(ctx, g.Name, policies[g.Name], &result)
		if err == nil {
			err = r.tellStuck(ctx, g.Name, result.Stuck-before)
		}
		if errors.Is(err, lua.ErrNoGroup) { // destroyed just now
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

// inTurn returns the groups, beginning after the one at which the last pass ran out of time. Otherwise, with thousands
// of groups and a distant server, only the first groups would be served.
func (r *Reclaimer) inTurn(groups []view.GroupInfo) []view.GroupInfo {
	at := slices.IndexFunc(groups, func(g view.GroupInfo) bool { return g.Name > r.last })
	r.last = ""
	if at < 0 {
		return groups
	}
	return slices.Concat(groups[at:], groups[:at])
}

// group reclaims one group until its pending list was examined, or a bound is reached.
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
		notes = 0 // the first call of a pass has made them
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
		if done.Moved()+done.Stuck == 0 && !done.MoreLeases {
			if fruitless++; fruitless == reclaimFruitless {
				return nil
			}
		}
	}
	result.More = true
	return nil
}

// sweepNotes deletes the notes of groups that hold nothing any more, or are gone. It sends a command only if a group
// may have notes, and once at the beginning, for the notes of other bridges.
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

// tell reports one call to the observer. Most calls find nothing.
func (r *Reclaimer) tell(group string, done lua.Reclaimed) {
	if r.cfg.Observer == nil || done.Moved() == 0 {
		return
	}
	queue, _, _ := lua.SplitPartition(r.cfg.Queue)
	s := r.cfg.Observer.Series(observe.Bridge, queue, group)
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

// reportOdd logs one line when the set of groups that are left alone changes.
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

// warn logs ignored settings, once per change.
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

// reportStuck logs one line when entries begin to be stuck, and one when they no longer are. A stuck entry is retried
// only after another visibility timeout. So success is two timeouts without a stuck entry, or groups without pending
// entries.
func (r *Reclaimer) reportStuck(result ReclaimResult) {
	switch {
	case result.Stuck > 0:
		r.lastTry = time.Now()
		r.stuck.Report(errStuck)
	case result.stream.Pending() == 0, time.Since(r.lastTry) > 2*result.Visibility:
		r.stuck.Report(nil)
	}
}
