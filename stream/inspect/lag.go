package inspect

import (
	"context"
	"errors"
	"iter"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

type groupLag struct {
	entries int64
	approx  bool
}

// measureLags counts, for each group, the entries after its last delivered one. One walk from the oldest entry on and one from
// the newest on serve all groups. They take turns, and end when either has answered for each group.
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
	settle := func(i int, n int64) {
		lags[i] = groupLag{entries: min(max(0, n), s.Length)}
		delete(open, i)
	}
	oldest, stopOldest := iter.Pull2(view.Walk(ctx, c, key, "-", "+", false))
	defer stopOldest()
	newest, stopNewest := iter.Pull2(view.Walk(ctx, c, key, "-", "+", true))
	defer stopNewest()
	bytes := 0
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
		tailID, noTail := view.ParseEntryID(tail.ID) // none when the stream shrank meanwhile
		for i := range open {
			switch last := s.Groups[i].Last; {
			case !more, headID.Compare(last) > 0: // n entries are at or below it
				settle(i, s.Length-n)
			case noTail == nil && tailID.Compare(last) <= 0: // n entries are above it
				settle(i, n)
			}
		}
		bytes += view.EntrySize(head) + view.EntrySize(tail)
	}
	return lags, nil
}
