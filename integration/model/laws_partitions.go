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

// Partitioned is a queue with partitions, each of which is a Queue. Clients and operators know IDs and keys, and not in
// which partition a message is (protocol.md, section 16).
type Partitioned struct {
	Counts lua.Counts // every partition count that the queue has ever had
	Parts  []*Queue
}

// of returns the partition of a message, which follows from its key, or from its ID if it has no key.
func (w *Partitioned) of(id, key string) int { return w.Counts.Of(cmp.Or(key, id)) }

// holding returns the partitions in which an ID is scheduled for its first delivery.
func (w *Partitioned) holding(id string) (in []int) {
	for i, q := range w.Parts {
		if _, ok := q.Scheduled[id]; ok {
			in = append(in, i)
		}
	}
	return in
}

// window returns when the last dedup window of an ID ends, and 0 if none is open.
func (w *Partitioned) window(id string) (end int64) {
	for _, q := range w.Parts {
		if q.Windows[id] > q.Now {
			end = max(end, q.Windows[id])
		}
	}
	return end
}

// Schedule schedules a message. An ID is unique in its queue, in whichever partition its message is.
func (w *Partitioned) Schedule(item lua.Item, key string) lua.Verdict {
	target, now := w.of(item.ID, key), w.Parts[0].Now
	in, replaces := w.holding(item.ID), false
	switch due := when(item.When, now); item.Dedup {
	case lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier:
		replaces = len(in) > 0
		for _, i := range in {
			old := int64(ownDue(w.Parts[i].Scheduled[item.ID].Due))
			if item.Dedup == lua.ReplaceLater && due <= old || item.Dedup == lua.ReplaceEarlier && due >= old {
				return lua.Duplicate
			}
		}
	}
	if !replaces && (len(in) > 0 || w.window(item.ID) > 0) {
		return lua.Duplicate
	}
	// A message without a key replaces the old message in its partition. A message with a key goes to the partition
	// of the key.
	if replaces && key == "" && !slices.Contains(in, target) {
		target = in[0]
	}
	end := w.window(item.ID)
	verdict := w.Parts[target].Enqueue(lua.Token{}, []lua.Item{item})[0].Verdict
	for _, i := range in {
		if i != target {
			w.Parts[i].Cancel([]string{item.ID}) // the window that began with the old message continues for the new one
			w.Parts[target].Windows[item.ID], verdict = end, lua.Replaced
		}
	}
	if w.Parts[target].Windows[item.ID] == 0 {
		delete(w.Parts[target].Windows, item.ID)
	}
	return verdict
}

// Cancel removes a scheduled message, in whichever partition it is.
func (w *Partitioned) Cancel(id string) (cancelled bool) {
	for _, q := range w.Parts {
		cancelled = q.Cancel([]string{id})[0] || cancelled
	}
	return cancelled
}

// Reschedule changes the due time of a scheduled message, in whichever partition it is.
func (w *Partitioned) Reschedule(id string, to lua.When) (moved bool) {
	for _, q := range w.Parts {
		_, one := q.Reschedule(id, to)
		moved = one || moved
	}
	return moved
}

// CancelRetries removes the scheduled retries of a message in all partitions. For all groups (""), it also removes a
// message that waits for its first delivery.
func (w *Partitioned) CancelRetries(id, group string) (cancelled bool) {
	cancelled = group == "" && w.Cancel(id)
	for _, q := range w.Parts {
		cancelled = len(q.CancelRetries(id, group)) > 0 || cancelled
	}
	return cancelled
}

// RescheduleRetries changes the due time of the messages that CancelRetries would remove.
func (w *Partitioned) RescheduleRetries(id, group string, to lua.When) (moved bool) {
	moved = group == "" && w.Reschedule(id, to)
	for _, q := range w.Parts {
		moved = len(q.RescheduleRetries(id, group, to)) > 0 || moved
	}
	return moved
}

// Meant returns, for each partition, the members that a bulk change of IDs with a prefix selects: all first deliveries,
// and messages that were redriven for all groups. With retries, it also selects messages that wait for one group.
func (w *Partitioned) Meant(prefix string, retries bool) [][]string {
	selected := make([][]string, len(w.Parts))
	for i, q := range w.Parts {
		for _, member := range q.Order() {
			m := lua.ParseMember(member)
			if strings.HasPrefix(m.ID, prefix) && (retries || m.Kind == lua.MemberFirst || m.Group == "") {
				selected[i] = append(selected[i], member)
			}
		}
	}
	return selected
}

// Grow adds partitions that have the same groups and settings. Without despiteKeys, a queue that holds messages with
// a key does not grow.
func (w *Partitioned) Grow(n int, despiteKeys bool) (grown bool) {
	for _, q := range w.Parts {
		for _, m := range q.Scheduled {
			if !despiteKeys && m.key() != "" {
				return false
			}
		}
		if !despiteKeys && len(q.Turns) > 0 {
			return false
		}
	}
	for len(w.Parts) < n {
		q := newQueue()
		q.Now, q.Held, q.Skip = w.Parts[0].Now, w.Parts[0].Held, w.Parts[0].Skip
		for group := range w.Parts[0].Groups {
			q.EnsureGroup(group)
		}
		w.Parts = append(w.Parts, q)
	}
	w.Counts = w.Counts.With(n)
	return true
}

// Redrive schedules a dead letter again. A letter with a key goes to the partition that its key belongs to now, any
// other stays in its partition.
func (w *Partitioned) Redrive(partition int, letter string) lua.Redriven {
	q := w.Parts[partition]
	at := slices.IndexFunc(q.Dead, func(e Entry) bool { return e.ID == letter })
	if at < 0 {
		return lua.RedriveGone
	}
	to := q
	if key := q.Dead[at].key(); key != "" {
		to = w.Parts[w.Counts.Of(key)]
	}
	if to != q {
		to.Dead = append(to.Dead, q.Dead[at])
	}
	outcome := to.Redrive([]lua.Redrive{{Letter: letter, When: lua.After(0)}})[0]
	if to != q && outcome == lua.RedriveScheduled {
		q.Dead = slices.Delete(q.Dead, at, at+1)
	} else if to != q {
		to.Dead = to.Dead[:len(to.Dead)-1]
	}
	return outcome
}

// Places returns where a message is, as an operator sees it: the partition, the state, the groups and the attempt.
func (w *Partitioned) Places(id string) (places []string) {
	for i, q := range w.Parts {
		for member, m := range q.Scheduled {
			name := lua.ParseMember(member)
			if m.Broken == "" && m.Meta[lua.FieldID] != id || m.Broken != "" && name.ID != id {
				continue
			}
			state := "scheduled"
			if name.Group != "" {
				state = "retrying for " + name.Group
			}
			places = append(places, fmt.Sprintf("%d %s, attempt %s, key %q, waits %v", i, state, cmp.Or(m.Meta[lua.FieldAttempt],
				"1"), m.key(), isParked(m.Due)))
		}
		for _, e := range q.Stream {
			if e.messageID() != id {
				continue
			}
			for name, g := range q.Groups {
				p, pending := g.Pending[e.ID]
				state := ""
				switch {
				case !isFor(e.Fields[lua.FieldFor], name): // the group skips it
					continue
				case pending:
					state = "pending with " + p.Consumer + " of " + name
				case less(g.Last, e.ID):
					state = "ready for " + name
				default:
					continue
				}
				places = append(places, fmt.Sprintf("%d %s, attempt %s, key %q, waits false", i, state,
					e.Fields[lua.FieldAttempt], e.key()))
			}
		}
		for _, letter := range q.Dead {
			if letter.Fields[lua.FieldID] == id {
				places = append(places, fmt.Sprintf("%d dead of %s, attempt %s, key %q, waits false", i,
					letter.Fields[lua.FieldGroup], letter.Fields[lua.FieldAttempt], letter.key()))
			}
		}
	}
	slices.Sort(places)
	return places
}

// CancelRunning cancels a message in any state, for one group or for all groups (""). holders is the number of workers
// that hold the message and hear of the cancel.
func (w *Partitioned) CancelRunning(id, group string) (verdict string, holders int) {
	found, unread := false, false
	for _, q := range w.Parts {
		for _, one := range q.CancelEntries(id, group) {
			found = true
			unread = unread || one.Verdict == lua.EntryUnread
			if one.Verdict == lua.EntryCancelling {
				holders++
			}
		}
	}
	found = w.CancelRetries(id, group) || found
	for _, q := range w.Parts { // a message that waits for its first delivery is for all groups
		_, waits := q.Scheduled[id]
		unread = unread || waits && group != ""
	}
	switch {
	case unread:
		return "unread", holders
	case holders > 0:
		return "cancelling", holders
	case found:
		return "cancelled", 0
	}
	return "not found", 0
}

// Pull gives a group at most count entries that the group was not given before, from all partitions, and acknowledges
// entries for other groups. The model reads each partition as far as the server did (told). It checks that the server
// gave count entries, or all that there were.
func (w *Partitioned) Pull(group string, count int, told []*Queue) (given []string) {
	more := false
	for i, q := range w.Parts {
		last := told[i].Groups[group].Last
		var foreign []lua.Held
		for _, e := range slices.Clone(q.Stream) {
			if !less(q.Groups[group].Last, e.ID) {
				continue
			}
			if less(last, e.ID) {
				more = true
				continue
			}
			q.Read(group, "pull", 1)
			if isFor(e.Fields[lua.FieldFor], group) {
				given = append(given, fmt.Sprintf("%d %s %s", i, e.ID, e.messageID()))
			} else {
				foreign = append(foreign, lua.Held{Entry: e.ID, Key: e.key()})
			}
		}
		q.Ack(group, foreign)
	}
	if len(given) > count || more && len(given) < count {
		return append(given, "too many, or there are more") // no answer of the server has this text, so the step fails
	}
	slices.Sort(given)
	return given
}

// Export and import.

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
func (w *Partitioned) Export() (records []Record) {
	for _, q := range w.Parts {
		for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
			g := q.Groups[name]
			for _, e := range q.Stream {
				p, pending := g.Pending[e.ID]
				if !g.needs(e.ID) || !isFor(e.Fields[lua.FieldFor], name) || pending && p.cancelled() {
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
			records = append(records, Record{Member: member, Due: int64(ownDue(m.Due)), Fields: f})
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
func (w *Partitioned) place(r Record) int {
	if r.Fields[lua.FieldOverlap] == "skip" && !r.Dead {
		return 0
	}
	return w.of(r.Fields[lua.FieldID], r.Fields[lua.FieldKey])
}

// inSchedule returns the member of a record in the schedule. Of the ready messages that no other occurrence may
// overlap, the first one of an ID and group gets the member by which the planner finds it (see overlapEntry). The
// others keep theirs. names has the members that are already taken.
func (r Record) inSchedule(names map[string]bool) string {
	m := lua.ParseMember(r.Member)
	if m.Kind != lua.MemberImported || r.Fields[lua.FieldOverlap] != "skip" {
		return r.Member
	}
	m.Of = overlapEntry
	if names[m.String()] {
		return r.Member
	}
	names[m.String()] = true
	return m.String()
}

// Import writes the records in order into a queue that holds nothing.
func (w *Partitioned) Import(records []Record, window lua.Dedup) {
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
		items[i] = append(items[i], lua.Item{
			ID:      r.inSchedule(names),
			When:    lua.When(decimal(r.Due)),
			Payload: []byte(payload),
			Meta:    lua.EncodeMeta(nil, 0, time.Time{}, more...),
			Dedup:   cmp.Or(window, lua.Refuse),
		})
	}
	for i, some := range items {
		w.Parts[i].Enqueue(lua.Token{}, some)
	}
}
