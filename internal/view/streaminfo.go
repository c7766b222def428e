package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// EntryID is a stream entry's ID in a form that compares.
type EntryID struct{ MS, Seq uint64 }

// ParseEntryID reads "<ms>-<seq>" or "<ms>".
func ParseEntryID(s string) (EntryID, error) {
	ms, seq, ok := strings.Cut(s, "-")
	var id EntryID
	var err error
	if id.MS, err = strconv.ParseUint(ms, 10, 64); err == nil && ok {
		id.Seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil {
		return EntryID{}, lua.Invalid("entry ID", s, "must be <milliseconds>-<sequence>")
	}
	return id, nil
}

// Compare orders IDs as the server does: below 0 when a comes first, 0 when they are the same.
func (a EntryID) Compare(b EntryID) int {
	return cmp.Or(cmp.Compare(a.MS, b.MS), cmp.Compare(a.Seq, b.Seq))
}

// Next is the ID right behind.
func (a EntryID) Next() EntryID { return EntryID{a.MS, a.Seq + 1} }

// Age is how long before now an entry was added, by its ID.
func (a EntryID) Age(now time.Time) time.Duration { return now.Sub(time.UnixMilli(int64(a.MS))) }

// String returns the ID as the server writes it.
func (a EntryID) String() string { return fmt.Sprintf("%d-%d", a.MS, a.Seq) }

// StreamInfo is what a stream says about itself in one round trip.
type StreamInfo struct {
	Length int64
	Groups []GroupInfo
}

// GroupInfo is what XINFO GROUPS says of one group.
type GroupInfo struct {
	Name      string
	Consumers int64
	Pending   int64
	Last      EntryID // last delivered
	Lag       int64   // the server's own count of entries not delivered; -1 = it does not know
	Read      int64   // the server's own count of entries delivered, ever; -1 = it does not know
}

// Names returns the names of the groups, in the order of the server.
func (s StreamInfo) Names() []string {
	names := make([]string, len(s.Groups))
	for i, g := range s.Groups {
		names[i] = g.Name
	}
	return names
}

// Pending returns how many entries are pending, of all groups together.
func (s StreamInfo) Pending() (n int64) {
	for _, g := range s.Groups {
		n += g.Pending
	}
	return n
}

// ReadStream asks for the length and the groups of a stream. A stream that does not exist has neither.
func ReadStream(ctx context.Context, c rueidis.Client, key string) (StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout) // rueidis repeats reads for as long as ctx lives
	defer cancel()
	replies := c.DoMulti(ctx, c.B().Xlen().Key(key).Build(), c.B().XinfoGroups().Key(key).Build())
	var s StreamInfo
	var err error
	if s.Length, err = replies[0].AsInt64(); err != nil {
		return s, lua.Classify("XLEN "+key, err)
	}
	list, err := replies[1].ToArray()
	if err != nil {
		if isNoKey(err) {
			return s, nil
		}
		return s, lua.Classify("XINFO GROUPS "+key, err)
	}
	for _, one := range list {
		g, err := ParseGroup(one)
		if err != nil {
			return s, fmt.Errorf("XINFO GROUPS %s: unexpected reply: %w", key, err)
		}
		s.Groups = append(s.Groups, g)
	}
	return s, nil
}

// Group returns one of the groups.
func (s StreamInfo) Group(name string) (g GroupInfo, ok bool) {
	at := slices.IndexFunc(s.Groups, func(g GroupInfo) bool { return g.Name == name })
	if at < 0 {
		return g, false
	}
	return s.Groups[at], true
}

// ReadLastID returns the last ID that a stream gave out; ok is false when there is no stream.
func ReadLastID(ctx context.Context, c rueidis.Client, key string) (id EntryID, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	fields, err := c.Do(ctx, c.B().XinfoStream().Key(key).Build()).AsMap()
	if err = lua.Classify("XINFO STREAM "+key, err); err != nil {
		if isNoKey(err) {
			err = nil
		}
		return id, false, err
	}
	last := fields["last-generated-id"]
	text, err := last.ToString()
	if err == nil {
		id, err = ParseEntryID(text)
	}
	return id, err == nil, err
}

// ParseGroup reads one element of the reply to XINFO GROUPS.
func ParseGroup(reply rueidis.RedisMessage) (GroupInfo, error) {
	g := GroupInfo{Lag: -1, Read: -1}
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
	g.Name, g.Consumers, g.Pending = text("name"), number("consumers"), number("pending")
	last := text("last-delivered-id")
	if err != nil {
		return g, err
	}
	if lag, ok := fields["lag"]; ok {
		if n, err := lag.AsInt64(); err == nil {
			g.Lag = n
		}
	}
	if read, ok := fields["entries-read"]; ok {
		if n, err := read.AsInt64(); err == nil {
			g.Read = n
		}
	}
	g.Last, err = ParseEntryID(last)
	return g, err
}
