package model

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

// draining is a drain in progress.
type draining struct {
	lua.Drained
	room, bytes, parked int
	known               bool   // the lateness is known
	held                []turn // places that members give up
}

// Drain: scheduled and due → ready, in the order of due time, then member. Malformed, expired, or for a deleted group
// → dead. With a key that another message holds → parked.
func (q *Queue) Drain(limit, maxBytes int) lua.Drained {
	const nothing = -time.Microsecond
	if q.Held {
		return lua.Drained{Wait: nothing}
	}
	d := draining{room: q.room()}
	due := slices.DeleteFunc(q.Order(), func(member string) bool { return q.Scheduled[member].Due > float64(q.Now) })
	for i, member := range due {
		if d.Moved+d.Dead+d.parked == limit || d.bytes >= maxBytes {
			break
		}
		m, late, known := q.Scheduled[member], d.Late, d.known
		if !known && m.Due >= 1e12 {
			d.Late = time.Duration(float64(q.Now)-math.Ceil(m.Due)) * time.Millisecond
		}
		d.known = true
		if d.Held = q.holdsBack(member, d.room); d.Held != "" {
			due = due[i:]
			break
		}
		q.drainOne(member, &d)
		if m.key() != "" { // it has waited for others
			d.Late, d.known = late, known
		}
	}
	for _, member := range due {
		if d.Held == "" || d.Held == lua.HeldByRate && !q.Flow.Free {
			break
		}
		if !passes(member) {
			continue
		}
		if by := q.holdsBack(member, d.room); by != "" || d.Moved+d.Dead == limit || d.bytes >= maxBytes {
			d.Held = cmp.Or(by, d.Held)
			break
		}
		q.drainOne(member, &d)
	}
	q.handOn(d.held)
	if d.Wait = q.wait(); d.Wait < 0 {
		d.Wait = nothing
	}
	return d.Drained
}

// drainOne processes one due member.
func (q *Queue) drainOne(member string, d *draining) {
	m := q.Scheduled[member]
	d.bytes += len(member) + len(m.Payload) + len(m.Raw)
	name, to, key := lua.ParseMember(member), m.Meta[lua.FieldFor], m.key()
	_, exists := q.Groups[to]
	switch {
	case m.Broken != "":
		q.bury(fields{lua.FieldID: name.ID, lua.FieldPayload: m.Payload, lua.FieldAttempt: "1", lua.FieldDue: m.dueMs(),
			lua.FieldMeta: m.Raw},
			name.Group, "", lua.ReasonMalformed, m.Broken)
		d.Dead++
	case m.expired(q.Now) || to != "" && !exists:
		letter, reason := inLetter(m.fields()), lua.ReasonGroupGone
		if m.expired(q.Now) {
			reason = lua.ReasonExpired
		}
		delete(letter, lua.FieldFor)
		q.bury(letter, to, "", reason, letter[lua.FieldError])
		d.Dead++
		d.held = append(d.held, turn{key, member})
	case key != "" && q.awaitsTurn(key, member, d):
		d.parked++
		return
	default:
		entry := q.ready(m)
		q.spend(member, &d.room)
		d.Moved++
		if key != "" {
			q.Turns[inFlight(key, entry)] = true
		}
		if passes(member) {
			d.held = append(d.held, turn{key, member})
		}
	}
	delete(q.Scheduled, member)
}
