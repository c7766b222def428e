package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Heartbeat is the last sign of life of a bridge.
type Heartbeat struct {
	Bridge   string          // what stands in Redis
	Identity bridge.Identity // what it means
	Foreign  bool            // no bridge wrote it, and none takes it for one
	Age      time.Duration   // by the server's clock
}

// Bridges returns the last heartbeats of the bridges of a prefix, newest first. One round trip.
func (a *Admin) Bridges(ctx context.Context) ([]Heartbeat, error) {
	c, key := a.redis.Client, lua.NewGlobals(a.prefix).Bridges
	replies := c.DoMulti(ctx, c.B().Time().Build(), c.B().Zrange().Key(key).Min("0").Max("-1").Rev().Withscores().Build())
	clock, err := replies[0].AsIntSlice()
	if err == nil && len(clock) != 2 {
		err = fmt.Errorf("TIME returned %d values", len(clock))
	}
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", lua.Classify("TIME", err))
	}
	scores, err := replies[1].AsZScores()
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", lua.Classify("ZRANGE", err))
	}
	now := time.Unix(clock[0], clock[1]*int64(time.Microsecond))
	beats := make([]Heartbeat, len(scores))
	for i, s := range scores {
		identity, ok := lua.ParseIdentity(s.Member)
		beats[i] = Heartbeat{s.Member, identity, !ok, max(0, now.Sub(time.UnixMilli(int64(min(s.Score, 1e15)))))}
	}
	return beats, nil
}
