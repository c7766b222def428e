package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// Import writes records into a queue, each with its own result. A record goes to the partition of its ordering key, or
// of its ID if it has no key. It is not safe for concurrent use.
type Import struct {
	c                     rueidis.Client
	prefix, queue, source string
	window                time.Duration
	counts                lua.Counts
	groups                map[string]bool   // groups that exist or that the import created
	made                  []string          // groups that the import created
	recurrences           map[string]bool   // names of recurrences whose occurrences go to partition 0
	levels                *lua.Levels       // protocol levels of the live bridges; nil: they are not checked
	entries               map[string]string // by member that does not name its entry: the entry
}

// NewImport registers the queue, and returns an Import into it. source names the origin of the records: dead letters
// with the same name are the same only if they come from one source. window is how long each message is remembered, so
// that it is not imported a second time after it became ready. If window is zero, messages are only compared with
// scheduled messages, and dead letters with existing dead letters. ErrInvalid is returned before Redis is touched.
func NewImport(
	ctx context.Context, c rueidis.Client, prefix, queue, source string, window time.Duration,
) (*Import, error) {
	err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckDelay("window", window))
	if err != nil {
		return nil, err
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err == nil {
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, err = lua.RegisterCounts(call, c, lua.NewGlobals(prefix), map[string]lua.Counts{queue: counts})
	}
	if err != nil {
		return nil, fmt.Errorf("import into %s: %w", queue, err)
	}
	return &Import{c: c, prefix: prefix, queue: queue, source: source, window: window, counts: counts,
		levels: lua.NewLevels(c, prefix), groups: map[string]bool{}, entries: map[string]string{}}, nil
}

// AllowOldBridges accepts messages with an ordering key, and recurrences, although a live bridge may not serve them.
// Without it they are refused with lua.ErrOldBridge.
func (im *Import) AllowOldBridges() { im.levels = nil }

// Groups creates missing groups, so that they get messages that become ready from now on.
func (im *Import) Groups(ctx context.Context, groups []string) error {
	for _, group := range groups {
		if err := im.group(ctx, group); err != nil {
			return fmt.Errorf("import into %s: %w", im.queue, err)
		}
	}
	return nil
}

// Recurrences names recurrences whose scheduled occurrences go to partition 0. An occurrence is a scheduled message
// with the ID of an occurrence, and without an ordering key. In partition 0 it is found when its recurrence is changed
// or removed; otherwise it would go to the partition of its ID. See Export.Recurrences. Call Recurrences before Write.
func (im *Import) Recurrences(names []string) {
	im.recurrences = map[string]bool{}
	for _, name := range names {
		im.recurrences[name] = true
	}
}

// GroupsMade returns the groups that were created, by Groups or for a record that is for them alone.
func (im *Import) GroupsMade() []string { return im.made }

// ErrKnown: the record is in the queue already, or was taken within the window.
var ErrKnown = errors.New("it is there already, or was taken before")

// Write writes a batch of records, and returns for each record nil, ErrKnown, ErrInvalid, or the error of its call.
// After the error of a call the record may have been written, and may be written again without harm. Messages keep
// their due time and attempt. A ready message is scheduled for its group alone; the group is created if it does not
// exist. If the queue grew since the last batch, Write uses the new partition count. The batch should be about 1 MiB.
func (im *Import) Write(ctx context.Context, records []Record) []error {
	results := make([]error, len(records))
	if err := im.readCounts(ctx); err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	messages, letters := map[int][]int{}, map[int][]int{} // by partition: indices in records
	var candidates []int                                  // indices in records
	for i, r := range records {
		if results[i] = r.Check(); results[i] != nil {
			continue
		}
		if r.key() != "" {
			if results[i] = im.levels.Allow(ctx, lua.LevelKeys, "messages with a key"); results[i] != nil {
				continue
			}
		}
		if r.Kind == RecordRecurrence {
			continue // recur writes it, after the scheduled records
		}
		if r.Kind == RecordDead {
			candidates = append(candidates, i)
		} else if results[i] = im.group(ctx, r.For); results[i] == nil {
			candidates = append(candidates, i)
		}
	}
	if err := im.findElsewhere(ctx, records, candidates, results); err != nil {
		for _, i := range candidates {
			results[i] = err
		}
	}
	first := map[string]int{} // by the result of firstMember: the index of the first record with it
	var repeated []int        // indices of later records with the same member, for other partitions
	for _, i := range candidates {
		if results[i] != nil {
			continue
		}
		partition := im.partition(records[i])
		if records[i].Kind == RecordDead {
			letters[partition] = append(letters[partition], i)
			continue
		}
		if member, isFirst := records[i].firstMember(); isFirst {
			if earlier, known := first[member]; known && im.partition(records[earlier]) != partition {
				repeated = append(repeated, i)
				continue
			}
			first[member] = i
		}
		messages[partition] = append(messages[partition], i)
	}
	for _, partition := range slices.Sorted(maps.Keys(messages)) {
		im.schedule(ctx, partition, records, messages[partition], results)
	}
	for _, partition := range slices.Sorted(maps.Keys(letters)) {
		im.restore(ctx, partition, records, letters[partition], results)
	}
	im.recur(ctx, records, results)
	im.writeRepeated(ctx, records, first, repeated, results)
	return results
}

// writeRepeated handles records with the same member as an earlier record of the batch that went to another partition.
// It writes such a record only if the earlier record was refused; otherwise the result is ErrKnown.
func (im *Import) writeRepeated(
	ctx context.Context, records []Record, first map[string]int, repeated []int, results []error,
) {
	var rest []Record
	var indexes []int // for each record of rest, its index in records
	for _, i := range repeated {
		member, _ := records[i].firstMember()
		if err := results[first[member]]; err == nil || errors.Is(err, ErrKnown) {
			results[i] = ErrKnown
			continue
		}
		rest, indexes = append(rest, records[i]), append(indexes, i)
	}
	if len(rest) == 0 {
		return
	}
	for n, err := range im.Write(ctx, rest) {
		results[indexes[n]] = err
	}
}

// readCounts reads the partition counts again, because the queue may have grown since the last batch.
func (im *Import) readCounts(ctx context.Context) error {
	counts, err := view.ReadCounts(ctx, im.c, im.prefix, im.queue)
	if err != nil {
		return fmt.Errorf("import into %s: %w", im.queue, err)
	}
	im.counts = im.counts.With(counts...)
	return nil
}

// recur restores recurrences. It replaces none.
func (im *Import) recur(ctx context.Context, records []Record, results []error) {
	for i, r := range records {
		if r.Kind != RecordRecurrence || results[i] != nil {
			continue
		}
		results[i] = im.restoreRecurrence(ctx, r)
	}
}

// restoreRecurrence restores one recurrence, unless the queue has one of its name.
func (im *Import) restoreRecurrence(ctx context.Context, r Record) error {
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	done := false
	err := im.levels.Allow(call, lua.LevelRecurrences, "recurrences")
	if err == nil {
		done, err = lua.RestoreRecurrence(call, im.c, im.keys(0), r.ID, string(r.Payload), r.Plan)
	}
	switch {
	case err != nil:
		return fmt.Errorf("import into %s: recurrence %s: %w", im.queue, r.ID, err)
	case !done:
		return ErrKnown
	}
	return nil
}

// partition returns the target partition of a record. A message with overlap skip goes to partition 0, the partition of
// its recurrence, where a bridge looks for the message before it plans the next. A scheduled occurrence goes there,
// too, because a change of its recurrence takes the occurrence back from there.
func (im *Import) partition(r Record) int {
	if r.overlap() {
		return 0
	}
	if im.isOccurrence(r) {
		return 0
	}
	return im.counts.Of(r.place())
}

// overlap reports whether the record is a message of a recurrence with overlap skip.
func (r Record) overlap() bool {
	switch {
	case r.Kind == RecordDead:
		return false
	case r.Member != nil:
		e, ok := lua.DecodeMeta(string(r.Member), string(r.Meta))
		return ok && e.Extra[lua.FieldOverlap] == overlapSkip
	}
	return r.Extra[lua.FieldOverlap] == overlapSkip
}

const overlapSkip = "skip"

// member returns the member of a record in the target's schedule, and its meta. An entry with overlap skip gets a
// member by which its recurrence finds it. A second entry of the same message and group gets an ordinary one, so that
// both are written.
func (im *Import) member(r Record) (member, meta string) {
	member, meta = r.member()
	if r.Kind != RecordReady || r.Member != nil || !r.overlap() {
		return member, meta
	}
	overlapMember := lua.Member{Kind: lua.MemberImported, ID: r.ID, Group: r.For, Of: lua.OfOverlap}.String()
	if entry, taken := im.entries[overlapMember]; taken && entry != r.Entry {
		return member, meta
	}
	im.entries[overlapMember] = r.Entry
	return overlapMember, meta
}

// place returns the text that decides the partition: the key, or else the ID.
func (r Record) place() string {
	if r.Kind == RecordDead {
		return cmp.Or(r.key(), r.letterID())
	}
	return cmp.Or(r.key(), r.messageID())
}

// key returns the key of the message; "" if it has none.
func (r Record) key() string {
	switch {
	case r.Kind == RecordDead:
		return fieldMap(r.fields())[lua.FieldKey]
	case r.Member != nil:
		if e, ok := lua.DecodeMeta(string(r.Member), string(r.Meta)); ok {
			return e.Extra[lua.FieldKey]
		}
	}
	return r.Extra[lua.FieldKey]
}

// letterID returns the message ID of a dead letter.
func (r Record) letterID() string {
	for _, f := range r.fields() {
		if f.Field == lua.FieldID {
			return f.Value
		}
	}
	return r.ID
}

// group creates the group that a message is for, if it does not exist: all other groups would skip the message.
func (im *Import) group(ctx context.Context, group string) error {
	if group == "" || im.groups[group] {
		return nil
	}
	created, err := stream.EnsureGroup(ctx, im.c, im.prefix, im.queue, group)
	if err != nil {
		return err
	}
	if created {
		im.made = append(im.made, group)
	}
	im.groups[group] = true
	return nil
}

func (im *Import) keys(partition int) lua.Keys {
	return lua.NewKeys(im.prefix, lua.PartitionName(im.queue, partition)).As(lua.Actor(lua.ActorOperator))
}

func (im *Import) schedule(ctx context.Context, partition int, records []Record, indices []int, results []error) {
	items := make([]lua.Item, len(indices))
	for n, i := range indices {
		r := records[i]
		member, meta := im.member(r)
		items[n] = lua.Item{
			ID: member, When: lua.At(time.UnixMilli(r.Due)), Payload: r.Payload, Meta: meta, Dedup: lua.Refuse,
		}
		if im.window > 0 {
			items[n].Dedup = lua.Window(im.window)
		}
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	receipts, err := lua.Enqueue(call, im.c, im.keys(partition), lua.Token{Name: rand.Text(), Window: time.Minute},
		items, lua.Durability{})
	for n, i := range indices {
		switch {
		case err != nil:
			results[i] = fmt.Errorf("import into %s: %w", im.queue, err)
		case receipts[n].Verdict == lua.Duplicate:
			results[i] = ErrKnown
		case receipts[n].Verdict == lua.Malformed:
			results[i] = lua.Invalid("meta", items[n].Meta, "is malformed, and the message is due")
		}
	}
}

func (im *Import) restore(ctx context.Context, partition int, records []Record, indices []int, results []error) {
	letters := make([]lua.Restore, len(indices))
	for n, i := range indices {
		r := records[i]
		_, entry, _ := deadletter.SplitLetter(r.Letter)
		letters[n] = lua.Restore{Name: im.letterName(r), Entry: entry, Fields: r.fields()}
	}
	call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	outcomes, err := lua.RestoreDead(call, im.c, im.keys(partition), im.window, letters)
	for n, i := range indices {
		switch {
		case err != nil:
			results[i] = fmt.Errorf("import into %s: %w", im.queue, err)
		case outcomes[n] == lua.RestoreKnown:
			results[i] = ErrKnown
		case outcomes[n] == lua.RestoreMalformed:
			results[i] = lua.Invalid("letter", records[i].Letter, "has no fields, or too many")
		}
	}
}
