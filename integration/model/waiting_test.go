package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/duestream/duestream/lua"
)

// again returns the ID of a message that waits to be delivered again, or rarely of one that does not, and a group.
func (r *run) again() (id, group string) {
	ids := []string{pick(r, "id", idNames...)}
	for _, member := range r.q.Order() {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst {
			ids = append(ids, m.ID)
		}
	}
	r.unless(len(ids) == 1)
	slices.Reverse(ids)
	return pick(r, "again", ids...), pick(r, "group", append([]string{""}, slices.Sorted(maps.Keys(r.q.Groups))...)...)
}

func (r *run) cancelRetries() {
	id, group := r.again()
	before := r.q
	for _, member := range step(r, fmt.Sprintf("cancel retries %q of %q", id, group), func(ctx context.Context) ([]string,
		error) {
		_, found, err := lua.CancelRetries(ctx, r.c, r.k, lua.Walk{Limit: 1000, Group: group}, []string{id})
		return membersOf(found), err
	}, func(q *Queue, _ []string) []string { return q.CancelRetries(id, group) }) {
		m := before.Scheduled[member]
		if to := lua.ParseMember(member).Group; to != "" {
			delete(r.book.owed[to], serialOf(m.Payload))
		}
		r.book.withdraw(m) // a redriven dead letter may have been on its way to the group
	}
}

func (r *run) rescheduleRetries() {
	id, group := r.again()
	to := r.when()
	step(r, fmt.Sprintf("reschedule retries %q of %q to %s", id, group, to), func(ctx context.Context) ([]string, error) {
		_, found, err := lua.RescheduleRetries(ctx, r.c, r.k, lua.Walk{Limit: 1000, Group: group}, to, []string{id})
		return membersOf(found), err
	}, func(q *Queue, _ []string) []string { return q.RescheduleRetries(id, group, to) })
}

func membersOf(found []lua.Waiting) (members []string) {
	for _, w := range found {
		members = append(members, w.Member)
	}
	slices.Sort(members)
	return members
}
