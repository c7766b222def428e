package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// Record is what an export contains about a message and an import writes: where it waits, for which group, and its
// fields. A ready message is imported as a scheduled one, for its group only.
type Record struct {
	Dead   bool
	Member string // the scheduled member, or the name of a dead letter
	Due    int64
	Fields fields
}

// line returns a record as text. It contains the meta and the payload of a message as fields.
func (r Record) line() string {
	kind := "message"
	if r.Dead {
		kind = "letter"
	}
	return fmt.Sprintf("%s %q at %d: %s", kind, r.Member, r.Due, show(r.Fields))
}

// Export returns everything that a queue holds: the entries that each group has not acknowledged, the scheduled
// messages, and the dead letters.
func (w *Whole) Export() (records []Record) {
	for _, q := range w.Parts {
		for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
			g := q.Groups[name]
			for _, e := range q.Stream {
				p, pending := g.Pending[e.ID]
				if !g.needs(e.ID) || !meant(e.Fields[lua.FieldFor], name) || pending && p.cancelled() {
					continue
				}
				f := maps.Clone(e.Fields)
				f[lua.FieldFor] = name
				due := atoi(f[lua.FieldDue])
				delete(f, lua.FieldDue)
				member := lua.Member{Kind: lua.MemberImported, ID: e.messageID(), Group: name, Of: e.ID}
				records = append(records, Record{Member: member.String(), Due: due, Fields: f})
			}
		}
		for _, member := range q.Order() {
			m := q.Scheduled[member]
			f := m.fields()
			delete(f, lua.FieldDue)
			records = append(records, Record{Member: member, Due: int64(unparked(m.Due)), Fields: f})
		}
	}
	for i, q := range w.Parts {
		for _, letter := range q.Dead {
			name := letter.ID
			if i > 0 {
				name = fmt.Sprintf("%d/%s", i, letter.ID)
			}
			records = append(records, Record{Dead: true, Member: name, Fields: letter.Fields})
		}
	}
	return records
}

// linesOf returns the records as sorted lines, because their order does not matter.
func linesOf(records []Record) (lines []string) {
	for _, r := range records {
		lines = append(lines, r.line())
	}
	slices.Sort(lines)
	return lines
}

// place returns the partition for a record, which follows from its key, or from its ID if it has no key. It is the
// first partition for a message that no other occurrence may overlap.
func (w *Whole) place(r Record) int {
	if r.Fields[lua.FieldOverlap] == "skip" && !r.Dead {
		return 0
	}
	return w.of(r.Fields[lua.FieldID], r.Fields[lua.FieldKey])
}

// inSchedule returns the name of a record in the schedule. names has the names that are already taken.
func (r Record) inSchedule(names map[string]bool) string {
	m := lua.ParseMember(r.Member)
	if m.Kind != lua.MemberImported || r.Fields[lua.FieldOverlap] != "skip" {
		return r.Member
	}
	m.Of = "0-0" // the one name by which overlap can be checked
	if names[m.String()] {
		return r.Member
	}
	names[m.String()] = true
	return m.String()
}

// Import writes the records in order into a queue that holds nothing.
func (w *Whole) Import(records []Record, window lua.Dedup) {
	items, names := map[int][]lua.Item{}, map[string]bool{}
	for _, r := range records {
		i := w.place(r)
		q := w.Parts[i]
		if r.Dead {
			q.Dead = append(q.Dead, Entry{next(&q.NewLetters), r.Fields})
			continue
		}
		meta := maps.Clone(r.Fields)
		payload := meta[lua.FieldPayload]
		delete(meta, lua.FieldPayload)
		if !strings.Contains(r.Member, lua.Separator) && meta[lua.FieldAttempt] == "1" {
			delete(meta, lua.FieldAttempt) // a first delivery does not store its attempt
		}
		var more []lua.FieldValue
		for name, value := range meta {
			more = append(more, lua.FieldValue{Field: name, Value: value})
		}
		items[i] = append(items[i], lua.Item{ID: r.inSchedule(names), When: lua.When(decimal(r.Due)), Payload: []byte(payload),
			Meta: lua.EncodeMeta(nil, 0, time.Time{}, more...), Dedup: cmp.Or(window, lua.Refuse)})
	}
	for i, some := range items {
		w.Parts[i].Enqueue(lua.Token{}, some)
	}
}
