package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/view"
)

const aheadSlack = 24 * time.Hour // an ID may be so far ahead, because a clock may have been stepped back

// ids checks the last ID of streams: after an entry with the largest possible ID, a stream refuses every further entry.
func (l *look) ids(p place, c *Check, keys ...string) {
	for _, key := range keys {
		l.probeEachTwice(func(l *look) *Finding {
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
