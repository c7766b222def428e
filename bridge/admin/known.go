package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// CheckKnown returns ErrNoQueue for a queue that is not registered and has no keys: most likely its name is misspelt.
// The error's text suggests the registered queue with the nearest name. One round trip for a registered queue.
func (a *Admin) CheckKnown(ctx context.Context, queue string) error {
	return a.suggest(ctx, scheduler.CheckKnown(ctx, a.redis.Client, a.prefix, queue), queue)
}

// suggest adds the nearest registered name to ErrNoQueue.
func (a *Admin) suggest(ctx context.Context, err error, queue string) error {
	if !errors.Is(err, ErrNoQueue) {
		return err
	}
	names, listed := a.Queues(ctx)
	if listed != nil {
		return err
	}
	if a.suggests != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !a.suggests(name) })
	}
	return didYouMean(err, queue, names)
}

// Register makes a queue known to bridges before its first message, so that its settings can be written ahead of it.
// It may be repeated.
func (a *Admin) Register(ctx context.Context, queue string) error {
	if err := lua.CheckQueue(queue); err != nil {
		return err
	}
	counts, err := a.Partitions(ctx, queue)
	if err != nil {
		return err
	}
	g := lua.NewGlobals(a.prefix)
	if _, err = lua.RegisterCounts(ctx, a.redis.Client, g, map[string]lua.Counts{queue: counts}); err != nil {
		return fmt.Errorf("register queue %s: %w", queue, err)
	}
	return nil
}

// CheckGroup returns ErrNoGroup if no partition of the queue has the consumer group and the queue has no settings for
// it. The error's text suggests the group with the nearest name. One round trip per partition, and one for the
// settings.
func (a *Admin) CheckGroup(ctx context.Context, queue, group string) error {
	names, err := a.groups(ctx, queue)
	if err != nil || slices.Contains(names, group) {
		return err
	}
	settings, err := policy.GroupsWithSettings(ctx, a.redis.Client, a.prefix, queue)
	if err != nil || slices.Contains(settings, group) {
		return err
	}
	unknown := fmt.Errorf("group %s of queue %s: %w", group, queue, ErrNoGroup)
	return didYouMean(unknown, group, append(names, settings...))
}

// groups returns the names of the consumer groups of all partitions of a queue.
func (a *Admin) groups(ctx context.Context, queue string) ([]string, error) {
	counts, err := a.Partitions(ctx, queue)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, partition := range counts.Names(queue) {
		stream, err := view.ReadStream(ctx, a.redis.Client, lua.NewKeys(a.prefix, partition).Stream)
		if err != nil {
			return nil, fmt.Errorf("groups of %s: %w", queue, err)
		}
		for _, name := range stream.Names() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// didYouMean adds the nearest name to an error, if one is near.
func didYouMean(err error, given string, names []string) error {
	if best := nearest(given, names); best != "" {
		return fmt.Errorf("%w; did you mean %q?", err, best)
	}
	return err
}

// nearest returns the name with the fewest edits from the given name, if there are at most two edits and fewer than
// half as many as the given name has bytes. Otherwise it returns "".
func nearest(given string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		n := edits(strings.ToLower(given), strings.ToLower(name))
		if n < least && 2*n < len(given) {
			best, least = name, n
		}
	}
	return best
}

// edits returns the edit distance of a and b in bytes: insertions, deletions, replacements, and swaps of neighbours.
func edits(a, b string) int {
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			next[j] = min(replace, last[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}
