package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/view"
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
