package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

const aheadSlack = 24 * time.Hour // of IDs; clocks that were stepped back are less

// ids looks at the last ID of streams: who adds an entry of the largest one stops a stream for good.
func (e *examination) ids(ctx context.Context, p place, keys ...string) error {
	for _, key := range keys {
		if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			last, err := e.lastID(ctx, key)
			if err != nil || last == "" {
				return nil, err
			}
			now, err := e.serverTime(ctx)
			if err != nil || parseID(last).ms <= uint64(now.Add(aheadSlack).UnixMilli()) {
				return nil, err
			}
			return e.finding(aheadOfTime, p, key, "", 1, fmt.Sprintf("the last ID of %s is %s", key, last)), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// lastID returns the last ID that a stream gave out; "" when there is no stream, or when it may not be asked.
func (e *examination) lastID(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	fields, err := e.c.Do(ctx, e.c.B().XinfoStream().Key(key).Build()).AsMap()
	if err = lua.Classify("XINFO STREAM", err); err != nil {
		if strings.Contains(err.Error(), "no such key") || e.denied(err, "the last IDs of streams") {
			return "", nil
		}
		return "", err
	}
	value := fields["last-generated-id"]
	return value.ToString()
}
