package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/view"
)

const aheadSlack = 24 * time.Hour // of the time in an ID; a clock that was stepped back explains less

// ids looks at the last ID of streams: whoever adds an entry with the largest ID there is stops a stream for good.
func (l *look) ids(p place, c *Check, keys ...string) {
	for _, key := range keys {
		l.twice(func(l *look) *Finding {
			last := ask(l, func(ctx context.Context) (view.EntryID, error) {
				id, _, err := view.ReadLastID(ctx, l.c, key)
				return id, err
			})
			if l.denied("the last IDs of streams") || last == (view.EntryID{}) {
				return nil
			}
			if now := l.serverTime(); last.MS <= uint64(now.Add(aheadSlack).UnixMilli()) {
				return nil
			}
			return l.finding(c, p, key, "", 1, fmt.Sprintf("the last ID of %s is %s", key, last))
		})
	}
}
