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
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one reclaim call, and of one pass over a group.
const (
	reclaimLimit     = 100     // entries reclaimed per call
	reclaimBytes     = 1 << 20 // bytes of the entries reclaimed per call
	reclaimCalls     = 20      // calls per pass and group
	reclaimFruitless = 5       // calls per pass and group that find only fresh entries, and leave no ended leases
	heldNotes        = 100     // oldest pending entries of a group whose time of delivery is noted

	// reclaimTime is the longest time of a pass. After it, other work for the queue has its turn, and the next pass
	// continues with the next group.
	reclaimTime = 10 * time.Second
)

// ReclaimerConfig configures a Reclaimer. Client and Queue are required.
type ReclaimerConfig struct {
	Client rueidis.Client
	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string
	Logger *slog.Logger // nil: nothing is logged
	Actor  string       // author of changes in the history of the queue; "": no name

	Observer observe.Observer // nil: there is no observer

	// Watched counts idle time only while the server was watched: reclaimers called it at least twice in the shortest
	// visibility timeout of the queue's groups. So entries that only seem abandoned, because of an outage or a step of
	// the server's clock, stay with their consumers. A time without reclaimers is added to the wait, and never restarts
	// the wait. Reclaimers store their observations beside the entries, so the calls of all reclaimers count. They also
	// note there when the oldest entries of each group were delivered. If Watched is false, idle time counts as it is,
	// and nothing is noted.
	Watched bool
}

// Reclaimer reclaims entries that a queue's consumers hold for longer than the visibility timeout: they are delivered
// again, or dead-lettered. It keeps a cursor between passes. Not safe for concurrent use; any number of processes may
// reclaim the same queue.
type Reclaimer struct {
	cfg      ReclaimerConfig
	keys     lua.Keys
	log      *slog.Logger
	policies *policy.Reader

	cursors   map[string]string // by group; a group without a cursor is examined from the beginning
	maxTime   time.Duration     // longest time of a pass
	lastGroup string            // the group after which the last pass ran out of time; "": the pass finished

	warnedSettings string // the last logged warning about settings
	unusableGroups string // the last logged groups with unusable names

	stuckEntries map[string]map[view.EntryID]bool // by group; reported to the observer
	stuckState   loop.Reporter
	lastStuck    time.Time // when an entry was last found stuck

	groupsWithNotes map[string]bool // groups that may have notes about deliveries
	sweptNotes      bool            // the notes that other bridges left about groups were removed
}

// NewReclaimer returns a Reclaimer for one queue.
func NewReclaimer(cfg ReclaimerConfig) *Reclaimer {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	log := cfg.Logger.With(slog.String("queue", cfg.Queue))
	return &Reclaimer{
		cfg:             cfg,
		keys:            lua.NewKeys(cfg.Prefix, cfg.Queue).As(cfg.Actor),
		log:             log,
		policies:        policy.NewReader(cfg.Prefix),
		cursors:         map[string]string{},
		maxTime:         reclaimTime,
		stuckEntries:    map[string]map[view.EntryID]bool{},
		stuckState:      loop.Reporter{Log: log, Activity: "dead-lettering of abandoned entries"},
		groupsWithNotes: map[string]bool{},
	}
}

// ReclaimResult counts the actions of one pass.
type ReclaimResult struct {
	Retried   int // entries scheduled for another attempt
	Dead      int // entries dead-lettered
	Skipped   int // retries of another group, which were acknowledged
	Stuck     int // entries left pending, because the stream of dead letters refused them
	Cancelled int // entries ended, because their messages were cancelled while a consumer held them

	More       bool          // a bound ended the pass, so the next pass should follow at once
	Visibility time.Duration // the smallest visibility timeout of the groups; zero if there are no groups

	stream view.StreamInfo
}

// Moved returns the number of entries that left a pending list.
func (r ReclaimResult) Moved() int { return r.Retried + r.Dead + r.Skipped + r.Cancelled }

var errStuck = errors.New("the stream of dead letters refuses entries: they stay pending")

// Reclaim makes one pass over every group that exists on the stream, registered or not, each by its own policy. The
// work per group is bounded; the next pass continues where this pass ended. A failing group does not delay the others.
// It takes two round trips, and one per 100 entries reclaimed or 1,000 entries examined. With an observer it takes one
// more per 1,000 stuck entries.
func (r *Reclaimer) Reclaim(ctx context.Context) (ReclaimResult, error) {
	var result ReclaimResult
	stream, err := view.ReadStream(ctx, r.cfg.Client, r.keys.Stream)
	if err != nil {
		return result, fmt.Errorf("reclaim %s: %w", r.cfg.Queue, err)
	}
	result.stream = stream
	names := stream.Names()
	notesErr := r.sweepNotes(ctx, stream)
	maps.DeleteFunc(r.cursors, func(group, _ string) bool { return !slices.Contains(names, group) })
	maps.DeleteFunc(r.stuckEntries, func(group string, _ map[view.EntryID]bool) bool {
		return !slices.Contains(names, group)
	})
	if len(names) == 0 {
		r.logStuck(result)
		return result, notesErr
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
	errs := []error{notesErr}
	started, lastGroup := time.Now(), ""
	r.logUnusableGroups(names)
	for i, g := range r.inTurn(stream.Groups) {
		if lua.CheckGroup(g.Name) != nil {
			continue // no retry can name this group, and a retry for all groups would multiply the message
		}
		if i > 0 && time.Since(started) > r.maxTime {
			result.More, r.lastGroup = true, lastGroup
			break
		}
		lastGroup = g.Name
		// A group without pending entries needs nothing, except that a last call with its cursor deletes the
		// reclaimer's consumer.
		if g.Pending == 0 && r.cursors[g.Name] == "" {
			delete(r.stuckEntries, g.Name)
			continue
		}
		stuckBefore := result.Stuck
		err := r.reclaimGroup(ctx, g.Name, policies[g.Name], &result)
		if err == nil {
			err = r.reportStuck(ctx, g.Name, result.Stuck-stuckBefore)
		}
		if errors.Is(err, lua.ErrNoGroup) { // the group was destroyed just now
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
	r.logStuck(result)
	return result, errors.Join(errs...)
}

// inTurn returns the groups, beginning after the group at which the last pass ran out of time. Otherwise, with
// thousands of groups and a distant server, only the first groups would be served.
func (r *Reclaimer) inTurn(groups []view.GroupInfo) []view.GroupInfo {
	first := slices.IndexFunc(groups, func(g view.GroupInfo) bool { return g.Name > r.lastGroup })
	r.lastGroup = ""
	if first < 0 {
		return groups
	}
	return slices.Concat(groups[first:], groups[:first])
}

// reclaimGroup reclaims one group until its pending list was examined, or a bound is reached.
func (r *Reclaimer) reclaimGroup(ctx context.Context, group string, p policy.Policy, result *ReclaimResult) error {
	shortest, notes := time.Duration(0), 0
	if r.cfg.Watched {
		shortest, notes = result.Visibility, heldNotes
		r.groupsWithNotes[group] = true
	}
	fruitless := 0
	for range reclaimCalls {
		done, err := lua.Reclaim(ctx, r.cfg.Client, r.keys, lua.ReclaimArgs{
			Group: group, Attempts: p.Attempts(), MinIdle: p.VisibilityTimeout,
			Cursor: r.cursors[group], Limit: reclaimLimit, MaxBytes: reclaimBytes,
			Shortest: shortest, Notes: notes,
		})
		if err != nil {
			return err
		}
		notes = 0 // the first call of a pass makes the notes
		r.report(group, done)
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

// sweepNotes deletes the notes about groups that are gone or have no pending entries. It sends a command only if such a
// group may have notes, and once at the beginning, for notes that other bridges have left.
func (r *Reclaimer) sweepNotes(ctx context.Context, stream view.StreamInfo) error {
	if !r.cfg.Watched {
		return nil
	}
	hasPending := map[string]bool{}
	for _, g := range stream.Groups {
		hasPending[g.Name] = g.Pending > 0
	}
	keepNotes := func(group string) bool { return hasPending[group] }
	mayHaveOldNotes := !r.sweptNotes
	for group := range r.groupsWithNotes {
		mayHaveOldNotes = mayHaveOldNotes || !keepNotes(group)
	}
	if !mayHaveOldNotes {
		return nil
	}
	if err := lua.ForgetHeld(ctx, r.cfg.Client, r.keys, keepNotes); err != nil {
		return fmt.Errorf("reclaim %s: %w", r.cfg.Queue, err)
	}
	r.sweptNotes = true
	maps.DeleteFunc(r.groupsWithNotes, func(group string, _ bool) bool { return !keepNotes(group) })
	return nil
}

// report reports the result of one call to the observer.
func (r *Reclaimer) report(group string, done lua.Reclaimed) {
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

// maxGroupsText bounds the bytes of a logged list of groups.
const maxGroupsText = 1000

// logUnusableGroups logs one line when the set of groups with unusable names changes.
func (r *Reclaimer) logUnusableGroups(names []string) {
	text := ""
	for _, name := range names {
		if lua.CheckGroup(name) != nil && len(text) < maxGroupsText {
			text += fmt.Sprintf(" %.64q", name)
		}
	}
	text = strings.TrimSpace(text)
	if text == r.unusableGroups {
		return
	}
	r.unusableGroups = text
	if text == "" {
		r.log.Info("no group has a name that no retry can carry any more")
		return
	}
	r.log.Warn("groups have names that no retry can carry: what they abandon stays pending",
		slog.String("groups", text))
}

// warn logs settings that are ignored, once for each change of the warning.
func (r *Reclaimer) warn(warning error) {
	text := ""
	if warning != nil {
		text = warning.Error()
	}
	if text != "" && text != r.warnedSettings {
		r.log.Warn("policy has settings that do not count", slog.Any("error", warning))
	}
	r.warnedSettings = text
}

// logStuck logs one line when entries begin to be stuck, and one when no entry is stuck any more. Each visibility
// timeout the reclaimer tries a stuck entry again. So no entry is stuck any more if two timeouts have passed without
// one, or if no group has pending entries.
func (r *Reclaimer) logStuck(result ReclaimResult) {
	switch {
	case result.Stuck > 0:
		r.lastStuck = time.Now()
		r.stuckState.Report(errStuck)
	case result.stream.Pending() == 0, time.Since(r.lastStuck) > 2*result.Visibility:
		r.stuckState.Report(nil)
	}
}
