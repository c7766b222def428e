package lookup

import (
	"cmp"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Events of a Moment.
const (
	MomentMade      = "made"      // it was scheduled; known if the ID is a ULID, by the producer's clock
	MomentDue       = "due"       // it was due, or will be
	MomentReady     = "ready"     // it was drained: added to the stream
	MomentDelivered = "delivered" // it was delivered to a consumer, as far as known: see PendingEntry.HeldSince
	MomentDead      = "dead"
	MomentExpires   = "expires"
)

// Moment is a known past or future event of a message, with its time by the server's clock.
type Moment struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`
	Queue   string    `json:"queue,omitempty"`
	Group   string    `json:"group,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	Entry   string    `json:"entry,omitempty"`
	Detail  string    `json:"detail,omitempty"` // the consumer, the reason, or the last error
}

// history returns the past and future events of the message in a finding, sorted.
func history(f Finding) []Moment {
	all := []Moment{}
	if made, ok := timeOfID(f.ID, f.At); ok {
		all = append(all, Moment{At: made, What: MomentMade})
	}
	for _, p := range f.Places {
		all = append(all, p.moments()...)
	}
	slices.SortStableFunc(all, func(a, b Moment) int {
		return cmp.Or(
			a.At.Compare(b.At),
			cmp.Compare(momentOrder[a.What], momentOrder[b.What]),
			cmp.Compare(a.Queue, b.Queue),
			cmp.Compare(a.Group, b.Group),
		)
	})
	return slices.Compact(all)
}

// momentOrder is the order of moments with the same time.
var momentOrder = map[string]int{
	MomentMade: 0, MomentDue: 1, MomentReady: 2, MomentDelivered: 3, MomentDead: 4, MomentExpires: 5,
}

// moments returns the events of the message that its place tells, in no order.
func (s Sighting) moments() (all []Moment) {
	add := func(m Moment) {
		if m.At.IsZero() {
			return
		}
		m.At, m.Queue = view.Shown(m.At), s.Queue
		all = append(all, m)
	}
	if s.Before != "" {
		m := Moment{At: lua.EntryTime(s.Before), What: MomentReady, Group: s.Group, Entry: s.Before,
			Detail: "back in the schedule since"}
		// A redriven letter starts again at attempt 1, and so does an entry that was released before its first attempt.
		if s.Attempt == 1 {
			m.Detail = "as an entry that was given back, or a dead letter that was redriven since"
		}
		add(m)
	}
	due := Moment{At: s.Due, What: MomentDue, Attempt: s.Attempt, Group: s.For}
	if s.Error != "" && s.State != StateDead {
		due.Detail = "the attempt before failed: " + s.Error
	}
	ready := Moment{At: lua.EntryTime(s.Entry), What: MomentReady, Attempt: s.Attempt, Group: s.For, Entry: s.Entry}
	switch s.State {
	case StateScheduled, StateRetrying:
		due.Group = s.Group
	case StateReady:
		add(ready)
	case StatePending:
		add(ready)
		add(Moment{At: s.HeldSince, What: MomentDelivered, Group: s.Group, Attempt: s.Attempt, Entry: s.Entry,
			Detail: s.Consumer})
	case StateDead:
		add(ready) // no moment if the letter was never an entry
		dead := Moment{At: s.Dead, What: MomentDead, Group: s.Group, Attempt: s.Attempt, Detail: s.Reason}
		if s.Error != "" {
			dead.Detail += ": " + s.Error
		}
		add(dead)
	}
	add(due)
	if s.State != StateDead {
		add(Moment{At: s.Expires, What: MomentExpires})
	}
	return all
}

// timeOfID returns the time in an ID that is a ULID. ok is false if the ID is not a ULID, or if its time is before 2020
// or more than a day in the future.
func timeOfID(id string, now time.Time) (at time.Time, ok bool) {
	u, err := ulid.ParseStrict(id)
	if err != nil || u.String() != id {
		return time.Time{}, false
	}
	at = time.UnixMilli(int64(u.Time()))
	return at, at.Year() >= 2020 && at.Before(now.Add(24*time.Hour))
}
