package lua

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// SearchFilter selects messages for the scripts that search. Empty fields do not restrict, except States.
type SearchFilter struct {
	// States names what is searched. Of the schedule: SearchScheduled, SearchRetrying. Of a stream: SearchReady,
	// SearchPending. Of the dead letters: SearchDead.
	States  []string
	IDs     []string
	Prefix  string
	Group   string
	Key     string // ordering key
	Headers map[string]string
	Error   string // a part of the error's text
	Reason  string // of a dead letter
	Text    string // a part of the payload
	From    time.Time
	Until   time.Time // exclusive
}

// States of a SearchFilter.
const (
	SearchScheduled = "scheduled" // members of the schedule that are for every group
	SearchRetrying  = "retrying"  // members of the schedule that are for one group
	SearchReady     = "ready"     // entries that a group has not read
	SearchPending   = "pending"   // entries that a group holds
	SearchDead      = "dead"
)

// encode returns the filter as the scripts read it: items <length>:<bytes>, names and values in turn.
func (f SearchFilter) encode() string {
	var text strings.Builder
	add := func(name, value string) {
		for _, item := range []string{name, value} {
			fmt.Fprintf(&text, "%d:%s", len(item), item)
		}
	}
	addSome := func(name, value string) {
		if value != "" {
			add(name, value)
		}
	}
	for _, state := range f.States {
		add("state", state)
	}
	for _, id := range f.IDs {
		add("id", id)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Headers)) {
		add(HeaderPrefix+name, f.Headers[name])
	}
	addSome("prefix", f.Prefix)
	addSome("group", f.Group)
	addSome("key", f.Key)
	addSome("error", f.Error)
	addSome("reason", f.Reason)
	addSome("text", f.Text)
	for name, at := range map[string]time.Time{"from_ms": f.From, "until_ms": f.Until} {
		if !at.IsZero() {
			// Due times are whole milliseconds, so both bounds may be rounded up.
			add(name, strconv.FormatInt(int64(math.Ceil(float64(at.UnixMicro())/1000)), 10))
		}
	}
	return text.String()
}

// NeedsMeta reports whether only messages with a meta can pass the filter. Then a search may use ScanMeta, which is
// cheaper than ScanDue if few messages have a meta.
func (f SearchFilter) NeedsMeta() bool {
	return len(f.Headers) > 0 || f.Key != "" || f.Error != "" || !slices.Contains(f.States, SearchScheduled)
}

// DependsOnPayload reports whether most messages can only be judged by their payloads. Then ScanPayload is cheaper than
// ScanDue, which asks for each payload by itself.
func (f SearchFilter) DependsOnPayload() bool {
	byMember := len(f.IDs) > 0 || f.Prefix != "" || f.Group != ""
	return f.Text != "" && !byMember && f.From.IsZero() && f.Until.IsZero()
}

var searchDueScript = load("search_due", []string{"due", "payload", "meta"},
	[]string{"cursor", "scanned", "limit", "filter"}, []string{"member"})

// Scan names the key that a DueSearch scans.
type Scan string

// Keys that a DueSearch can scan. ScanMeta finds only members with a meta.
const (
	ScanDue     Scan = "due"     // the schedule; the default
	ScanMeta    Scan = "meta"    // the hash meta: see NeedsMeta
	ScanPayload Scan = "payload" // the hash payload; the filter must have a Text
)

// DueSearch is one step of a search through the schedule. An empty Cursor begins a search. A cursor is valid only in
// the server process that made it, so all steps of a search use one connection.
type DueSearch struct {
	Cursor string
	Scan   Scan
	Limit  int // about how many members to look at in this step
	// Left has members to look at before the scan. In the next step, SearchDue returns here the members that it read but
	// did not look at.
	Left []string

	Done   bool          // set by SearchDue: the search is complete
	Looked int           // set by SearchDue: members looked at in this step
	Used   time.Duration // set by SearchDue: time of the server; 0 if it is unknown

	isScanned bool // the scan is complete, and only the members of Left are to be looked at
}

// FoundDue is a member of the schedule that passed a filter.
type FoundDue struct {
	Member string
	Score  float64
	Meta   string
	Bytes  int64 // of the payload
}

// SearchDue looks at the next members of the schedule: at most about Limit of them, or 1 MiB, or for 1 ms. It returns
// those that pass the filter, and the next step. A scan may return a member twice.
func SearchDue(ctx context.Context, c rueidis.Client, k Keys, f SearchFilter,
	s DueSearch) (next DueSearch, found []FoundDue, err error) {
	cursor := cmp.Or(s.Cursor, WalkDone)
	if s.isScanned {
		cursor = ""
	}
	args := append([]string{cursor, string(cmp.Or(s.Scan, ScanDue)), strconv.Itoa(s.Limit), f.encode()}, s.Left...)
	list, err := searchDueScript.list(ctx, c, []string{k.Due, k.Payload, k.Meta}, args, 4)
	if err != nil {
		return s, nil, err
	}
	r := searchReply{list: list}
	next = DueSearch{Scan: s.Scan, Limit: s.Limit}
	next.Cursor, next.Looked, next.Used = r.text(), int(r.number()), r.micros()
	next.isScanned = s.isScanned || next.Cursor == WalkDone
	for n := r.number(); n > 0 && r.err == nil; n-- {
		next.Left = append(next.Left, r.text())
	}
	for r.more() {
		one := FoundDue{Member: r.text()}
		one.Score, _ = strconv.ParseFloat(r.text(), 64) // infinities parse, too
		one.Meta, one.Bytes = r.text(), r.number()
		found = append(found, one)
	}
	next.Done = next.isScanned && len(next.Left) == 0
	return next, found, searchDueScript.unexpected(r.err)
}

// LookDue returns a search that looks only at the given members of the schedule.
func LookDue(members []string, limit int) DueSearch {
	return DueSearch{Left: members, Limit: limit, isScanned: true}
}

var searchEntriesScript = load("search_entries", []string{"entries"}, []string{"cursor", "last", "limit", "filter"},
	nil)

// StreamSearch is one step of a search through a stream, or through dead letters. An empty Cursor begins a search.
type StreamSearch struct {
	Cursor string // the ID of the entry that the step before looked at last
	Last   string // the ID of the last entry to look at; "" = the newest one, and SearchEntries sets it
	Limit  int    // entries to look at in this step; 0 = only set Last

	Done   bool          // set by SearchEntries: the search is complete
	Looked int           // set by SearchEntries: entries looked at in this step
	Used   time.Duration // set by SearchEntries: time of the server; 0 if it is unknown
}

// FoundStored is an entry, or a dead letter, that passed a filter.
type FoundStored struct {
	Entry  string
	Fields []FieldValue // without the payload
	Bytes  int64        // of the payload
	Unread []string     // the groups that have not read the entry
	Held   []HeldBy     // the groups that hold the entry
}

// HeldBy says which consumer of a group holds an entry. If a worker gave the entry back by XNACK, Consumer is empty and
// Idle is 0.
type HeldBy struct {
	Group, Consumer string
	Idle            time.Duration
	Deliveries      int64
	Cancelled       bool
}

// SearchEntries looks at the next entries of a stream: at most Limit of them, or 1 MiB, or for 1 ms. It returns those
// that pass the filter, and the next step.
func SearchEntries(ctx context.Context, c rueidis.Client, stream string, f SearchFilter,
	s StreamSearch) (next StreamSearch, found []FoundStored, err error) {
	args := []string{cmp.Or(s.Cursor, "0-0"), s.Last, strconv.Itoa(s.Limit), f.encode()}
	list, err := searchEntriesScript.list(ctx, c, []string{stream}, args, 5)
	if err != nil {
		return s, nil, err
	}
	r := searchReply{list: list}
	next = StreamSearch{Limit: s.Limit, Done: r.number() == 0, Cursor: r.text(), Last: r.text(), Looked: int(r.number()),
		Used: r.micros()}
	for r.more() {
		found = append(found, r.stored())
	}
	return next, found, searchEntriesScript.unexpected(r.err)
}

// searchReply reads the values of a reply, one after the other. err is the first error.
type searchReply struct {
	list []rueidis.RedisMessage
	at   int
	err  error
}

func (r *searchReply) more() bool { return r.err == nil && r.at < len(r.list) }

func (r *searchReply) text() string {
	if !r.more() {
		r.err = cmp.Or(r.err, fmt.Errorf("it ends after %d values", len(r.list)))
		return ""
	}
	one := r.list[r.at]
	r.at++
	if n, err := one.AsInt64(); err == nil && one.IsInt64() {
		return strconv.FormatInt(n, 10)
	}
	text, err := one.ToString()
	if err != nil {
		r.err = fmt.Errorf("value %d: %w", r.at, err)
	}
	return text
}

func (r *searchReply) number() int64 {
	text := r.text()
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.err = fmt.Errorf("value %d: %w", r.at, err)
	}
	return n
}

// micros reads a number of microseconds.
func (r *searchReply) micros() time.Duration { return time.Duration(r.number()) * time.Microsecond }

func (r *searchReply) stored() FoundStored {
	one := FoundStored{Entry: r.text(), Bytes: r.number()}
	for n := r.number(); n > 0 && r.err == nil; n -= 2 {
		one.Fields = append(one.Fields, FieldValue{Field: r.text(), Value: r.text()})
	}
	for n := r.number(); n > 0 && r.err == nil; n-- {
		held := HeldBy{Group: r.text(), Consumer: r.text(), Idle: time.Duration(r.number()) * time.Millisecond}
		held.Deliveries, held.Cancelled = Deliveries(r.number())
		isGivenBack := GivenBack(held.Consumer, held.Idle)
		if isGivenBack {
			held.Idle = 0
		}
		if held.Consumer == "" && held.Deliveries == 0 && !isGivenBack {
			one.Unread = append(one.Unread, held.Group)
		} else {
			one.Held = append(one.Held, held)
		}
	}
	return one
}
