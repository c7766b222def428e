package lmstfy

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/migrate"
)

// This file reads the structures of lmstfy that hold IDs and tries of jobs.

const (
	pageSize = 1000 // members in one reply

	// maxScore is the largest score that lmstfy writes to timer_set: a Unix time plus a delay. Each of the two is a
	// number of seconds in 32 bits.
	maxScore = 2 * math.MaxUint32
)

// entry is a job in a structure of lmstfy.
type entry struct {
	id    string
	state string
	due   time.Time // score in timer_set, whole seconds
	tries int       // remaining tries
	raw   string    // the member of the zset, or the element of the list
}

// timer returns the jobs in timer_set by queue, in the order of their due times. It may miss a job that is added or
// removed during the scan.
func (s *Source) timer(ctx context.Context) (map[queueID][]entry, error) {
	found := map[queueID][]entry{}
	for cursor := uint64(0); ; {
		answers, err := migrate.Do(ctx, s.c, s.c.B().Zscan().Key(timerKey).Cursor(cursor).Count(pageSize).Build())
		if err != nil {
			return nil, err
		}
		page, err := answers[0].AsScanEntry()
		if err != nil {
			return nil, fmt.Errorf("read lmstfy's Redis: %w", err)
		}
		for pair := range slices.Chunk(page.Elements, 2) {
			if queue, e, ok := timerEntry(pair); ok && s.isWanted(queue) {
				found[queue] = append(found[queue], e)
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	for _, all := range found {
		slices.SortFunc(all, func(a, b entry) int { return a.due.Compare(b.due) })
	}
	return found, nil
}

// timerEntry reads a member of timer_set and its score. A member holds namespace, queue, tries and ID, packed by Lua's
// struct library with the format Hc0Hc0HHc0.
func timerEntry(pair []string) (queue queueID, e entry, ok bool) {
	if len(pair) != 2 {
		return queue, e, false
	}
	score, err := strconv.ParseFloat(pair[1], 64)
	namespace, rest, hasNamespace := cutCounted(pair[0])
	name, rest, hasName := cutCounted(rest)
	hasScore := err == nil && score >= 0 && score <= maxScore
	if !hasScore || !hasNamespace || !hasName || len(rest) < 2 {
		return queue, e, false
	}
	tries := int(binary.LittleEndian.Uint16([]byte(rest)))
	id, rest, ok := cutCounted(rest[2:])
	e = entry{id: id, state: Delayed, due: time.Unix(int64(score), 0), tries: tries, raw: pair[0]}
	return queueID{namespace, name}, e, ok && rest == ""
}

// cutCounted splits off a text that follows its length in two bytes.
func cutCounted(s string) (text, rest string, ok bool) {
	if len(s) < 2 {
		return "", "", false
	}
	n := int(binary.LittleEndian.Uint16([]byte(s)))
	if len(s) < 2+n {
		return "", "", false
	}
	return s[2 : 2+n], s[2+n:], true
}

// list returns the jobs in one of a queue's lists, the oldest first, as entries with the given state. Jobs that lmstfy
// removes meanwhile may be missing.
func (s *Source) list(ctx context.Context, key, state string) (found []entry, _ error) {
	err := migrate.Backward(ctx, s.c, key, func(raw string) {
		if len(raw) < 2 {
			return
		}
		if id, rest, ok := cutCounted(raw[2:]); ok && rest == "" {
			tries := int(binary.LittleEndian.Uint16([]byte(raw)))
			found = append(found, entry{id: id, state: state, tries: tries, raw: raw})
		}
	})
	return found, err
}
