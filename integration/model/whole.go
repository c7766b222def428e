package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// Whole is a queue with partitions, each of which is a Queue. It models what clients and operators see: they know IDs
// and keys, and not in which partition a message is (protocol.md, section 16).
type Whole struct {
	Counts lua.Counts // every partition count that the queue has ever had
	Parts  []*Queue
}

// of returns the partition of a message, which follows from its key, or from its ID if it has no key.
func (w *Whole) of(id, key string) int { return w.Counts.Of(cmp.Or(key, id)) }

// holding returns the partitions in which an ID is scheduled for its first delivery.
func (w *Whole) holding(id string) (in []int) {
	for i, q := range w.Parts {
		if _, ok := q.Scheduled[id]; ok {
			in = append(in, i)
		}
	}
	return in
}

// window returns when the last dedup window of an ID ends, and 0 if none is open.
func (w *Whole) window(id string) (end int64) {
	for _, q := range w.Parts {
		if q.Windows[id] > q.Now {
			end = max(end, q.Windows[id])
		}
	}
	return end
}

// Schedule schedules a message. An ID is unique in its queue, in whichever partition its message is.
func (w *Whole) Schedule(item lua.Item, key string) lua.Verdict {
	target, now := w.of(item.ID, key), w.Parts[0].Now
	in, replaces := w.holding(item.ID), false
	switch due := when(item.When, now); item.Dedup {
	case lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier:
		replaces = len(in) > 0
		for _, i := range in {
			old := int64(unparked(w.Parts[i].Scheduled[item.ID].Due))
			if item.Dedup == lua.ReplaceLater && due <= old || item.Dedup == lua.ReplaceEarlier && due >= old {
				return lua.Duplicate
			}
		}
	}
	if !replaces && (len(in) > 0 || w.window(item.ID) > 0) {
		return lua.Duplicate
	}
	// A message without a key replaces the old one where that is. One with a key goes to the partition of its key.
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
func (w *Whole) Cancel(id string) (cancelled bool) {
	for _, q := range w.Parts {
		cancelled = q.Cancel([]string{id})[0] || cancelled
	}
	return cancelled
}

// Reschedule changes the due time of a scheduled message, in whichever partition it is.
func (w *Whole) Reschedule(id string, to lua.When) (moved bool) {
	for _, q := range w.Parts {
		_, one := q.Reschedule(id, to)
		moved = one || moved
	}
	return moved
}

// CancelRetries removes the scheduled retries of a message in all partitions. For all groups (""), it also removes a
// message that waits for its first delivery.
func (w *Whole) CancelRetries(id, group string) (cancelled bool) {
	cancelled = group == "" && w.Cancel(id)
	for _, q := range w.Parts {
		cancelled = len(q.CancelRetries(id, group)) > 0 || cancelled
	}
	return cancelled
}

// RescheduleRetries changes the due time of the same messages.
func (w *Whole) RescheduleRetries(id, group string, to lua.When) (moved bool) {
	moved = group == "" && w.Reschedule(id, to)
	for _, q := range w.Parts {
		moved = len(q.RescheduleRetries(id, group, to)) > 0 || moved
	}
	return moved
}

// Meant returns, for each partition, the members that a bulk change of IDs with a prefix is about: all first
// deliveries, and messages that were redriven for all groups. With retries, it also includes messages that wait for
// one group.
func (w *Whole) Meant(prefix string, retries bool) [][]string {
	meant := make([][]string, len(w.Parts))
	for i, q := range w.Parts {
		for _, member := range q.Order() {
			m := lua.ParseMember(member)
			if strings.HasPrefix(m.ID, prefix) && (retries || m.Kind == lua.MemberFirst || m.Group == "") {
				meant[i] = append(meant[i], member)
			}
		}
	}
	return meant
}

// Grow adds partitions that have the same groups and settings. Without despiteKeys, a queue that holds messages with
// a key does not grow.
func (w *Whole) Grow(n int, despiteKeys bool) (grown bool) {
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
func (w *Whole) Redrive(partition int, letter string) lua.Redriven {
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
func (w *Whole) Places(id string) (places []string) {
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
				case !meant(e.Fields[lua.FieldFor], name): // the group skips it
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

// CancelRunning cancels a message in any state, for one group or for all groups (""). holders is how many workers
// hear of it.
func (w *Whole) CancelRunning(id, group string) (verdict string, holders int) {
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

// Pull gives a group at most count entries that it was not given before, from all partitions, and acknowledges
// entries for other groups. How far it read in each partition is taken from the server's state (told). It must stop
// when it has enough, or when there are no more.
func (w *Whole) Pull(group string, count int, told []*Queue) (given []string) {
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
			if meant(e.Fields[lua.FieldFor], group) {
				given = append(given, fmt.Sprintf("%d %s %s", i, e.ID, e.messageID()))
			} else {
				foreign = append(foreign, lua.Held{Entry: e.ID, Key: e.key()})
			}
		}
		q.Ack(group, foreign)
	}
	if len(given) > count || more && len(given) < count {
		return append(given, "too many, or there are more")
	}
	slices.Sort(given)
	return given
}
