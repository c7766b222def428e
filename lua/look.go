package lua

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

// This file holds the scripts that write nothing, for users who may only read.

var findOrphansScript = load("find_orphans", []string{"due", "fields"}, []string{"cursor", "limit"}, []string{"field"}).readOnly()

// ScanOrphans scans about limit fields of a hash (payload or meta), or 1 MiB, from a cursor on. It returns the fields
// without a member of the schedule, the number of fields scanned, and the next cursor; "0" = the scan is complete.
func ScanOrphans(ctx context.Context, c rueidis.Client, due, hash, cursor string,
	limit int) (orphans []string, looked int, next string, err error) {
	return findOrphans(ctx, c, due, hash, cursor, limit, nil)
}

// StillOrphans returns the given fields that exist in the hash and have no member of the schedule.
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

// LostEntries returns the given entries that are pending in a group, and not in the stream.
func LostEntries(ctx context.Context, c rueidis.Client, stream, group string, entries []string) (lost []string, err error) {
	reply, err := inParts(entries, func(entries []string) ([]int64, error) {
		return findLostScript.integers(ctx, c, []string{stream}, append([]string{group}, entries...), len(entries), Durability{})
	})
	for i, is := range reply {
		if is == 1 {
			lost = append(lost, entries[i])
		}
	}
	return lost, err
}
