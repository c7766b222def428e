package dashboard

import (
	"cmp"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// This file holds the tab of consumers: who reads, and what each of them holds.

// Entries that the tab lists.
const (
	heldOfEach = 20  // of each group, if all groups are shown
	heldOfOne  = 200 // of one group
	heldGroups = 20  // groups whose entries are listed

	consumersListed = 500 // those that hold most, if there are more
)

// consumersView is the data of the tab.
type consumersView struct {
	At        time.Time
	Group     string // of the address; "" = all
	Consumer  string // of the address; "" = all
	Consumers []admin.Consumer
	Hidden    int      // consumers that are not listed
	Names     []string // of the groups; at least one
	Held      []heldGroup
	Given     bool        // the server tells when a consumer was last given an entry
	Of        *queueGroup // figures of the group of the address
}

// heldGroup lists the entries that the consumers of a group hold.
type heldGroup struct {
	Group   string
	Total   int64
	Entries []admin.PendingEntry // the oldest ones
}

// longHeld is the time from which the page marks a held message, because its handler may hang.
const longHeld = time.Minute

// IsLong reports whether an entry has been held for longHeld or more.
func (h heldGroup) IsLong(e admin.PendingEntry) bool { return time.Duration(e.Held) >= longHeld }

// LongHeld returns for how long a consumer has held the oldest of the listed entries; zero = less than longHeld.
func (v consumersView) LongHeld(c admin.Consumer) (longest admin.Millis) {
	for _, group := range v.Held {
		for _, e := range group.Entries {
			if group.Group == c.Group && e.Consumer == c.Consumer && group.IsLong(e) {
				longest = max(longest, e.Held)
			}
		}
	}
	return longest
}

// More reports whether the group's consumers hold more entries than are listed.
func (h heldGroup) More() bool { return h.Total > int64(len(h.Entries)) }

func showConsumers(q *request, state queueState) (any, error) {
	v := consumersView{Group: q.query.Get("group"), Consumer: q.query.Get("consumer")}
	for i, g := range state.Groups {
		v.Names = append(v.Names, g.Name)
		if g.Name == v.Group {
			v.Of = &state.Groups[i]
		}
	}
	v.Names = append(v.Names, "mailer") // an example, if there is no group
	if v.Group != "" {
		if err := q.op.CheckGroup(q.ctx, q.queue(), v.Group); err != nil {
			return nil, err
		}
	}
	var err error
	if v.At, err = q.op.Time(q.ctx, q.queue()); err != nil {
		return nil, err
	}
	if v.Consumers, err = q.op.Consumers(q.ctx, q.queue(), v.Group); err != nil {
		return nil, err
	}
	if v.Consumer != "" {
		v.Consumers = slices.DeleteFunc(v.Consumers, func(c admin.Consumer) bool { return c.Consumer != v.Consumer })
	}
	v.Given = slices.ContainsFunc(v.Consumers, func(c admin.Consumer) bool { return c.Inactive != nil })
	limit := heldOfEach
	if v.Group != "" {
		limit = heldOfOne
	}
	v.hide(consumersListed)
	for _, c := range v.Consumers {
		isListed := slices.ContainsFunc(v.Held, func(h heldGroup) bool { return h.Group == c.Group })
		if c.Pending == 0 || isListed || len(v.Held) == heldGroups {
			continue
		}
		held := heldGroup{Group: c.Group}
		if held.Total, err = q.op.PendingCount(q.ctx, q.queue(), c.Group, v.Consumer); err != nil {
			return nil, err
		}
		filter := admin.PendingFilter{Consumer: v.Consumer}
		if held.Entries, err = q.op.Pending(q.ctx, q.queue(), c.Group, filter, limit); err != nil {
			return nil, err
		}
		v.Held = append(v.Held, held)
	}
	return v, nil
}

// hide keeps the consumers with the most pending entries, in their order, and removes the others.
func (v *consumersView) hide(most int) {
	v.Hidden = max(0, len(v.Consumers)-most)
	if v.Hidden == 0 {
		return
	}
	busiest := slices.Clone(v.Consumers)
	slices.SortStableFunc(busiest, func(a, b admin.Consumer) int { return cmp.Compare(b.Pending, a.Pending) })
	least := busiest[most-1].Pending
	more := 0 // consumers that hold as many as the last one that is kept, and are kept
	for _, c := range busiest[:most] {
		if c.Pending == least {
			more++
		}
	}
	v.Consumers = slices.DeleteFunc(v.Consumers, func(c admin.Consumer) bool {
		if c.Pending == least {
			more--
			return more < 0
		}
		return c.Pending < least
	})
}
