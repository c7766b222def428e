package model

import (
	"slices"

	"github.com/duestream/duestream/lua"
)

// cancelMark is added to the delivery count of a pending entry whose message was cancelled.
const cancelMark = 1_000_000_000_000

func (p Pending) cancelled() bool { return p.Deliveries >= cancelMark }

// CancelEntries removes ready entries, unless another group still needs them, and marks pending entries as cancelled.
// The group "" means all groups. The result is sorted by entry, then by group.
func (q *Queue) CancelEntries(id, group string) (found []lua.FoundEntry) {
	var held []turn
	for _, e := range slices.Clone(q.Stream) {
		to := e.Fields[lua.FieldFor]
		if e.Fields[lua.FieldID] != id || group != "" && !meant(to, group) {
			continue
		}
		unread, needed, holders := len(q.Groups) == 0 && group == "", false, 0
		for name, g := range q.Groups {
			_, pending := g.Pending[e.ID]
			if pending {
				holders++
			}
			asked := meant(to, name) && (group == "" || group == name)
			unread = unread || asked && less(g.Last, e.ID)
			needed = needed || meant(to, name) && !asked && g.needs(e.ID)
		}
		goes := unread && !needed
		for name, g := range q.Groups {
			p, pending := g.Pending[e.ID]
			asked := meant(to, name) && (group == "" || group == name)
			if !pending || !asked && !goes {
				continue
			}
			if !p.cancelled() {
				p.Deliveries += cancelMark
				g.Pending[e.ID] = p
			}
			if asked {
				found = append(found, lua.FoundEntry{ID: id, Group: name, Verdict: lua.EntryCancelling, Consumer: p.Consumer})
			}
		}
		switch {
		case goes:
			q.Lose(e.ID)
			found = append(found, lua.FoundEntry{ID: id, Group: group, Verdict: lua.EntryCancelled})
			if to == "" {
				delete(q.Windows, id)
			}
			if key := e.key(); key != "" && holders == 0 {
				held = append(held, turn{key, e.ID})
			}
		case unread:
			found = append(found, lua.FoundEntry{ID: id, Group: group, Verdict: lua.EntryUnread})
		}
	}
	q.passOn(held)
	return found
}
