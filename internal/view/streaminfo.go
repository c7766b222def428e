package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// EntryID is the ID of a stream entry, in a form that can be compared.
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

// Compare orders IDs as the server does: negative if a comes first, 0 if they are equal.
func (a EntryID) Compare(b EntryID) int {
	return cmp.Or(cmp.Compare(a.MS, b.MS), cmp.Compare(a.Seq, b.Seq))
}

// CompareEntries orders entry IDs that are not parsed yet. A malformed one comes first.
func CompareEntries(a, b string) int {
	x, _ := ParseEntryID(a)
	y, _ := ParseEntryID(b)
	return x.Compare(y)
}

// Next returns the ID that follows.
func (a EntryID) Next() EntryID { return EntryID{a.MS, a.Seq + 1} }

// Before returns the ID before a, or 0-0 if there is none.
func (a EntryID) Before() EntryID {
	switch {
	case a.Seq > 0:
		return EntryID{a.MS, a.Seq - 1}
	case a.MS > 0:
		return EntryID{a.MS - 1, math.MaxUint64}
	}
	return EntryID{}
}

// Time returns when an entry was added, by its ID.
func (a EntryID) Time() time.Time { return time.UnixMilli(int64(a.MS)) }

// Age returns how long before now an entry was added, by its ID.
func (a EntryID) Age(now time.Time) time.Duration { return now.Sub(a.Time()) }

// String returns the ID as the server writes it.
func (a EntryID) String() string { return fmt.Sprintf("%d-%d", a.MS, a.Seq) }

// StreamInfo describes a stream, as read in one round trip.
type StreamInfo struct {
	Length int64
	Groups []GroupInfo
}

// GroupInfo is one row of XINFO GROUPS.
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

// Pending returns the number of pending entries of all groups together.
func (s StreamInfo) Pending() (n int64) {
	for _, g := range s.Groups {
		n += g.Pending
	}
	return n
}

// ReadStream asks for the length and the groups of a stream. A stream that does not exist has neither.
func ReadStream(ctx context.Context, c rueidis.Client, key string) (s StreamInfo, err error) {
	err = Ask(ctx, c, Number(c.B().Xlen().Key(key).Build(), &s.Length), GroupsOf(c, key, &s.Groups))
	return s, err
}

// GroupsOf asks for the groups of a stream.
func GroupsOf(c rueidis.Client, key string, list *[]GroupInfo) Question {
	return Into(c.B().XinfoGroups().Key(key).Build(), list, rows(readGroup))
}

// GroupsIn reads a reply of XINFO GROUPS that is a part of another reply.
func GroupsIn(reply rueidis.RedisMessage) ([]GroupInfo, error) { return rowsIn(reply, readGroup) }

func readGroup(r *row) GroupInfo {
	return GroupInfo{Name: r.text("name"), Consumers: r.number("consumers"), Pending: r.number("pending"),
		Last: r.entryID("last-delivered-id"), Lag: r.numberOr("lag", -1), Read: r.numberOr("entries-read", -1)}
}

// Group returns one of the groups.
func (s StreamInfo) Group(name string) (g GroupInfo, ok bool) {
	at := slices.IndexFunc(s.Groups, func(g GroupInfo) bool { return g.Name == name })
	if at < 0 {
		return g, false
	}
	return s.Groups[at], true
}

// ReadLastID returns the last ID that a stream has generated; ok is false if there is no stream.
func ReadLastID(ctx context.Context, c rueidis.Client, key string) (id EntryID, ok bool, err error) {
	err = Ask(ctx, c, Into(c.B().XinfoStream().Key(key).Build(), &id, func(reply rueidis.RedisResult) (EntryID, error) {
		fields, err := reply.AsMap()
		r := row{fields, err}
		ok = err == nil
		return r.entryID("last-generated-id"), r.err
	}))
	return id, ok && err == nil, err
}
