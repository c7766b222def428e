package lua

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

const (
	// movePatience is how long a call waits while a slot is on another server. A client reads the topology of a cluster
	// again within a second of the first redirection, or more slowly with 100 servers and more.
	movePatience = 5 * time.Second
	movePause    = 50 * time.Millisecond
)

// Dedicated calls run with a connection that no other call uses, for WATCH and MULTI. Such a connection follows no
// redirection of a cluster. If the slot of the key is on another server, run is called again with another connection,
// until the client knows that server, ctx ends or movePatience is over. So run must return the error of a redirection,
// and must assign all of its results again at each call.
func Dedicated(ctx context.Context, c rueidis.Client, run func(rueidis.DedicatedClient) error) error {
	for w := (MoveWait{}); ; {
		if err := c.Dedicated(run); !w.Again(ctx, err) {
			return err
		}
	}
}

// MoveWait waits for a client to learn the new server of a cluster slot. The zero value is ready for use.
type MoveWait struct{ began time.Time }

// Again reports whether the call that failed with err is to be repeated. If err says that the slot is on another
// server, or on none, it waits a moment and returns true, until movePatience is over or ctx ends.
func (w *MoveWait) Again(ctx context.Context, err error) bool {
	re := (*rueidis.RedisError)(nil)
	if !errors.As(err, &re) || !isRedirection(re) && !re.IsTryAgain() && !re.IsClusterDown() {
		return false
	}
	if w.began.IsZero() {
		w.began = time.Now()
	}
	if time.Since(w.began) > movePatience {
		return false
	}
	pause := time.NewTimer(movePause)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isRedirection reports whether the server answered that another server has the slot. Then it executed nothing.
func isRedirection(err *rueidis.RedisError) bool {
	_, moved := err.IsMoved()
	_, ask := err.IsAsk()
	return moved || ask
}
