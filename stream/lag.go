package stream

import (
	"context"
	"iter"

	"github.com/redis/rueidis"
)

type lag struct {
	entries int64
	approx  bool
}

// measureLags counts, for each group, the entries after its last delivered one. One walk from the oldest entry on and one from the
// newest on serve all groups; they take turns, so that the cost is that of the shorter one.
func measureLags(ctx context.Context, c rueidis.Client, key string, s streamInfo) ([]lag, error) {
	lags := make([]lag, len(s.groups))
	open := map[int]bool{}
	for i, g := range s.groups {
		lags[i] = lag{entries: s.length, approx: true} // no more than that
		if g.lag >= 0 {
			lags[i].entries = min(g.lag, s.length)
		}
		open[i] = true
	}
	settle := func(i int, n int64) {
		lags[i] = lag{entries: min(max(0, n), s.length)}
		delete(open, i)
	}
	oldest, stopOldest := iter.Pull2(walk(ctx, c, key, "-", "+", false))
	defer stopOldest()
	newest, stopNewest := iter.Pull2(walk(ctx, c, key, "-", "+", true))
	defer stopNewest()
	bytes := 0
	for n := int64(0); len(open) > 0 && n < statsEntries && bytes < statsBytes; n++ {
		head, err, more := oldest()
		if err != nil {
			return nil, err
		}
		tail, err, _ := newest()
		if err != nil {
			return nil, err
		}
		if !more { // the walk saw every entry
			for i := range open {
				settle(i, s.length-n)
			}
			break
		}
		headID, err := parseEntryID(head.ID)
		if err != nil {
			return nil, err
		}
		for i := range open {
			if headID.compare(s.groups[i].last) > 0 { // n entries are at or below it
				settle(i, s.length-n)
			}
		}
		if tailID, err := parseEntryID(tail.ID); err == nil { // there is one, unless the stream shrank
			for i := range open {
				if tailID.compare(s.groups[i].last) <= 0 { // n entries are above it
					settle(i, n)
				}
			}
		}
		bytes += entrySize(head) + entrySize(tail)
	}
	return lags, nil
}
