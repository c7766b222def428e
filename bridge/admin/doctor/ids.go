package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/view"
)

const aheadSlack = 24 * time.Hour // of IDs; clocks that were stepped back are less

// ids looks at the last ID of streams: who adds an entry of the largest one stops a stream for good.
func (e *examination) ids(ctx context.Context, p place, keys ...string) error {
	for _, key := range keys {
		if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			last, ok, err := view.ReadLastID(ctx, e.c, key)
			if err != nil && e.denied(err, "the last IDs of streams") {
				return nil, nil
			}
			if err != nil || !ok {
				return nil, err
			}
			now, err := view.ServerTime(ctx, e.c)
			if err != nil || last.MS <= uint64(now.Add(aheadSlack).UnixMilli()) {
				return nil, err
			}
			return e.finding(aheadOfTime, p, key, "", 1, fmt.Sprintf("the last ID of %s is %s", key, last)), nil
		}); err != nil {
			return err
		}
	}
	return nil
}
