package model

import (
	"maps"
	"slices"

	"github.com/duestream/duestream/lua"
)

// Waiting returns the members that will deliver a message again to a group, or to any group if it is "".
func (q *Queue) Waiting(id, group string) (members []string) {
	for member := range q.Scheduled {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst && m.ID == id && (group == "" || group == m.Group) {
			members = append(members, member)
		}
	}
	slices.Sort(members)
	return members
}

// CancelRetries removes the scheduled retries of a message. The dedup window stays, because the message was accepted
// and delivered. The next message with its key goes on.
func (q *Queue) CancelRetries(id, group string) []string {
	members := q.Waiting(id, group)
	var held []turn
	for _, member := range members {
		if key := q.Scheduled[member].key(); key != "" {
			held = append(held, turn{key, member})
		}
		q.leaveLine(member)
		delete(q.Scheduled, member)
	}
	q.passOn(held)
	return members
}

// RescheduleRetries changes the due time of the scheduled retries of a message.
func (q *Queue) RescheduleRetries(id, group string, to lua.When) []string {
	members := q.Waiting(id, group)
	for _, member := range members {
		q.leaveLine(member)
		m := q.Scheduled[member]
		m.Due = float64(when(to, q.Now))
		q.Scheduled[member] = m
	}
	return members
}

// Expire makes scheduled messages due now, and lets them expire. A message that cannot be read has no expiry, and
// becomes only due.
func (q *Queue) Expire(members []string) []lua.Expired {
	answers := make([]lua.Expired, len(members))
	for i, member := range members {
		m, scheduled := q.Scheduled[member]
		due, expired := m.Due <= float64(q.Now), m.Broken != "" || m.expired(q.Now)
		switch {
		case !scheduled:
			continue
		case due && expired:
			answers[i] = lua.ExpireBefore
			continue
		case !expired:
			m.Meta = maps.Clone(m.Meta)
			m.Meta[lua.FieldExpires] = decimal(q.Now)
		}
		if !due {
			q.leaveLine(member)
			m.Due = float64(q.Now)
		}
		q.Scheduled[member], answers[i] = m, lua.ExpireNow
	}
	return answers
}
