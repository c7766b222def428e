package lua

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

// This file holds the scripts that only read.

var findOrphansScript = load("find_orphans", []string{"due", "fields"}, []string{"cursor", "limit"}, []string{"field"}).readOnly()

// ScanOrphans scans about limit fields of a hash (payload or meta), or 1 MiB, from a cursor on. It returns the fields
// whose message is not in the schedule, the number of fields scanned, and the next cursor, which is "0" when the scan
// is complete.
func ScanOrphans(ctx context.Context, c rueidis.Client, due, hash, cursor string,
	limit int) (orphans []string, looked int, next string, err error) {
	return findOrphans(ctx, c, due, hash, cursor, limit, nil)
}

// StillOrphans returns those of the given fields that exist in the hash and whose message is not in the schedule.
func StillOrphans(ctx context.Context, c rueidis.Client, due, hash string, fields []string) (orphans []string, err error) {
	orphans, _, _, err = findOrphans(ctx, c, due, hash, "0", 0, fields)
	return orphans, err
}

func findOrphans(ctx context.Context, c rueidis.Client, due, hash, cursor string, limit int,
	fields []string) (orphans []string, looked int, next string, err error) {
	reply, err := findOrphansScript.list(ctx, c, []string{due, hash}, append([]string{cursor, strconv.Itoa(limit)}, fields...), 2)
	if err != nil {
		return nil, 0, "", err
	}
	n, failed := reply[1].AsInt64()
	for i, one := range reply {
		text, err := one.ToString()
		switch {
		case i == 1:
		case err != nil:
			failed = fmt.Errorf("value %d: %w", i, err)
		case i == 0:
			next = text
		default:
			orphans = append(orphans, text)
		}
	}
	return orphans, int(n), next, findOrphansScript.unexpected(failed)
}

var findLostScript = load("find_lost", []string{"stream"}, []string{"group"}, []string{"entry"}).readOnly()

// LostEntries returns those of the given entries that are pending in a group, but not in the stream any more.
func LostEntries(ctx context.Context, c rueidis.Client, stream, group string, entries []string) (lost []string, err error) {
	reply, err := inParts(entries, func(entries []string) ([]int64, error) {
		return findLostScript.integers(ctx, c, []string{stream}, append([]string{group}, entries...), len(entries), Durability{})
	})
	for i, isLost := range reply {
		if isLost == 1 {
			lost = append(lost, entries[i])
		}
	}
	return lost, err
}

var findEntriesScript = load("find_entries", []string{"entries"}, []string{"cursor", "limit", "id"}, nil)

// EntrySearch is one step of a search for the entries of a message in a stream, or in the dead letters. An empty Cursor
// begins a search.
type EntrySearch struct {
	Cursor string // the ID of the entry that the step before looked at last
	Limit  int    // entries to look at in this step
	More   bool   // set by FindEntries: there may be further entries
	Looked int    // set by FindEntries: entries looked at in this step
}

// FindEntries looks at the next entries of a stream: at most Limit of them, or 1 MiB. It returns the IDs of those that
// carry the message, and the next step.
func FindEntries(ctx context.Context, c rueidis.Client, stream, id string,
	s EntrySearch) (next EntrySearch, found []string, err error) {
	if s.Cursor == "" {
		s.Cursor = "0-0"
	}
	args := []string{s.Cursor, strconv.Itoa(s.Limit), id}
	reply, err := findEntriesScript.list(ctx, c, []string{stream}, args, 3)
	if err != nil {
		return s, nil, err
	}
	more, failed := reply[0].AsInt64()
	looked, err := reply[2].AsInt64()
	failed = cmp.Or(failed, err)
	next = EntrySearch{Limit: s.Limit, More: more == 1, Looked: int(looked)}
	next.Cursor, err = reply[1].ToString()
	failed = cmp.Or(failed, err)
	for _, one := range reply[3:] {
		entry, err := one.ToString()
		failed = cmp.Or(failed, err)
		found = append(found, entry)
	}
	return next, found, findEntriesScript.unexpected(failed)
}
