package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/view"
)

// Heartbeat is the last heartbeat of a bridge.
type Heartbeat struct {
	Bridge   string          // the member in Redis, unparsed
	Identity bridge.Identity // the parsed member
	Foreign  bool            // another program wrote it; bridges ignore it
	Age      time.Duration   // by the server's clock
}

// Bridges returns the last heartbeat of each bridge of the prefix, newest first. One round trip.
func (a *Admin) Bridges(ctx context.Context) ([]Heartbeat, error) {
	list, err := view.ReadHeartbeats(ctx, a.redis.Client, a.prefix)
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	beats := make([]Heartbeat, len(list))
	for i, beat := range list {
		beat.Age = max(0, beat.Age)
		beats[i] = Heartbeat(beat)
	}
	return beats, nil
}
