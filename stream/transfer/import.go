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
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// Import writes records into a queue, each into the partition of its key, or else of its ID. It is not for concurrent use.
type Import struct {
	c                     rueidis.Client
	prefix, queue, source string
	window                time.Duration
	counts                lua.Counts
	groups                map[string]bool // that exist, or were created
	made                  []string
	recurrences           map[string]bool   // whose occurrences go to partition 0
	levels                *lua.Levels       // of the living bridges; nil = whatever they are
	entries               map[string]string // member that stands for no entry → the entry that has it
}

// NewImport registers the queue, and returns what writes into it. Source names where the records come from: dead letters of one
// name are the same only when they come from one source. Window is how long each message is remembered, so that it is not taken
// a second time when it has become ready; zero compares messages with what is scheduled, and dead letters with those that are
// there. ErrInvalid is returned before Redis is touched.
func NewImport(ctx context.Context, c rueidis.Client, prefix, queue, source string, window time.Duration) (*Import, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckDelay("window", window)); err != nil {
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

// AllowOldBridges has messages with a key, and recurrences, taken although a living bridge may not serve them. Without
// it they are refused with lua.ErrOldBridge.
func (im *Import) AllowOldBridges() { im.levels = nil }

// Groups creates groups that do not exist, so that they get what becomes ready from now on.
func (im *Import) Groups(ctx context.Context, groups []string) error {
	for _, group := range groups {
		if err := im.group(ctx, group); err != nil {
			return fmt.Errorf("import into %s: %w", im.queue, err)
		}
	}
	return nil
}

// Recurrences has scheduled messages that have the ID of an occurrence of one of these recurrences, and no key, written into
// partition 0: there it is looked for when its recurrence is changed or removed. Without it, or under another name, it
// goes to the partition of its ID. See Export.Recurrences. It is called before Write.
func (im *Import) Recurrences(names []string) {
	im.recurrences = map[string]bool{}
	for _, name := range names {
		im.recurrences[name] = true
	}
}

// GroupsMade returns the groups that did not exist, and were created by Groups, or because a record is for them alone.
func (im *Import) GroupsMade() []string { return im.made }

// ErrKnown: a record is in the queue already, or was taken within the window.
var ErrKnown = errors.New("it is there already, or was taken before")

// Write writes a batch of records, and returns for each nil, ErrKnown, ErrInvalid, or the error of its call: then it may have
// been written, and is safe to write again. Messages keep their due time and attempt; a ready one is scheduled for its group
// alone, which is created if it does not exist. The batch should be about 1 MiB.
func (im *Import) Write(ctx context.Context, records []Record) []error {
	results := make([]error, len(records))
	messages, letters := map[int][]int{}, map[int][]int{} // partition → indices
	var candidates []int
	for i, r := range records {
		if results[i] = r.Check(); results[i] != nil {
			continue
		}
		if r.Extra[lua.FieldKey] != "" {
			if results[i] = im.levels.Allow(ctx, lua.LevelKeys, "messages with a key"); results[i] != nil {
				continue
			}
		}
		if r.Kind == RecordRecurrence {
			continue // behind what is scheduled
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
	for _, i := range candidates {
		partition := im.partition(records[i])
		switch {
		case results[i] != nil:
		case records[i].Kind == RecordDead:
			letters[partition] = append(letters[partition], i)
		default:
			messages[partition] = append(messages[partition], i)
		}
	}
	for _, partition := range slices.Sorted(maps.Keys(messages)) {
		im.schedule(ctx, partition, records, messages[partition], results)
	}
	for _, partition := range slices.Sorted(maps.Keys(letters)) {
		im.restore(ctx, partition, records, letters[partition], results)
	}
	im.recur(ctx, records, results)
	return results
}

// recur writes recurrences as they were, none in the place of another one.
func (im *Import) recur(ctx context.Context, records []Record, results []error) {
	p := planner.New(im.c, im.prefix, "", nil)
	if im.levels == nil {
		p = p.AllowOldBridges()
	}
	for i, r := range records {
		if r.Kind != RecordRecurrence || results[i] != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
		done, err := p.Restore(call, im.queue, r.ID, string(r.Payload), r.Plan)
		cancel()
		if err != nil {
			results[i] = fmt.Errorf("import into %s: %w", im.queue, err)
		} else if !done {
			results[i] = ErrKnown
		}
	}
}

// partition is the one that a record goes to. A message that no other occurrence may overlap goes where its recurrence
// is: there a bridge looks for it before it plans the next one. So does a scheduled occurrence: there it is taken back.
func (im *Import) partition(r Record) int {
	if r.overlap() {
		return 0
	}
	if im.isOccurrence(r) {
		return 0
	}
	return im.counts.Of(r.place())
}

// overlap reports whether the record is a message of a recurrence without overlap.
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

// member is what a record is called in the schedule of the target, and its meta. An entry of a message that no other
// occurrence may overlap has a name by which it is found, but for a second one of the same message and group: each is
// written.
func (im *Import) member(r Record) (member, meta string) {
	member, meta = r.member()
	if r.Kind != RecordReady || r.Member != nil || !r.overlap() {
		return member, meta
	}
	named := lua.Member{Kind: lua.MemberImported, ID: r.ID, Group: r.For, Of: lua.OfOverlap}.String()
	if entry, taken := im.entries[named]; taken && entry != r.Entry {
		return member, meta
	}
	im.entries[named] = r.Entry
	return named, meta
}

// place is what says which partition the message belongs to: its key, else its ID.
func (r Record) place() string {
	if r.Kind == RecordDead {
		return cmp.Or(r.key(), r.letterID())
	}
	return cmp.Or(r.key(), r.messageID())
}

// key is that of the message; "": it has none.
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

// letterID is the ID of the message of a dead letter.
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
		items[n] = lua.Item{ID: member, When: lua.At(time.UnixMilli(r.Due)), Payload: r.Payload, Meta: meta, Dedup: lua.Refuse}
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
