package transfer

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// Bounds of one page of an export.
const (
	exportMembers = 500
	exportBytes   = 1 << 20
)

// Export reads the contents of a queue. Records iterates over them, and the queue may be in use meanwhile.
type Export struct {
	// LeftOut is the number of entries that Records has left out, because their body is lost or malformed, so that they
	// could not be delivered again. It also counts recurrences that cannot be written elsewhere, because their name is
	// not text. It is complete when Records has ended.
	LeftOut int

	c             rueidis.Client
	prefix, queue string
	kinds         []RecordKind
}

// NewExport returns an Export of these kinds of records.
func NewExport(c rueidis.Client, prefix, queue string, kinds ...RecordKind) *Export {
	return &Export{c: c, prefix: prefix, queue: queue, kinds: kinds}
}

// Time returns the server's clock.
func (e *Export) Time(ctx context.Context) (time.Time, error) {
	now, err := view.ServerTimeOf(ctx, e.c, lua.NewKeys(e.prefix, e.queue).Due)
	if err != nil {
		return now, fmt.Errorf("export %s: %w", e.queue, err)
	}
	return now, nil
}

// Records yields the records. If an error occurs, it is the last value, and records are missing. First come the ready
// records: one for each entry and each group that has not acknowledged the entry. Then come scheduled records by due
// time. Each of these two kinds comes partition by partition. Then come dead letters, oldest first, and then
// recurrences. It reads in bounded steps of about 1 MiB each. A message that changes its state during the export may
// appear twice or not at all. To export each message exactly once, pause the queue and stop its workers.
func (e *Export) Records(ctx context.Context) iter.Seq2[Record, error] {
	return view.Sequence(func(give func(Record) error) error {
		e.LeftOut = 0
		if err := e.records(ctx, give); err != nil {
			return fmt.Errorf("export %s: %w", e.queue, err)
		}
		return nil
	})
}

func (e *Export) records(ctx context.Context, give func(Record) error) error {
	counts, err := stream.Partitions(ctx, e.c, e.prefix, e.queue)
	if err != nil {
		return err
	}
	plans := recurrencePlans{}
	if slices.Contains(e.kinds, RecordRecurrence) {
		if plans, err = e.readPlans(ctx); err != nil {
			return err
		}
	}
	giveMessage := func(r Record) error {
		plans.noteOccurrence(r)
		return give(r)
	}
	for _, one := range []struct {
		kind RecordKind
		read func(context.Context, lua.Keys, func(Record) error) error
	}{{RecordReady, e.ready}, {RecordScheduled, e.scheduled}} {
		for _, name := range counts.Names(e.queue) {
			if !slices.Contains(e.kinds, one.kind) {
				continue
			}
			if err := one.read(ctx, lua.NewKeys(e.prefix, name), giveMessage); err != nil {
				return err
			}
		}
	}
	if slices.Contains(e.kinds, RecordDead) {
		for found, err := range deadletter.New(e.c, e.prefix).Stored(ctx, e.queue, deadletter.Filter{}) {
			if err == nil {
				err = give(deadRecord(found.Partition, found.Entry.ID, found.Entry.FieldValues))
			}
			if err != nil {
				return err
			}
		}
	}
	// Recurrences come after their messages, so that the planner at the target finds these messages.
	if slices.Contains(e.kinds, RecordRecurrence) {
		return e.recurrences(ctx, plans, give)
	}
	return nil
}

func (e *Export) scheduled(ctx context.Context, k lua.Keys, give func(Record) error) error {
	for last := (lua.Exported{}); ; {
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
		page, err := lua.Export(call, e.c, k, last, exportMembers, exportBytes)
		cancel()
		if err != nil || len(page) == 0 {
			return err
		}
		for _, found := range page {
			if err := give(scheduledRecord(found)); err != nil {
				return err
			}
		}
		last = page[len(page)-1]
		last.Payload, last.Meta = nil, "" // the next page only needs the score and the member, so free the rest
	}
}

// ready yields, for each group of one stream, the entries that the group has not been given or still holds. If the
// stream has no group, it yields all entries.
//
//  1. Read up to which entry the group was given entries.
//  2. Read the later entries from the stream, and the others from the pending list. An entry that is delivered after
//     the first read still comes from the stream, so it is not missed.
func (e *Export) ready(ctx context.Context, k lua.Keys, give func(Record) error) error {
	info, err := view.ReadStream(ctx, e.c, k.Stream)
	if err != nil {
		return err
	}
	if len(info.Groups) == 0 {
		info.Groups = []view.GroupInfo{{}}
	}
	for _, g := range info.Groups {
		for found, err := range view.Walk(ctx, e.c, k.Stream, "("+g.Last.String(), "+", false) {
			if err == nil {
				err = e.owed(found, g.Name, give)
			}
			if err != nil {
				return err
			}
		}
		if g.Name == "" { // without a group no entry is pending
			return nil
		}
		if err := e.held(ctx, k.Stream, g, give); err != nil {
			return err
		}
	}
	return nil
}

// owed yields an entry as a record for a group, unless the entry is for another group or could not be delivered.
func (e *Export) owed(found rueidis.XRangeSlice, group string, give func(Record) error) error {
	for _, f := range found.FieldValues {
		isForOther := f.Field == lua.FieldFor && f.Value != "" && f.Value != group
		if isForOther && group != "" {
			return nil
		}
	}
	r, ok := readyRecord(found.ID, found.FieldValues, group)
	if !ok {
		e.LeftOut++
		return nil
	}
	return give(r)
}

// held yields the pending entries of a group, up to g.Last, the last entry that the group had been given. It leaves out
// messages that were cancelled while a consumer held them: nobody may get them again.
func (e *Export) held(ctx context.Context, key string, g view.GroupInfo, give func(Record) error) error {
	size := view.NewPager()
	for from := "-"; ; {
		page, err := view.ReadPending(ctx, e.c, key, g.Name, view.PendingRange{From: from, To: g.Last.String(),
			Count: size.Count})
		if err != nil {
			return err
		}
		var ids []string
		for _, p := range page {
			if !p.Cancelled {
				ids = append(ids, p.ID.String())
			}
		}
		entries, bytes, err := view.ReadEach(ctx, e.c, key, ids)
		if err != nil {
			return err
		}
		for _, found := range entries {
			if found.ID == "" {
				e.LeftOut++
			} else if err := e.owed(found, g.Name, give); err != nil {
				return err
			}
		}
		if len(page) < size.Count {
			return nil
		}
		size.Seen(len(page), bytes)
		from = "(" + page[len(page)-1].ID.String()
	}
}
