package inspect

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// groupLag is the backlog of a group.
type groupLag struct {
	entries int64
	approx  bool
	since   time.Time // when its oldest entry was added, or later; zero: there is none, or it is unknown
}

// measureLags counts, for each group, the entries after its last delivered one. One walk from the oldest entry and one
// from the newest serve all groups. They alternate, and end when either has answered for each group.
func measureLags(ctx context.Context, c rueidis.Client, key string, s view.StreamInfo) ([]groupLag, error) {
	lags := make([]groupLag, len(s.Groups))
	open := map[int]bool{}
	for i, g := range s.Groups {
		lags[i] = groupLag{entries: s.Length, approx: true} // an upper bound
		if g.Lag >= 0 {
			lags[i].entries = min(g.Lag, s.Length)
		}
		open[i] = true
	}
	settle := func(i int, n int64, oldest time.Time) {
		lags[i] = groupLag{entries: min(max(0, n), s.Length), since: oldest}
		delete(open, i)
	}
	oldest, stopOldest := iter.Pull2(view.Walk(ctx, c, key, "-", "+", false))
	defer stopOldest()
	newest, stopNewest := iter.Pull2(view.Walk(ctx, c, key, "-", "+", true))
	defer stopNewest()
	bytes, above := 0, time.Time{} // time of the entry that the second walk passed last
	for n := int64(0); len(open) > 0 && n < statsEntries && bytes < statsBytes; n++ {
		head, err, more := oldest()
		tail, failed, _ := newest()
		if err = errors.Join(err, failed); err != nil {
			return nil, err
		}
		headID, invalid := view.ParseEntryID(head.ID)
		if more && invalid != nil {
			return nil, invalid
		}
		tailID, noTail := view.ParseEntryID(tail.ID) // fails if the stream shrank meanwhile
		for i := range open {
			switch last := s.Groups[i].Last; {
			case !more: // n entries are at or below it
				settle(i, s.Length-n, time.Time{})
			case headID.Compare(last) > 0: // the same
				settle(i, s.Length-n, headID.Time())
			case noTail == nil && tailID.Compare(last) <= 0: // n entries are above it
				settle(i, n, above)
			}
		}
		if noTail == nil {
			above = tailID.Time()
		}
		bytes += view.EntrySize(head) + view.EntrySize(tail)
	}
	for i := range open { // the second walk has not reached it
		lags[i].since = above
	}
	return lags, nil
}
