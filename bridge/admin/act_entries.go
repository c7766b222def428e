package admin

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// parallelCalls is how many entries are changed at the same time. Each takes a call of its own.
const parallelCalls = 32

// actOutcome is the outcome of an action for one entry.
type actOutcome int

const (
	outcomeGone actOutcome = iota
	outcomeChanged
	outcomeUnchanged
	outcomeRefused
)

// cancelEntries cancels ready and pending entries of one queue.
func (t *actor) cancelEntries(ctx context.Context, hits []Hit) error {
	if t.options.DryRun {
		return t.countEach(ctx, hits, t.foreseeCancel)
	}
	before := t.result.Changed
	err := t.countEach(ctx, hits, t.cancelEntry)
	if n := int(t.result.Changed - before); n > 0 && t.admin.observer != nil {
		t.admin.observer.Series(observe.Client, hits[0].Queue, "").Add(observe.Cancelled, n)
	}
	return err
}

// countEach calls do for each hit, for several entries at once, and counts the outcomes. If ctx ends, it begins no
// further call.
func (t *actor) countEach(ctx context.Context, hits []Hit, do func(context.Context, Hit) (actOutcome, error)) error {
	outcomes := make([]actOutcome, len(hits))
	errs := make([]error, len(hits))
	places := make(chan struct{}, parallelCalls)
	var running sync.WaitGroup
	one := func(i int) {
		if errs[i] = ctx.Err(); errs[i] != nil {
			return
		}
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.PassTimeout)
		defer cancel()
		outcomes[i], errs[i] = do(call, hits[i])
	}
	for first, next := 0, 0; first < len(hits); first = next {
		for next = first + 1; next < len(hits) && isSameEntry(hits[first], hits[next]); next++ {
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			for i := first; i < next; i++ {
				one(i)
			}
		})
	}
	running.Wait()
	for i, outcome := range outcomes {
		switch {
		case errs[i] != nil:
		case outcome == outcomeChanged:
			t.result.Changed++
		case outcome == outcomeUnchanged:
			t.result.Unchanged++
		case outcome == outcomeRefused:
			t.result.Refused++
		default:
			t.result.Gone++
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// isSameEntry reports whether two hits, which follow one another, are of one entry.
func isSameEntry(a, b Hit) bool {
	return a.Partition == b.Partition && a.Entry == b.Entry && a.State != StateDead
}

func (t *actor) keysOf(h Hit) lua.Keys {
	return lua.NewKeys(t.admin.prefix, lua.PartitionName(h.Queue, h.Partition)).As(t.admin.Name())
}

// cancelEntry cancels one entry: for the group of the hit, or for every group.
func (t *actor) cancelEntry(ctx context.Context, h Hit) (actOutcome, error) {
	if cancelled, err := t.isCancelled(ctx, h); err != nil || cancelled {
		return outcomeUnchanged, err
	}
	if left, err := t.hasLeft(ctx, h); err != nil || left {
		return outcomeGone, err
	}
	id, err := view.ParseEntryID(h.Entry)
	if err != nil {
		return outcomeGone, err
	}
	only := lua.EntryWalk{Cursor: id.String(), Last: id.String(), Limit: 1, Group: h.Group}
	_, found, err := lua.CancelEntries(ctx, t.admin.redis.Client, t.keysOf(h), only, []string{h.ID}, lua.Durability{})
	outcome := outcomeGone
	for _, one := range found {
		if one.Verdict != lua.EntryUnread {
			return outcomeChanged, err
		}
		outcome = outcomeRefused
	}
	return outcome, err
}

// hasLeft reports whether the groups have read an entry since it was found as ready, so that cancelling it would stop
// what runs. It does not look if what runs is to be cancelled, too, or if the cancellation is for one group.
func (t *actor) hasLeft(ctx context.Context, h Hit) (bool, error) {
	states := t.filter.States
	alsoPending := !t.isChosen && (len(states) == 0 || slices.Contains(states, StatePending))
	if h.State != StateReady || h.Group != "" || alsoPending {
		return false, nil
	}
	f := lua.SearchFilter{States: []string{lua.SearchReady, lua.SearchPending}}
	one, ok, err := t.lookAt(ctx, t.keysOf(h).Stream, h.Entry, f)
	return err == nil && (!ok || len(one.Unread) == 0 && len(one.Held) > 0), err
}

// isCancelled reports whether the delivery of a pending entry is cancelled already.
func (t *actor) isCancelled(ctx context.Context, h Hit) (bool, error) {
	if h.State != StatePending || !t.isChosen {
		return h.Cancelled, nil
	}
	f := lua.SearchFilter{States: []string{lua.SearchPending}, Group: h.Group}
	one, ok, err := t.lookAt(ctx, t.keysOf(h).Stream, h.Entry, f)
	return ok && len(one.Held) > 0 && one.Held[0].Cancelled, err
}

// foreseeCancel returns the outcome that cancelEntry would have.
func (t *actor) foreseeCancel(ctx context.Context, h Hit) (actOutcome, error) {
	if cancelled, err := t.isCancelled(ctx, h); err != nil || cancelled {
		return outcomeUnchanged, err
	}
	if !t.isChosen && t.filter.Group == "" {
		// The search has just seen the entry. Without a group, the cancellation is for all groups, so none can refuse it.
		return outcomeChanged, nil
	}
	if left, err := t.hasLeft(ctx, h); err != nil || left {
		return outcomeGone, err
	}
	all := lua.SearchFilter{States: []string{lua.SearchReady, lua.SearchPending}, IDs: []string{h.ID}}
	one, ok, err := t.lookAt(ctx, t.keysOf(h).Stream, h.Entry, all)
	if err != nil || !ok {
		return outcomeGone, err
	}
	e := lua.ParseEntry(one.Entry, one.Fields)
	isMeant := func(group string) bool { return e.For == "" || e.For == group }
	unread, needed := false, false
	for _, held := range one.Held {
		if h.Group == "" || held.Group == h.Group {
			return outcomeChanged, nil
		}
		needed = needed || isMeant(held.Group)
	}
	for _, group := range one.Unread {
		if h.Group == "" || group == h.Group {
			unread = true
		} else {
			needed = needed || isMeant(group)
		}
	}
	switch {
	case len(one.Held)+len(one.Unread) == 0 && h.Group == "", unread && !needed:
		return outcomeChanged, nil
	case unread:
		return outcomeRefused, nil
	}
	return outcomeGone, nil
}

// foreseePurge returns the outcome that a purge would have.
func (t *actor) foreseePurge(ctx context.Context, h Hit) (actOutcome, error) {
	if !t.isChosen {
		return outcomeChanged, nil // the search has just seen it
	}
	partition, entry, err := deadletter.SplitLetter(h.Letter)
	if err != nil {
		return outcomeGone, err
	}
	keys := lua.NewKeys(t.admin.prefix, lua.PartitionName(h.Queue, partition))
	_, ok, err := t.lookAt(ctx, keys.Dead, entry, lua.SearchFilter{States: []string{lua.SearchDead}})
	if err != nil || !ok {
		return outcomeGone, err
	}
	return outcomeChanged, nil
}

// lookAt returns an entry of a stream, or a dead letter, if it exists and passes the filter.
func (t *actor) lookAt(ctx context.Context, key, entry string, f lua.SearchFilter) (lua.FoundStored, bool, error) {
	id, err := view.ParseEntryID(entry)
	if err != nil {
		return lua.FoundStored{}, false, err
	}
	only := lua.StreamSearch{Cursor: id.Before().String(), Last: id.String(), Limit: 1}
	_, found, err := lua.SearchEntries(ctx, t.admin.redis.Client, key, f, only)
	if err != nil || len(found) == 0 {
		return lua.FoundStored{}, false, err
	}
	return found[0], true, nil
}
