package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	nobodyReads  = time.Minute // that entries wait meanwhile
	longWait     = time.Hour
	reclaimSlack = 30 * time.Second // beyond three visibility timeouts: bridges that start wait for one of them
	manyIdle     = 100              // consumers of a group, where the server cannot tell one that waits from one that is gone
)

// groupInfo is a consumer group, as XINFO tells.
type groupInfo struct {
	name    string
	pending int64
	lag     int64 // -1: the server does not know
	last    entryID
}

// groupsOf lists the groups of a stream; one that does not exist has none.
func (e *examination) groupsOf(ctx context.Context, stream string) ([]groupInfo, error) {
	replies, err := e.do(ctx, e.c.B().XinfoGroups().Key(stream).Build())
	if err != nil {
		if strings.Contains(err.Error(), "no such key") {
			return nil, nil
		}
		return nil, err
	}
	list, err := replies[0].ToArray()
	groups := make([]groupInfo, len(list))
	for i := range list {
		fields, failed := list[i].AsMap()
		if failed != nil {
			return nil, failed
		}
		text := func(name string) string { m := fields[name]; s, e := m.ToString(); err = errors.Join(err, e); return s }
		groups[i] = groupInfo{name: text("name"), last: parseID(text("last-delivered-id")), lag: -1}
		pending, lag := fields["pending"], fields["lag"]
		n, failed := pending.AsInt64()
		err = errors.Join(err, failed)
		groups[i].pending = n
		if n, failed := lag.AsInt64(); failed == nil {
			groups[i].lag = n
		}
	}
	return groups, err
}

type consumer struct {
	name    string
	pending int64
	idle    time.Duration
	told    bool // idle says since when it does not even try to read; before Redis 7.2: since when it got nothing
}

func (e *examination) consumersOf(ctx context.Context, stream, group string) ([]consumer, error) {
	replies, err := e.do(ctx, e.c.B().XinfoConsumers().Key(stream).Group(group).Build())
	if err != nil {
		if strings.Contains(err.Error(), "no such key") || errors.Is(err, lua.ErrNoGroup) {
			return nil, nil
		}
		return nil, err
	}
	list, err := replies[0].ToArray()
	consumers := make([]consumer, len(list))
	for i := range list {
		fields, failed := list[i].AsMap()
		if failed != nil {
			return nil, failed
		}
		name, pending, idle := fields["name"], fields["pending"], fields["idle"]
		var n, ms int64
		var errs [3]error
		consumers[i].name, errs[0] = name.ToString()
		n, errs[1] = pending.AsInt64()
		ms, errs[2] = idle.AsInt64()
		consumers[i].pending, consumers[i].idle = n, time.Duration(ms)*time.Millisecond
		_, consumers[i].told = fields["inactive"]
		err = errors.Join(append(errs[:], err)...)
	}
	return consumers, err
}

// stream looks at the entries of a partition, and at its groups.
func (e *examination) stream(ctx context.Context, p place) error {
	if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		groups, err := e.groupsOf(ctx, p.keys.Stream)
		if err != nil || len(groups) > 0 {
			return nil, err
		}
		n, err := e.number(ctx, e.c.B().Xlen().Key(p.keys.Stream).Build())
		if err != nil || n == 0 {
			return nil, err
		}
		return e.finding(noGroup, p, p.keys.Stream, "", n, plural(n, "entry", "entries")+", and no group"), nil
	}); err != nil {
		return err
	}
	groups, err := e.groupsOf(ctx, p.keys.Stream)
	if err != nil || len(groups) == 0 {
		return err
	}
	for _, g := range groups {
		if lua.CheckGroup(g.name) != nil {
			if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
				now, err := e.groupsOf(ctx, p.keys.Stream)
				if err != nil || !slices.ContainsFunc(now, func(one groupInfo) bool { return one.name == g.name }) {
					return nil, err
				}
				return e.finding(oddGroup, p, p.keys.Stream, g.name, 1, "a group called "+shown(g.name)), nil
			}); err != nil {
				return err
			}
			continue
		}
		policy, _, err := stream.ReadPolicy(ctx, e.c, e.Prefix, p.queue, g.name)
		if err != nil {
			return err
		}
		if err := e.group(ctx, p, g, policy.VisibilityTimeout); err != nil && !errors.Is(err, lua.ErrNoGroup) {
			return err
		}
	}
	return e.unfreed(ctx, p)
}

func (e *examination) group(ctx context.Context, p place, g groupInfo, visibility time.Duration) error {
	if err := e.waiting(ctx, p, g.name, visibility); err != nil {
		return err
	}
	if err := e.consumers(ctx, p, g.name); err != nil {
		return err
	}
	if g.pending == 0 {
		return nil
	}
	return e.pending(ctx, p, g, visibility)
}

// waiting looks at the entries that a group was not given yet.
func (e *examination) waiting(ctx context.Context, p place, name string, visibility time.Duration) error {
	patience := max(nobodyReads, 2*visibility)
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		now, err := e.serverTime(ctx)
		if err != nil {
			return nil, err
		}
		groups, err := e.groupsOf(ctx, p.keys.Stream)
		at := slices.IndexFunc(groups, func(g groupInfo) bool { return g.name == name })
		if err != nil || at < 0 {
			return nil, err
		}
		g := groups[at]
		replies, err := e.do(ctx, e.c.B().Xrange().Key(p.keys.Stream).Start("("+g.last.String()).End("+").Count(1).Build())
		if err != nil {
			return nil, err
		}
		next, err := replies[0].AsXRange()
		if err != nil || len(next) == 0 {
			return nil, err
		}
		oldest := parseID(next[0].ID).age(now)
		if oldest < nobodyReads {
			return nil, nil
		}
		consumers, err := e.consumersOf(ctx, p.keys.Stream, name)
		if err != nil {
			return nil, err
		}
		consumers = slices.DeleteFunc(consumers, func(c consumer) bool { return c.name == lua.ReclaimConsumer })
		quietest := time.Duration(1<<63 - 1)
		for _, c := range consumers {
			quietest = min(quietest, c.idle)
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
		found, n, err := e.held(ctx, p, g)
		if err != nil {
			return nil, err
		}
		found = fmt.Sprintf("%s, the oldest for %s", found, oldest.Round(time.Second))
		if c == notRead {
			found += fmt.Sprintf("; %s, the last read was %s ago", plural(int64(len(consumers)), "consumer", "consumers"), quietest.Round(time.Second))
		}
		return e.finding(c, p, p.keys.Stream, name, n, found, next[0].ID), nil
	})
}

// held says how much waits for a group, and about how many bytes that are.
func (e *examination) held(ctx context.Context, p place, g groupInfo) (found string, n int64, err error) {
	length, err := e.number(ctx, e.c.B().Xlen().Key(p.keys.Stream).Build())
	if err != nil {
		return "", 0, err
	}
	if n = min(g.lag, length); g.lag < 0 {
		return fmt.Sprintf("some of %s wait", plural(length, "entry", "entries")), length, nil
	}
	found = plural(n, "entry waits", "entries wait")
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if bytes, err := e.c.Do(call, e.c.B().MemoryUsage().Key(p.keys.Stream).Build()).AsInt64(); err == nil && length > 0 {
		found += fmt.Sprintf(", about %d bytes", int64(float64(bytes)*float64(n)/float64(length)))
	}
	return found, n, nil
}

// consumers looks for consumers that are in nobody's way, but should not be there.
func (e *examination) consumers(ctx context.Context, p place, group string) error {
	suspects := func(ctx context.Context, is func(consumer) bool) (names []string, pending int64, err error) {
		list, err := e.consumersOf(ctx, p.keys.Stream, group)
		for _, c := range list {
			if is(c) {
				names, pending = append(names, c.name), pending+c.pending
			}
		}
		return names, pending, err
	}
	if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		names, pending, err := suspects(ctx, func(c consumer) bool { return c.name == lua.ReclaimConsumer && c.pending > 0 })
		if err != nil || len(names) == 0 {
			return nil, err
		}
		return e.finding(stuckReclaim, p, p.keys.Stream, group, pending, plural(pending, "entry", "entries")+" pending with "+lua.ReclaimConsumer), nil
	}); err != nil {
		return err
	}
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		told := false
		names, _, err := suspects(ctx, func(c consumer) bool {
			told = told || c.told
			return c.name != lua.ReclaimConsumer && c.pending == 0 && c.idle > e.Idle
		})
		if err != nil || len(names) == 0 || !told && len(names) < manyIdle {
			return nil, err
		}
		n := int64(len(names))
		f := e.finding(idleConsumer, p, p.keys.Stream, group, n, plural(n, "consumer", "consumers")+" that hold nothing", names...)
		f.mend = func(ctx context.Context) (string, error) {
			dropped := 0
			for some := range slices.Chunk(names, pageItems) {
				n, err := lua.DropConsumers(ctx, e.c, p.keys, group, some)
				if dropped += n; err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("removed %s of %s that held nothing", plural(int64(dropped), "consumer", "consumers"), shown(group)), nil
		}
		return f, nil
	})
}

// pendingEntry is one that a consumer holds.
type pendingEntry struct {
	id       entryID
	consumer string
	idle     time.Duration
}

func (e *examination) pendingFrom(ctx context.Context, stream, group, from string, count int64) ([]pendingEntry, error) {
	replies, err := e.do(ctx, e.c.B().Xpending().Key(stream).Group(group).Start(from).End("+").Count(count).Build())
	if err != nil {
		return nil, err
	}
	list, err := replies[0].ToArray()
	if err != nil {
		return nil, err
	}
	entries := make([]pendingEntry, 0, len(list))
	for i := range list {
		row, err := list[i].ToArray()
		if err != nil || len(row) < 4 {
			return nil, fmt.Errorf("XPENDING %s: unexpected reply: %w", stream, err)
		}
		id, failed := row[0].ToString()
		name, failed2 := row[1].ToString()
		idle, failed3 := row[2].AsInt64()
		if err := errors.Join(failed, failed2, failed3); err != nil {
			return nil, err
		}
		entries = append(entries, pendingEntry{parseID(id), name, time.Duration(idle) * time.Millisecond})
	}
	return entries, nil
}
