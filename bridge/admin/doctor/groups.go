package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	nobodyReads  = time.Minute // that entries wait meanwhile
	longWait     = time.Hour
	reclaimSlack = 30 * time.Second // beyond three visibility timeouts: bridges that start wait for one of them
	manyIdle     = 100              // consumers of a group, where the server cannot tell one that waits from one that is gone
)

// stream looks at the entries of a partition, and at its groups.
func (e *examination) stream(ctx context.Context, p place) error {
	if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		entries, err := view.ReadStream(ctx, e.c, p.keys.Stream)
		if err != nil || len(entries.Groups) > 0 || entries.Length == 0 {
			return nil, err
		}
		return e.finding(noGroup, p, p.keys.Stream, "", entries.Length,
			plural(entries.Length, "entry", "entries")+", and no group"), nil
	}); err != nil {
		return err
	}
	entries, err := view.ReadStream(ctx, e.c, p.keys.Stream)
	if err != nil || len(entries.Groups) == 0 {
		return err
	}
	for _, g := range entries.Groups {
		if lua.CheckGroup(g.Name) != nil {
			if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
				now, err := view.ReadStream(ctx, e.c, p.keys.Stream)
				if _, there := now.Group(g.Name); err != nil || !there {
					return nil, err
				}
				return e.finding(oddGroup, p, p.keys.Stream, g.Name, 1, "a group called "+shown(g.Name)), nil
			}); err != nil {
				return err
			}
			continue
		}
		policy, _, err := stream.ReadPolicy(ctx, e.c, e.Prefix, p.queue, g.Name)
		if err != nil {
			return err
		}
		if err := e.group(ctx, p, g, policy.VisibilityTimeout); err != nil && !errors.Is(err, lua.ErrNoGroup) {
			return err
		}
	}
	return e.unfreed(ctx, p)
}

func (e *examination) group(ctx context.Context, p place, g view.GroupInfo, visibility time.Duration) error {
	if err := e.waiting(ctx, p, g.Name, visibility); err != nil {
		return err
	}
	if err := e.consumers(ctx, p, g.Name); err != nil {
		return err
	}
	if g.Pending == 0 {
		return nil
	}
	return e.pending(ctx, p, g, visibility)
}

// waiting looks at the entries that a group was not given yet.
func (e *examination) waiting(ctx context.Context, p place, name string, visibility time.Duration) error {
	patience := max(nobodyReads, 2*visibility)
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		now, err := view.ServerTime(ctx, e.c)
		if err != nil {
			return nil, err
		}
		entries, err := view.ReadStream(ctx, e.c, p.keys.Stream)
		g, there := entries.Group(name)
		if err != nil || !there {
			return nil, err
		}
		next, err := view.ReadPage(ctx, e.c, p.keys.Stream, "("+g.Last.String(), "+", 1, false)
		if err != nil || len(next) == 0 {
			return nil, err
		}
		id, err := view.ParseEntryID(next[0].ID)
		oldest := id.Age(now)
		if err != nil || oldest < nobodyReads {
			return nil, err
		}
		consumers, err := view.ReadConsumers(ctx, e.c, p.keys.Stream, name)
		if err != nil {
			return nil, err
		}
		consumers = slices.DeleteFunc(consumers, func(c view.Consumer) bool { return c.Name == lua.ReclaimConsumer })
		quietest := time.Duration(1<<63 - 1)
		for _, c := range consumers {
			quietest = min(quietest, c.Idle)
		}
		var c *Check
		switch {
		case len(consumers) == 0:
			c = noConsumer
		case quietest > patience && oldest > patience:
			c = notRead
		case oldest > longWait:
			c = behind
		default:
			return nil, nil
		}
		found, n := e.held(ctx, p, entries.Length, g)
		found = fmt.Sprintf("%s, the oldest for %s", found, oldest.Round(time.Second))
		if c == notRead {
			found += fmt.Sprintf("; %s, the last read was %s ago", plural(int64(len(consumers)), "consumer", "consumers"),
				quietest.Round(time.Second))
		}
		return e.finding(c, p, p.keys.Stream, name, n, found, next[0].ID), nil
	})
}

// held says how much waits for a group, and about how many bytes that are.
func (e *examination) held(ctx context.Context, p place, length int64, g view.GroupInfo) (found string, n int64) {
	if n = min(g.Lag, length); g.Lag < 0 {
		return fmt.Sprintf("some of %s wait", plural(length, "entry", "entries")), length
	}
	found = plural(n, "entry waits", "entries wait")
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if bytes, err := e.c.Do(call, e.c.B().MemoryUsage().Key(p.keys.Stream).Build()).AsInt64(); err == nil && length > 0 {
		found += fmt.Sprintf(", about %d bytes", int64(float64(bytes)*float64(n)/float64(length)))
	}
	return found, n
}

// consumers looks for consumers that are in nobody's way, but should not be there.
func (e *examination) consumers(ctx context.Context, p place, group string) error {
	suspects := func(ctx context.Context, is func(view.Consumer) bool) (names []string, pending int64, err error) {
		list, err := view.ReadConsumers(ctx, e.c, p.keys.Stream, group)
		for _, c := range list {
			if is(c) {
				names, pending = append(names, c.Name), pending+c.Pending
			}
		}
		return names, pending, err
	}
	if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		names, pending, err := suspects(ctx, func(c view.Consumer) bool { return c.Name == lua.ReclaimConsumer && c.Pending > 0 })
		if err != nil || len(names) == 0 {
			return nil, err
		}
		return e.finding(stuckReclaim, p, p.keys.Stream, group, pending,
			plural(pending, "entry", "entries")+" pending with "+lua.ReclaimConsumer), nil
	}); err != nil {
		return err
	}
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		told := false
		names, _, err := suspects(ctx, func(c view.Consumer) bool {
			told = told || c.Tells
			return c.Name != lua.ReclaimConsumer && c.Pending == 0 && c.Idle > e.Idle
		})
		if err != nil || len(names) == 0 || !told && len(names) < manyIdle {
			return nil, err
		}
		n := int64(len(names))
		f := e.finding(idleConsumer, p, p.keys.Stream, group, n, plural(n, "consumer", "consumers")+" that hold nothing",
			names...)
		f.mend = func(ctx context.Context) (string, error) {
			dropped := 0
			for some := range slices.Chunk(names, pageItems) {
				n, err := lua.DropConsumers(ctx, e.c, p.keys, group, some)
				if dropped += n; err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("removed %s of %s that held nothing", plural(int64(dropped), "consumer", "consumers"),
				shown(group)), nil
		}
		return f, nil
	})
}
