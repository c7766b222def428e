package stream

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// entryID is a stream entry's ID in a form that compares.
type entryID struct{ ms, seq uint64 }

// parseEntryID reads "<ms>-<seq>" or "<ms>".
func parseEntryID(s string) (entryID, error) {
	ms, seq, ok := strings.Cut(s, "-")
	var id entryID
	var err error
	if id.ms, err = strconv.ParseUint(ms, 10, 64); err == nil && ok {
		id.seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil {
		return entryID{}, lua.Invalid("entry ID", s, "must be <milliseconds>-<sequence>")
	}
	return id, nil
}

func (a entryID) compare(b entryID) int {
	return cmp.Or(cmp.Compare(a.ms, b.ms), cmp.Compare(a.seq, b.seq))
}

func (a entryID) String() string { return fmt.Sprintf("%d-%d", a.ms, a.seq) }

// streamInfo is what a stream says about itself in one round trip.
type streamInfo struct {
	length int64
	groups []groupInfo
}

type groupInfo struct {
	name      string
	consumers int64
	pending   int64
	last      entryID // last delivered
	lag       int64   // the server's own count of entries not delivered; -1 = it does not know
	read      int64   // the server's own count of entries delivered, ever; -1 = it does not know
}

func (s streamInfo) names() []string {
	names := make([]string, len(s.groups))
	for i, g := range s.groups {
		names[i] = g.name
	}
	return names
}

func (s streamInfo) pending() (n int64) {
	for _, g := range s.groups {
		n += g.pending
	}
	return n
}

// readStream asks for the length and the groups of a stream. A stream that does not exist has neither.
func readStream(ctx context.Context, c rueidis.Client, key string) (streamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // rueidis repeats reads for as long as ctx lives
	defer cancel()
	replies := c.DoMulti(ctx, c.B().Xlen().Key(key).Build(), c.B().XinfoGroups().Key(key).Build())
	var s streamInfo
	var err error
	if s.length, err = replies[0].AsInt64(); err != nil {
		return s, lua.Classify("XLEN "+key, err)
	}
	list, err := replies[1].ToArray()
	if err != nil {
		if strings.Contains(err.Error(), "no such key") {
			return s, nil
		}
		return s, lua.Classify("XINFO GROUPS "+key, err)
	}
	for _, one := range list {
		g, err := parseGroup(one)
		if err != nil {
			return s, fmt.Errorf("XINFO GROUPS %s: unexpected reply: %w", key, err)
		}
		s.groups = append(s.groups, g)
	}
	return s, nil
}

func parseGroup(reply rueidis.RedisMessage) (groupInfo, error) {
	g := groupInfo{lag: -1, read: -1}
	fields, err := reply.AsMap()
	if err != nil {
		return g, err
	}
	text := func(field string) string {
		m := fields[field]
		s, e := m.ToString()
		err = cmp.Or(err, e)
		return s
	}
	number := func(field string) int64 {
		m := fields[field]
		n, e := m.AsInt64()
		err = cmp.Or(err, e)
		return n
	}
	g.name, g.consumers, g.pending = text("name"), number("consumers"), number("pending")
	last := text("last-delivered-id")
	if err != nil {
		return g, err
	}
	if lag, ok := fields["lag"]; ok {
		if n, err := lag.AsInt64(); err == nil {
			g.lag = n
		}
	}
	if read, ok := fields["entries-read"]; ok {
		if n, err := read.AsInt64(); err == nil {
			g.read = n
		}
	}
	g.last, err = parseEntryID(last)
	return g, err
}
