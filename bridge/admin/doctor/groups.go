package doctor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/redis/rueidis"
)

const (
	nobodyReads  = time.Minute // an entry that waits for so long should have been read
	longWait     = time.Hour
	reclaimSlack = 30 * time.Second // see abandonedAfter

	// manyIdle is the least number of idle consumers that is reported if the server cannot tell a consumer that waits
	// from a dead one.
	manyIdle = 100
)

// groups checks the entries of a partition, and its groups.
func (l *look) groups(p place) {
	l.probeEachTwice(func(l *look) *Finding {
		entries := l.stream(p.keys.Stream)
		if len(entries.Groups) > 0 {
			return nil
		}
		return l.counted(noGroup, p, p.keys.Stream, "", entries.Length, "entry, and no group", "entries, and no group")
	})
	entries := l.stream(p.keys.Stream)
	for _, g := range entries.Groups {
		if lua.CheckGroup(g.Name) != nil {
			l.probeEachTwice(func(l *look) *Finding {
				if _, there := l.stream(p.keys.Stream).Group(g.Name); !there {
					return nil
				}
				return l.finding(oddGroup, p, p.keys.Stream, g.Name, 1, "a group called "+shown(g.Name))
			})
			continue
		}
		policy := l.policy(p.queue, g.Name)
		visibility := policy.VisibilityTimeout
		l.waiting(p, g.Name, visibility)
		l.consumers(p, g.Name)
		if g.Pending > 0 {
			l.scoped(func(l *look) { // the group may be destroyed meanwhile
				l.pending(p, g, visibility)
				l.hung(p, g.Name, policy)
			}, lua.ErrNoGroup)
		}
	}
	if len(entries.Groups) > 0 {
		l.unfreed(p)
	}
}

// waiting checks the unread entries of a group.
func (l *look) waiting(p place, name string, visibility time.Duration) {
	l.probeEachTwice(func(l *look) *Finding {
		now, entries := l.serverTime(), l.stream(p.keys.Stream)
		g, there := entries.Group(name)
		if !there {
			return nil
		}
		var next []rueidis.XRangeSlice
		l.read(view.Entries(l.c.B().Xrange().Key(p.keys.Stream).Start("("+g.Last.String()).End("+").Count(1).Build(), &next))
		if len(next) == 0 {
			return nil
		}
		oldest := entryID(next[0].ID).Age(now)
		if oldest < nobodyReads {
			return nil
		}
		consumers := l.readConsumers(p, name, func(c view.Consumer) bool { return c.Name != lua.ReclaimConsumer })
		sinceLastRead := time.Duration(math.MaxInt64)
		for _, c := range consumers {
			sinceLastRead = min(sinceLastRead, c.Idle)
		}
		// Without a consumer, nobody has read for as long as the oldest entry waits.
		check := waitingCheck(len(consumers), oldest, min(sinceLastRead, oldest), visibility)
		if check == nil {
			return nil
		}
		found, n := l.countWaiting(p, entries.Length, g)
		found = fmt.Sprintf("%s, the oldest for %s", found, oldest.Round(time.Second))
		if check == notRead {
			found += fmt.Sprintf("; %s, the last read was %s ago", plural(int64(len(consumers)), "consumer", "consumers"),
				sinceLastRead.Round(time.Second))
		}
		has, known := l.hasTarget(p.queue, name)
		check, do := forTarget(check, has, known)
		f := l.finding(check, p, p.keys.Stream, name, n, found, next[0].ID)
		f.Do = cmp.Or(do, f.Do)
		return f
	})
}

// hasTarget returns whether the messages of a group are posted to a target of callbacks. known is false if the key of
// the targets has another type.
func (l *look) hasTarget(queue, group string) (has, known bool) {
	n := int64(-1)
	key := lua.NewKeys(l.Prefix, queue).Push
	l.scoped(func(l *look) { l.read(view.Number(l.c.B().Hexists().Key(key).Field(group).Build(), &n)) }, lua.ErrWrongType)
	return n == 1, n >= 0
}

// countWaiting returns how many entries wait for a group, and a text with this number and with about how many bytes the
// entries take.
func (l *look) countWaiting(p place, length int64, g view.GroupInfo) (found string, n int64) {
	n = min(g.Lag, length)
	if g.Lag < 0 {
		return fmt.Sprintf("some of %s wait", plural(length, "entry", "entries")), length
	}
	found = plural(n, "entry waits", "entries wait")
	if bytes := l.bytesOf(p.keys.Stream); bytes > 0 && length > 0 {
		found += fmt.Sprintf(", about %d bytes", int64(float64(bytes)*float64(n)/float64(length)))
	}
	return found, n
}

// readConsumers returns the consumers of a group for which selects returns true.
func (l *look) readConsumers(p place, group string, selects func(view.Consumer) bool) []view.Consumer {
	var all []view.Consumer
	l.read(view.ConsumersOf(l.c, p.keys.Stream, group, &all).OrNoGroup())
	return slices.DeleteFunc(all, func(c view.Consumer) bool { return !selects(c) })
}

// consumers checks for entries held by lua.ReclaimConsumer, the bridges' own consumer, and for idle consumers that hold
// nothing.
func (l *look) consumers(p place, group string) {
	l.probeEachTwice(func(l *look) *Finding {
		pending := int64(0)
		for _, c := range l.readConsumers(p, group, func(c view.Consumer) bool { return c.Name == lua.ReclaimConsumer }) {
			pending += c.Pending
		}
		return l.counted(stuckReclaim, p, p.keys.Stream, group, pending, "entry pending with "+lua.ReclaimConsumer,
			"entries pending with "+lua.ReclaimConsumer)
	}, func(l *look) *Finding {
		idleIsKnown := false // true if the server reports the time since a consumer's last read: Redis 7.2 and later
		var names []string
		for _, c := range l.readConsumers(p, group, func(view.Consumer) bool { return true }) {
			idleIsKnown = idleIsKnown || c.Tells
			if c.Name != lua.ReclaimConsumer && c.Pending == 0 && c.Idle > l.Idle {
				names = append(names, c.Name)
			}
		}
		if !idleIsKnown && len(names) < manyIdle {
			return nil
		}
		return l.listed(idleConsumer, p, p.keys.Stream, group, names, "consumer that holds nothing",
			"consumers that hold nothing").mendedBy(l.drop(p, group, names))
	})
}

// drop returns a repair that removes consumers that hold nothing.
func (e *examination) drop(p place, group string, names []string) mend {
	return func(ctx context.Context) (string, error) {
		dropped := 0
		for some := range slices.Chunk(names, pageItems) {
			n, err := lua.DropConsumers(ctx, e.c, p.keys, group, some)
			dropped += n
			if err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("removed %s of %s that held nothing", plural(int64(dropped), "consumer", "consumers"),
			shown(group)), nil
	}
}
