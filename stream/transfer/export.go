package transfer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// Bounds of one page of an export.
const (
	exportMembers = 500
	exportBytes   = 1 << 20
)

// Export reads everything that a queue holds, as records.
type Export struct {
	// LeftOut counts, once Records is through, entries of the stream that could not be delivered a second time: their body is
	// lost, or malformed. They are not among the records.
	LeftOut int

	c             rueidis.Client
	prefix, queue string
	kinds         []RecordKind
}

// NewExport returns an export of these kinds of records.
func NewExport(c rueidis.Client, prefix, queue string, kinds ...RecordKind) *Export {
	return &Export{c: c, prefix: prefix, queue: queue, kinds: kinds}
}

// Time returns the server's clock.
func (e *Export) Time(ctx context.Context) (time.Time, error) {
	now, err := view.ServerTime(ctx, e.c)
	if err != nil {
		return now, fmt.Errorf("export %s: %w", e.queue, err)
	}
	return now, nil
}

// Records yields the records, and at most one error, at the end: what came before it is not all. First come ready ones, one for
// each group that has not acknowledged an entry; then scheduled ones, by due time; then dead letters, oldest first; each kind
// partition by partition but for the dead letters. It reads in bounded steps, about 1 MiB each. A message that moves meanwhile
// may be among them twice or not at all: for all of them, hold the queue and stop its workers.
func (e *Export) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		fail := func(err error) { yield(Record{}, fmt.Errorf("export %s: %w", e.queue, err)) }
		e.LeftOut = 0
		if err := errors.Join(lua.CheckPrefix(e.prefix), lua.CheckQueue(e.queue)); err != nil {
			fail(err)
			return
		}
		counts, err := view.ReadCounts(ctx, e.c, e.prefix, e.queue)
		if err != nil {
			fail(err)
			return
		}
		var parts []iter.Seq2[Record, error]
		for _, kind := range []RecordKind{RecordReady, RecordScheduled} {
			for _, name := range counts.Names(e.queue) {
				if !slices.Contains(e.kinds, kind) {
					continue
				}
				k := lua.NewKeys(e.prefix, name)
				if kind == RecordReady {
					parts = append(parts, e.ready(ctx, k.Stream))
				} else {
					parts = append(parts, e.scheduled(ctx, k))
				}
			}
		}
		if slices.Contains(e.kinds, RecordDead) {
			parts = append(parts, e.dead(ctx))
		}
		for _, part := range parts {
			for r, err := range part {
				if err != nil {
					fail(err)
					return
				}
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

func (e *Export) scheduled(ctx context.Context, k lua.Keys) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for last := (lua.Exported{}); ; {
			call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
			page, err := lua.Export(call, e.c, k, last, exportMembers, exportBytes)
			cancel()
			if err != nil {
				yield(Record{}, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, found := range page {
				if !yield(scheduledRecord(found), nil) {
					return
				}
			}
			last = page[len(page)-1]
			last.Payload, last.Meta = nil, ""
		}
	}
}

func (e *Export) dead(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for found, err := range deadletter.New(e.c, e.prefix).Stored(ctx, e.queue, deadletter.Filter{}) {
			if err != nil {
				yield(Record{}, err)
				return
			}
			if !yield(deadRecord(found.Partition, found.Entry.ID, found.Entry.FieldValues), nil) {
				return
			}
		}
	}
}

// ready yields, of one stream, what each group has not been given, and what it holds. Without any group that is all there is.
//
//  1. How far a group was given entries is read first.
//  2. What follows is read from the stream, the rest from its pending list: an entry that is delivered meanwhile is read in one
//     of them.
func (e *Export) ready(ctx context.Context, key string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		info, err := view.ReadStream(ctx, e.c, key)
		if err != nil {
			yield(Record{}, err)
			return
		}
		if len(info.Groups) == 0 {
			info.Groups = []view.GroupInfo{{}}
		}
		for _, g := range info.Groups {
			for found, err := range view.Walk(ctx, e.c, key, "("+g.Last.String(), "+", false) {
				if err != nil {
					yield(Record{}, err)
					return
				}
				if r, ok := e.owed(found, g.Name); ok && !yield(r, nil) {
					return
				}
			}
			if g.Name == "" {
				return
			}
			for r, err := range e.held(ctx, key, g) {
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

// owed returns an entry as a record for a group, unless it is for another one, or not fit to be delivered.
func (e *Export) owed(found rueidis.XRangeSlice, group string) (Record, bool) {
	for _, f := range found.FieldValues {
		if f.Field == lua.FieldFor && f.Value != "" && f.Value != group && group != "" {
			return Record{}, false
		}
	}
	r, ok := readyRecord(found.ID, found.FieldValues, group)
	if !ok {
		e.LeftOut++
	}
	return r, ok
}

// held yields the pending list of a group, up to the entry that was its last.
func (e *Export) held(ctx context.Context, key string, g view.GroupInfo) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		size := view.NewPager()
		for from := "-"; ; {
			page, err := view.ReadPending(ctx, e.c, key, g.Name, view.PendingRange{From: from, To: g.Last.String(),
				Count: size.Count})
			if err != nil {
				yield(Record{}, err)
				return
			}
			cmds := make([]rueidis.Completed, len(page))
			for i, p := range page {
				cmds[i] = e.c.B().Xrange().Key(key).Start(p.ID.String()).End(p.ID.String()).Build()
			}
			bytes := 0
			call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
			replies := e.c.DoMulti(call, cmds...)
			cancel()
			for _, reply := range replies {
				found, err := reply.AsXRangeSlices()
				if err != nil {
					yield(Record{}, lua.Classify("XRANGE "+key, err))
					return
				}
				if len(found) == 0 {
					e.LeftOut++
					continue
				}
				bytes += view.EntrySize(found[0])
				if r, ok := e.owed(found[0], g.Name); ok && !yield(r, nil) {
					return
				}
			}
			if len(page) < size.Count {
				return
			}
			size.Seen(len(page), bytes)
			from = "(" + page[len(page)-1].ID.String()
		}
	}
}
