package bridgetest

import (
	"context"
	"fmt"
	"slices"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

// State is the state of a message in a queue.
type State string

// States of messages.
const (
	Scheduled State = "scheduled" // waits for its due time, also for a further attempt
	Waiting   State = "waiting"   // is due, and waits until an earlier message with its ordering key is done
	Ready     State = "ready"     // is due; at least one group has not read it
	Pending   State = "pending"   // a worker or another consumer has read it, and has not acknowledged it
	Dead      State = "dead"      // is a dead letter
)

// mostStored bounds the messages of a queue that are read, in each state.
const mostStored = 100_000

// unfinished returns the messages of a queue that are not done: scheduled, waiting, ready and pending ones, in the
// order of their due times.
func (k *Kit) unfinished(ctx context.Context, queue string) ([]*stored, error) {
	peeked, err := lookup.Peek(ctx, k.own, k.prefix, queue, mostStored, true)
	if err != nil {
		return nil, err
	}
	var all []*stored
	for _, due := range peeked.Next {
		m := &stored{state: Scheduled, group: due.For, Entry: lua.Entry{
			ID: due.ID, Payload: due.Payload, Headers: due.Headers, Attempt: max(1, due.Attempt), Due: due.Due,
			MaxAttempts: due.MaxAttempts, Expires: due.Expires, For: due.For, Error: due.Error,
		}}
		if due.Waits {
			m.state = Waiting
		}
		all = append(all, m)
	}
	err = k.eachPartition(ctx, queue, func(keys lua.Keys) error {
		entries, err := k.own.Do(ctx, k.own.B().Xrange().Key(keys.Stream).Start("-").End("+").Count(mostStored).Build()).
			AsXRangeSlices()
		if err != nil || len(entries) == 0 {
			return lua.Classify("XRANGE", err)
		}
		info, err := view.ReadStream(ctx, k.own, keys.Stream)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			m := &stored{state: Ready, Entry: lua.ParseEntry(entry.ID, entry.FieldValues)}
			m.group = m.For
			done, err := k.isDone(ctx, keys, info.Groups, m)
			if err != nil {
				return err
			}
			if !done {
				all = append(all, m)
			}
		}
		return nil
	})
	slices.SortStableFunc(all, func(a, b *stored) int { return a.Due.Compare(b.Due) })
	return all, err
}

// isDone reports whether all groups that need an entry have acknowledged it. It sets the state to Pending if all of
// them have read it.
func (k *Kit) isDone(ctx context.Context, keys lua.Keys, groups []view.GroupInfo, m *stored) (bool, error) {
	if len(groups) == 0 {
		return false, nil
	}
	id, err := view.ParseEntryID(m.EntryID)
	if err != nil {
		return false, err
	}
	done := true
	for _, g := range groups {
		if m.For != "" && m.For != g.Name {
			continue
		}
		if g.Last.Compare(id) < 0 {
			m.state = Ready
			return false, nil
		}
		if g.Pending == 0 {
			continue
		}
		rows, err := k.own.Do(ctx, k.own.B().Xpending().Key(keys.Stream).Group(g.Name).Start(m.EntryID).End(m.EntryID).
			Count(1).Build()).ToArray()
		if err != nil {
			return false, lua.Classify("XPENDING", err)
		}
		if len(rows) > 0 {
			done, m.state = false, Pending
		}
	}
	return done, nil
}

// letters returns the dead letters of a queue, the oldest first.
func (k *Kit) letters(ctx context.Context, queue string) (all []*stored, err error) {
	err = k.eachPartition(ctx, queue, func(keys lua.Keys) error {
		entries, err := k.own.Do(ctx, k.own.B().Xrange().Key(keys.Dead).Start("-").End("+").Count(mostStored).Build()).
			AsXRangeSlices()
		if err != nil {
			return lua.Classify("XRANGE", err)
		}
		for _, entry := range entries {
			letter := lua.ParseLetter(entry.ID, entry.FieldValues)
			all = append(all, &stored{Entry: letter.Entry, state: Dead, group: letter.Group, reason: letter.Reason})
		}
		return nil
	})
	return all, err
}

func (k *Kit) eachPartition(ctx context.Context, queue string, visit func(lua.Keys) error) error {
	counts, err := view.ReadCounts(ctx, k.own, k.prefix, queue)
	if err != nil {
		return err
	}
	for _, name := range counts.Names(queue) {
		if err := visit(lua.NewKeys(k.prefix, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
