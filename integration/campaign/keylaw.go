package campaign

import (
	"fmt"
	"slices"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// span is the range of entries of a message with a key, in all groups: first and last are entry IDs.
type span struct{ id, first, last string }

// keyed records the span of a message with a key. It ignores the sacrificial queue, where keys are deleted with
// everything.
func (a *auditor) keyed(p plan, id string, chains map[string]*chain) {
	if p.kind != kindKeyed || p.queue != queueMain {
		return
	}
	one := span{id: id}
	for _, c := range chains {
		for _, d := range c.entries {
			if one.first == "" || view.CompareEntries(d.entry, one.first) < 0 {
				one.first = d.entry
			}
			if one.last == "" || view.CompareEntries(d.entry, one.last) > 0 {
				one.last = d.entry
			}
		}
	}
	if one.first != "" {
		a.spans[keyOf(id)] = append(a.spans[keyOf(id)], one)
	}
}

// keyLaw finds messages of one key that were in flight together: an entry of one, such as a retry, was added after
// the first entry of the next. A failover excuses that, and so does a rollback of the queue, which deletes the record
// of who holds a key.
func (a *auditor) keyLaw() {
	for key, spans := range a.spans {
		slices.SortFunc(spans, func(x, y span) int { return view.CompareEntries(x.first, y.first) })
		for i := 1; i < len(spans); i++ {
			before, next := spans[i-1], spans[i]
			if view.CompareEntries(before.last, next.first) > 0 &&
				!a.explainer.undone(lua.EntryTime(next.first).UnixMicro(), lua.EntryTime(before.last).UnixMicro()) &&
				!a.forgotten(before) {
				problem := fmt.Sprintf("entry %s of %s was added behind entry %s: both have %s", before.last, before.id,
					next.first, key)
				a.find(Finding{Column: columnOwners, ID: next.id, Problem: problem}, nil)
			}
		}
	}
}
