package lua

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// ErrOldBridge: a live bridge does not serve the feature that the call needs. Nothing was written.
var ErrOldBridge = errors.New("a bridge is alive that does not serve this")

// OldBridgeError names the live bridge that does not serve the feature.
type OldBridgeError struct {
	Bridge Identity
	What   string // the feature, in the plural: "messages with a key"
	Needs  int    // the level that bridges need for the feature
}

func (e *OldBridgeError) Error() string {
	b := e.Bridge
	return fmt.Sprintf("%v: bridge %s (host %s, process %d, version %s) has protocol level %d, and %s need level %d: upgrade "+
		"it, or stop it; see docs/operations/upgrade.md", ErrOldBridge, b.ID, orDash(b.Host), b.PID, orDash(b.Version),
		b.Level, e.What, e.Needs)
}

// Is reports whether target is ErrOldBridge.
func (e *OldBridgeError) Is(target error) bool { return target == ErrOldBridge }

const (
	levelsMaxAge  = 5 * time.Second // how long the last read of the live bridges is used
	levelsTimeout = time.Second     // of a read
	bridgeMaxAge  = 5 * time.Second // how far the last heartbeat of a live bridge may be from the server's clock
)

// Levels knows the live bridges, as of at most 5 s ago, and refuses a feature that one of them does not serve. It is
// safe for concurrent use. Nil refuses nothing.
type Levels struct {
	client  rueidis.Client
	bridges string

	mu      sync.Mutex
	read    time.Time     // when the last answer came
	lowest  *Identity     // the live bridge with the lowest level; nil = none is alive, or none is known
	denied  error         // the error of the last look, if the user may not read the bridges
	failed  time.Time     // when the last look failed; zero = it did not fail
	looking chan struct{} // closed when the running look ends; nil = no look is running
}

// NewLevels returns a Levels. Redis is not touched.
func NewLevels(c rueidis.Client, prefix string) *Levels {
	return &Levels{client: c, bridges: NewGlobals(prefix).Bridges}
}

// Allow returns a *OldBridgeError if the level of a live bridge is below the given level, which the feature `what`
// needs. It refuses nothing if no bridge is alive. If the server does not answer, it decides by the bridges that the
// last answer named. It takes one round trip every 5 s, for which all callers wait together, for 1 s at most. After a
// look without an answer it looks once a second, and for 5 s callers do not wait for these looks.
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

// look starts a read of the bridges if the last one is too old. It returns the channel to wait for, or nil.
func (l *Levels) look(ctx context.Context) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.read.IsZero() && time.Since(l.read) <= levelsMaxAge {
		return nil
	}
	failing := !l.failed.IsZero() && time.Since(l.failed) <= levelsMaxAge // after an older failure, callers wait again
	if l.looking == nil && (!failing || time.Since(l.failed) > levelsTimeout) {
		ended := make(chan struct{})
		l.looking = ended
		ctx := context.WithoutCancel(ctx) // all callers that wait share the look
		go func() {
			defer close(ended)
			l.note(l.readLowest(ctx))
		}()
	}
	if failing {
		return nil
	}
	return l.looking
}

// note stores the result of a look.
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

// readLowest reads the live bridges, and returns the one with the lowest level; nil if none is alive.
func (l *Levels) readLowest(ctx context.Context) (lowest *Identity, err error) {
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
		if !ours || now.Sub(time.UnixMilli(int64(min(beat.Score, 1e15)))).Abs() > bridgeMaxAge {
			continue
		}
		if lowest == nil || i.Level < lowest.Level {
			lowest = &i
		}
	}
	return lowest, nil
}
