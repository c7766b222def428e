package lua

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A feature that an older bridge does not serve is refused while that bridge is alive; the bridge with the lowest level
// decides. A member that is no bridge, or a dead one, refuses nothing.
func TestLevelsRefuseWhatALiveBridgeDoesNotServe(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newTestQueue(t, s)
		prefix := s.Prefix(t)
		bridges := NewGlobals(prefix).Bridges
		const old = "01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3"
		allow := func() error { return NewLevels(b.c, prefix).Allow(t.Context(), LevelKeys, "messages with a key") }
		beat := func(member string, age time.Duration) {
			clock := b.texts("TIME")
			seconds, err := strconv.ParseInt(clock[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			b.do("ZADD", bridges, strconv.FormatInt(seconds*1000-age.Milliseconds(), 10), member)
		}
		if err := allow(); err != nil {
			t.Errorf("without a bridge: %v", err)
		}
		beat(NewIdentity("web-2", 1, "v9").String(), 0)
		beat("somebody", 0)
		beat(old, time.Minute)
		if err := allow(); err != nil {
			t.Errorf("with bridges of this release: %v", err)
		}
		beat(old, 0)
		err := allow()
		var refused *OldBridgeError
		if !errors.Is(err, ErrOldBridge) || !errors.As(err, &refused) || refused.Bridge.Host != "web-1" ||
			refused.Needs != LevelKeys {
			t.Fatalf("beside an older bridge: %v", err)
		}
		for _, said := range []string{
			"web-1", "process 7", "v1.2.3", "level 1", "messages with a key", "docs/operations/upgrade.md",
		} {
			if !strings.Contains(err.Error(), said) {
				t.Errorf("%q is not in: %v", said, err)
			}
		}
		if err := (*Levels)(nil).Allow(t.Context(), 99, "anything"); err != nil {
			t.Errorf("nil: %v", err)
		}
		kept := NewLevels(b.c, prefix)
		if err := kept.Allow(t.Context(), LevelKeys, "x"); !errors.Is(err, ErrOldBridge) {
			t.Fatal(err)
		}
		b.do("DEL", bridges)
		if err := kept.Allow(t.Context(), LevelKeys, "x"); !errors.Is(err, ErrOldBridge) {
			t.Errorf("it asked again within 5 s: %v", err)
		}
		kept.read = kept.read.Add(-levelsMaxAge - time.Second)
		if err := kept.Allow(t.Context(), LevelKeys, "x"); err != nil {
			t.Errorf("after 5 s: %v", err)
		}
	})
}

// Before, a failed read of the levels was remembered for ever: hours later, the next message with a key did not wait
// for a new read, and went to a bridge that does not serve it.
func TestOldFailureToReadLevelsIsForgotten(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Shared(t))
	prefix := redistest.Shared(t).Prefix(t)
	l := NewLevels(b.c, prefix)
	b.do("SET", NewGlobals(prefix).Bridges, "no sorted set")
	if err := l.Allow(t.Context(), LevelKeys, "x"); err != nil {
		t.Fatal(err)
	}
	if l.failed.IsZero() {
		t.Fatal("the look has not failed")
	}
	b.do("DEL", NewGlobals(prefix).Bridges)
	b.do("ZADD", NewGlobals(prefix).Bridges, strconv.FormatInt(b.now(), 10), "01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3")
	l.failed = l.failed.Add(-levelsMaxAge - time.Second)
	if err := l.Allow(t.Context(), LevelKeys, "x"); !errors.Is(err, ErrOldBridge) {
		t.Errorf("beside an older bridge: %v", err)
	}
}
