package await

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// place is where a message is, as far as it concerns a group. If it is in several places, the greatest counts.
type place int

const (
	nowhere   place = iota
	noGroup         // it is ready, but the group does not exist
	dead            // the group gave it up, or it died before any group got it
	moved           // one of its entries was deleted during the search, so it may be at a place that was searched before
	open            // it is ready for the group, or the group holds it, or it waits for the group's retry
	scheduled       // for all groups
)

// sighting is the result of a search for a message.
type sighting struct {
	place place
	died  *DeadError // if place is dead
}

// look searches the queue for a message. ended reports that a wait is over. Without an error, the message has reached
// the state; with one, it will not reach the state, and the error gives the reason.
func (w *Waiter) look(ctx context.Context, queue, id, group string,
	state Awaited, after time.Time) (ended bool, err error) {
	const (
		deadTries = 2 // the letter may be of an earlier message with this ID
		tries     = 3
	)
	for try := 1; ; try++ {
		seen, err := w.searchInTurn(ctx, queue, id, group, after)
		switch {
		case err != nil:
			return false, err
		case seen.place == scheduled: // whatever became of an earlier message with this ID
			return false, nil
		case seen.place == open:
			return state == AwaitReady, nil
		case seen.place == moved && try >= tries: // it may still exist, so a later look decides
			return false, nil
		}
		r, err := w.Result(ctx, queue, id, group)
		switch {
		case err == nil && !r.Done.Before(after):
			return state != AwaitDead, nil // the next poll returns it
		case err != nil && !errors.Is(err, ErrNoResult):
			return false, err
		case seen.place == dead && try >= deadTries && state == AwaitDead:
			return true, nil
		case seen.place == dead && try >= deadTries:
			return true, seen.died
		case seen.place == noGroup && try >= tries:
			return true, fmt.Errorf("%w: %w: no worker of group %s has run yet", ErrNoResult, lua.ErrNoGroup, group)
		case seen.place == nowhere && try >= tries:
			return true, fmt.Errorf("%w: the message is nowhere: it was cancelled or never scheduled, or done without a "+
				"result, or its result has expired", ErrNoResult)
		}
		if !loop.Sleep(ctx, 100*time.Millisecond) { // it may have moved behind the search
			return false, ctx.Err()
		}
	}
}

// searchInTurn calls search when no other search of the Waiter runs or rests. So all searches together take at most a
// fifth of the time, because they read whole streams. After an error the next one comes soon, because a search of a
// server that hangs takes long, but reads little.
func (w *Waiter) searchInTurn(ctx context.Context, queue, id, group string,
	after time.Time) (seen sighting, err error) {
	select {
	case w.looks <- struct{}{}:
	case <-ctx.Done():
		return sighting{}, ctx.Err()
	}
	began := time.Now()
	defer func() { time.AfterFunc(restAfter(time.Since(began), err), func() { <-w.looks }) }()
	return w.search(ctx, queue, id, group, after)
}

// restAfter returns the time for which no search begins after a search that took some time.
func restAfter(took time.Duration, err error) time.Duration {
	if err != nil {
		return min(restOfLook*took, firstLook)
	}
	return restOfLook * took
}

// search looks for a message in all partitions: a key, which the caller does not know, may have chosen its partition.
func (w *Waiter) search(ctx context.Context, queue, id, group string, after time.Time) (best sighting, err error) {
	counts, err := view.ReadCounts(ctx, w.client, w.prefix, queue)
	if err != nil {
		return best, err
	}
	names := counts.Names(queue)
	found := make([]sighting, len(names))
	err = view.EachPartition(names, func(i int, name string) (err error) {
		s := searcher{c: w.client, keys: lua.NewKeys(w.prefix, name), id: id, group: group, after: after}
		found[i], err = s.search(ctx)
		return err
	})
	for _, one := range found {
		if one.place > best.place {
			best = one
		}
	}
	return best, err
}

// searcher looks for a message in one partition.
type searcher struct {
	c         rueidis.Client
	keys      lua.Keys
	id, group string
	after     time.Time // older letters do not count
	moved     bool      // an entry of the message was deleted during the search
}

// search calls find. If an entry of the message was deleted during the search, the message counts neither as dead nor
// as nowhere, because a delivery that is released or retried gets a new entry.
func (s *searcher) search(ctx context.Context) (sighting, error) {
	seen, err := s.find(ctx)
	if s.moved && seen.place < moved {
		seen = sighting{place: moved}
	}
	return seen, err
}

// find returns the first place that is better than dead. It looks for retries last, because their search takes
// longest.
func (s *searcher) find(ctx context.Context) (seen sighting, err error) {
	b := s.c.B
	var due, metas int64
	isDue := false
	err = view.Ask(ctx, s.c,
		view.Number(b().Zcard().Key(s.keys.Due).Build(), &due),
		view.Number(b().Hlen().Key(s.keys.Meta).Build(), &metas),
		view.Into(b().Zscore().Key(s.keys.Due).Member(s.id).Build(), &isDue, func(r rueidis.RedisResult) (bool, error) {
			_, err := r.AsFloat64()
			return err == nil, err
		}))
	if err != nil || isDue {
		return sighting{place: scheduled}, err
	}
	ready := func(stored rueidis.XRangeSlice) (done bool, err error) {
		where, err := s.placeOf(ctx, lua.ParseEntry(stored.ID, stored.FieldValues))
		seen.place = max(seen.place, where)
		return seen.place == open, err
	}
	last, err := s.each(ctx, s.keys.Stream, "", ready)
	if err != nil || seen.place == open {
		return seen, err
	}
	retry, err := s.retry(ctx, due < metas, min(due, metas))
	if err != nil || retry != nowhere {
		return sighting{place: retry}, err
	}
	// A retry may have become ready before the search for retries.
	if _, err = s.each(ctx, s.keys.Stream, last, ready); err != nil || seen.place == open {
		return seen, err
	}
	_, err = s.each(ctx, s.keys.Dead, "", func(stored rueidis.XRangeSlice) (bool, error) {
		l := lua.ParseLetter(stored.ID, stored.FieldValues)
		if (l.Group == s.group || l.Group == "") && !l.Dead.Before(s.after) {
			seen = sighting{dead, &DeadError{ID: s.id, Group: l.Group, Reason: l.Reason, Text: l.Entry.Error}}
		}
		return false, nil // the newest letter counts
	})
	return seen, err
}

// searchStep is how many entries the server looks at in one call. During the call it serves no other client.
const searchStep = 250

// each visits the entries of the message in a stream behind an entry, oldest first, until visit is done. It returns the
// ID of the last entry of the stream that was looked at.
func (s *searcher) each(ctx context.Context, key, behind string,
	visit func(rueidis.XRangeSlice) (done bool, err error)) (last string, err error) {
	step := lua.EntrySearch{Cursor: behind, Limit: searchStep, More: true}
	for step.More {
		var entries []string
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		step, entries, err = lua.FindEntries(call, s.c, key, s.id, step)
		cancel()
		if err != nil {
			return step.Cursor, err
		}
		for _, id := range entries {
			entry, ok, err := view.ReadEntry(ctx, s.c, key, id)
			if err != nil {
				return step.Cursor, err
			}
			if !ok {
				s.moved = true
				continue
			}
			if done, err := visit(entry); done || err != nil {
				return step.Cursor, err
			}
		}
	}
	return step.Cursor, nil
}

// placeOf returns open if an entry is still to be delivered to the group, or the group holds it.
func (s *searcher) placeOf(ctx context.Context, e lua.Entry) (place, error) {
	if e.For != "" && e.For != s.group {
		return nowhere, nil // a retry for another group
	}
	id, err := view.ParseEntryID(e.EntryID)
	if err != nil {
		return nowhere, err
	}
	info, err := view.ReadStream(ctx, s.c, s.keys.Stream)
	if err != nil {
		return nowhere, err
	}
	i := slices.IndexFunc(info.Groups, func(g view.GroupInfo) bool { return g.Name == s.group })
	if i < 0 {
		return noGroup, nil
	}
	if id.Compare(info.Groups[i].Last) > 0 {
		return open, nil
	}
	only := view.PendingRange{From: e.EntryID, To: e.EntryID, Count: 1}
	held, err := view.ReadPending(ctx, s.c, s.keys.Stream, s.group, only)
	switch {
	case errors.Is(err, lua.ErrNoGroup):
		return noGroup, nil
	case len(held) > 0:
		return open, err
	}
	if err != nil {
		return nowhere, err
	}
	_, stays, err := view.ReadEntry(ctx, s.c, s.keys.Stream, e.EntryID)
	s.moved = s.moved || !stays
	return nowhere, err
}

const scanCount = 1000 // members per step of a scan

// retry looks for the group's retry in the schedule, or in the hash meta, in which each retry has a field. total is the
// size of the smaller one. A redriven message may be for all groups.
func (s *searcher) retry(ctx context.Context, inSchedule bool, total int64) (place, error) {
	if total == 0 {
		return nowhere, nil
	}
	pattern := view.EscapeGlob(s.id) + lua.Separator + "*"
	for cursor := uint64(0); ; {
		command := s.c.B().Hscan().Key(s.keys.Meta).Cursor(cursor).Match(pattern).Count(scanCount).Build()
		if inSchedule {
			command = s.c.B().Zscan().Key(s.keys.Due).Cursor(cursor).Match(pattern).Count(scanCount).Build()
		}
		var page rueidis.ScanEntry
		if err := view.AskLong(ctx, s.c, view.Scan(command, &page)); err != nil {
			return nowhere, err
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			m := lua.ParseMember(page.Elements[i])
			switch {
			case m.Kind == lua.MemberFirst:
			case m.Group == "":
				return scheduled, nil
			case m.Group == s.group:
				return open, nil
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nowhere, nil
		}
	}
}
