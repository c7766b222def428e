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

// Levels knows which bridges live, as of at most 5 s ago, and refuses what one of them does not serve. It is safe for
// concurrent use. Nil refuses nothing.
type Levels struct {
	client  rueidis.Client
	bridges string

	mu      sync.Mutex
	read    time.Time     // of the last answer
	lowest  *Identity     // of the living bridges the one with the lowest level; nil = none lives, or none is known
	denied  error         // the user of the last look may not know
	failed  time.Time     // of the last look, if it had no answer
	looking chan struct{} // is closed when the look ends that is under way; nil = none is
}

// NewLevels returns a Levels. Redis is not touched.
func NewLevels(c rueidis.Client, prefix string) *Levels {
	return &Levels{client: c, bridges: NewGlobals(prefix).Bridges}
}

// Allow refuses with a *OldBridgeError what a living bridge does not serve: what needs a level. When no bridge lives it
// refuses nothing. A server that does not answer is passed over: who cannot be asked is taken for what it was. One round
// trip every 5 s, for which all callers wait together, for 1 s at most. For 5 s after one without an answer there is one
// a second until an answer comes, and nobody waits for those.
func (l *Levels) Allow(ctx context.Context, level int, what string) error {
	if l == nil {
		return nil
	}
	if looking := l.look(ctx); looking != nil {
		select {
		case <-looking:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denied != nil {
		return fmt.Errorf("look which bridges live: %w", l.denied)
	}
	if l.lowest == nil || l.lowest.Level >= level {
		return nil
	}
	return &OldBridgeError{Bridge: *l.lowest, What: what, Needs: level}
}

// look sees to it that what is known is not too old. It returns what to wait for, nil for nothing.
func (l *Levels) look(ctx context.Context) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.read.IsZero() && time.Since(l.read) <= levelsFor {
		return nil
	}
	failing := !l.failed.IsZero() && time.Since(l.failed) <= levelsFor // what failed long ago says nothing of now
	if l.looking == nil && (!failing || time.Since(l.failed) > levelsTimeout) {
		ended := make(chan struct{})
		l.looking = ended
		ctx := context.WithoutCancel(ctx) // it is for all who wait
		go func() {
			defer close(ended)
			l.note(l.lowestOf(ctx))
		}()
	}
	if failing {
		return nil
	}
	return l.looking
}

// note keeps what a look has found.
func (l *Levels) note(lowest *Identity, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking, l.denied, l.failed = nil, nil, time.Time{}
	switch {
	case err == nil:
		l.lowest, l.read = lowest, time.Now()
	case errors.Is(err, ErrDenied):
		l.denied = err
	default:
		l.failed = time.Now()
	}
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
