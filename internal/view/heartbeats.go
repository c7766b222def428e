package view

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Heartbeat is the last heartbeat of a bridge.
type Heartbeat struct {
	Bridge   string       // the member in Redis
	Identity lua.Identity // parsed from the member
	Foreign  bool         // the member was not written by a bridge
	Age      time.Duration
}

// ReadHeartbeats returns the last heartbeats of all bridges of a prefix, newest first. The server's clock decides their
// age; a heartbeat that is ahead of that clock has a negative age. One round trip.
func ReadHeartbeats(ctx context.Context, c rueidis.Client, prefix string) ([]Heartbeat, error) {
	var now time.Time
	var scores []rueidis.ZScore
	key := lua.NewGlobals(prefix).Bridges
	if err := Ask(ctx, c, clockOf(c.B().Time().Build().SetSlot(key), &now),
		Scores(c.B().Zrange().Key(key).Min("0").Max("-1").Rev().Withscores().Build(), &scores)); err != nil {
		return nil, err
	}
	beats := make([]Heartbeat, len(scores))
	for i, s := range scores {
		identity, ours := lua.ParseIdentity(s.Member)
		beats[i] = Heartbeat{s.Member, identity, !ours, now.Sub(time.UnixMilli(int64(min(s.Score, 1e15))))}
	}
	return beats, nil
}
