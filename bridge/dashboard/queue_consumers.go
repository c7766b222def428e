package dashboard

import (
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
)

// consumersView is the data of the tab.
type consumersView struct {
	At        time.Time
	Group     string // of the address; "" = all
	Consumer  string // of the address; "" = all
	Consumers []admin.Consumer
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

// More reports whether the group's consumers hold more entries than are listed.
func (h heldGroup) More() bool { return h.Total > int64(len(h.Entries)) }

func showConsumers(q *request, state queueState) (any, error) {
	v := consumersView{Group: q.query.Get("group"), Consumer: q.query.Get("consumer")}
	for i, g := range state.Groups {
		if g.Name == v.Group {
			v.Of = &state.Groups[i]
		}
	}
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
