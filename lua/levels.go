package lua

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// ErrOldBridge: a bridge is alive that does not serve what was to be written. Nothing was written.
var ErrOldBridge = errors.New("a bridge is alive that does not serve this")

// OldBridgeError says which bridge does not serve what was to be written.
type OldBridgeError struct {
	Bridge Identity
	What   string // what was to be written
	Needs  int    // the level that bridges need for it
}

func (e *OldBridgeError) Error() string {
	b := e.Bridge
	return fmt.Sprintf("%v: bridge %s (host %s, process %d, version %s) has protocol level %d, and %s need level %d: upgrade "+
		"it, or stop it; see Upgrade and rollback in docs/OPERATIONS.md", ErrOldBridge, b.ID, orDash(b.Host), b.PID, orDash(b.Version),
		b.Level, e.What, e.Needs)
}

// Is reports whether target is ErrOldBridge.
func (e *OldBridgeError) Is(target error) bool { return target == ErrOldBridge }

const (
	levelsFor     = 5 * time.Second // how long what was read of the living bridges counts
	levelsTimeout = time.Second     // of a read
	bridgeFresh   = 5 * time.Second // how far the last heartbeat of a living bridge may be from the server's clock
)

// Levels knows which bridges live, as of at most 5 s ago, and refuses what one of them does not serve. It is safe for concurrent
// use. Nil refuses nothing.
type Levels struct {
	client  rueidis.Client
	bridges string

	mu     sync.Mutex
	read   time.Time
	lowest *Identity // of the living bridges the one with the lowest level; nil = none lives, or none is known
}

// NewLevels returns a Levels. Redis is not touched.
func NewLevels(c rueidis.Client, prefix string) *Levels {
	return &Levels{client: c, bridges: NewGlobals(prefix).Bridges}
}

// Allow refuses with a *OldBridgeError what a living bridge does not serve: what needs a level. When no bridge lives it refuses
// nothing. A server that does not answer is passed over: who cannot be asked is taken for what it was. One round trip every 5 s.
func (l *Levels) Allow(ctx context.Context, level int, what string) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read.IsZero() || time.Since(l.read) > levelsFor {
		lowest, err := l.lowestOf(ctx)
		switch {
		case errors.Is(err, ErrDenied):
			return fmt.Errorf("look which bridges live: %w", err)
		case err == nil:
			l.lowest, l.read = lowest, time.Now()
		}
	}
	if l.lowest == nil || l.lowest.Level >= level {
		return nil
	}
	return &OldBridgeError{Bridge: *l.lowest, What: what, Needs: level}
}

func (l *Levels) lowestOf(ctx context.Context) (lowest *Identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, levelsTimeout)
	defer cancel()
	c := l.client
	replies := c.DoMulti(ctx, c.B().Time().Build().SetSlot(l.bridges),
		c.B().Zrange().Key(l.bridges).Min("0").Max("-1").Withscores().Build())
	clock, err := replies[0].AsIntSlice()
	if err != nil {
		return nil, Classify("TIME", err)
	}
	if len(clock) != 2 {
		return nil, fmt.Errorf("TIME: %d numbers", len(clock))
	}
	beats, err := replies[1].AsZScores()
	if err != nil {
		return nil, Classify("ZRANGE "+l.bridges, err)
	}
	now := time.UnixMilli(clock[0]*1000 + clock[1]/1000)
	for _, beat := range beats {
		i, ours := ParseIdentity(beat.Member)
		if !ours || now.Sub(time.UnixMilli(int64(min(beat.Score, 1e15)))).Abs() > bridgeFresh {
			continue
		}
		if lowest == nil || i.Level < lowest.Level {
			lowest = &i
		}
	}
	return lowest, nil
}
