package migrate

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
	"github.com/duestream/duestream/lua"
)

// letterName is that of every dead letter that comes from an lmstfy, which has no names: its ID tells them apart. It is that of
// an entry in the future, so a letter gets the ID, and so the age, of when it came: nobody knows when a job died.
const letterName = "9999999999999999-0"

// stateOf says whether a job of timer_set is delayed or in flight: a delayed one is due when its ID says.
func stateOf(e entry) State {
	if e.state != Delayed {
		return e.state
	}
	published, delay, _, ok := lmstfy.ParseID(e.id)
	if away := e.due.Sub(published.Add(delay).Truncate(time.Second)); ok && delay > 0 && away.Abs() <= time.Second {
		return Delayed
	}
	return InFlight
}

// record returns what a job is in duestream. ErrInvalid: it cannot be there.
//
//   - Dead ones become dead letters of the group.
//   - One in flight with its last try becomes a message that expires at the end of its ttr, for the group: the group finds a dead
//     letter then, unless the job is acknowledged before.
//   - All others become messages, with the tries that are left.
func record(e entry, b body, now time.Time) (admin.Record, error) {
	published, delay, versioned, ok := lmstfy.ParseID(e.id)
	due := now
	if ok {
		due = published.Add(delay)
	}
	r := admin.Record{Kind: admin.RecordScheduled, ID: e.id, Payload: b.bytes, MaxAttempts: e.tries}
	if !b.expires.IsZero() {
		r.Expires = b.expires.UnixMilli()
	}
	if versioned {
		var job struct {
			Body       []byte            `json:"body"`
			Attributes map[string]string `json:"attributes"`
		}
		if err := json.Unmarshal(b.bytes, &job); err != nil {
			return r, lua.Invalid("job", e.id, "is not as lmstfy stores it: %v", err)
		}
		r.Payload = job.Body
		for name, value := range job.Attributes {
			if r.Headers == nil {
				r.Headers = map[string]string{}
			}
			r.Headers[lmstfy.AttributePrefix+name] = value
		}
	}
	if r.Payload == nil {
		r.Payload = []byte{}
	}
	switch e.state {
	case Dead:
		r.Kind, r.Letter, r.Group, r.Reason = admin.RecordDead, letterName, lmstfy.Group, lua.ReasonMaxAttempts
		r.Attempt, r.MaxAttempts, r.Due, r.Dead = 1, 1, due.UnixMilli(), now.UnixMilli()
		r.Error, r.Expires = "died in lmstfy", 0
	case Ready, Stray:
		r.Due = min(due.UnixMilli(), now.UnixMilli())
	default:
		r.Due = e.due.UnixMilli()
		if e.tries == 0 && (r.Expires == 0 || r.Expires > r.Due) {
			r.MaxAttempts, r.For, r.Expires = 1, lmstfy.Group, r.Due
			r.Error = "in flight with its last try when it was moved from lmstfy"
		}
	}
	if r.MaxAttempts < 1 && e.state != InFlight || r.MaxAttempts < 0 {
		return r, lua.Invalid("tries", strconv.Itoa(e.tries), "must be above 0")
	}
	if r.MaxAttempts == 0 { // it expires before it could die
		r.MaxAttempts = 1
	}
	return r, r.Check()
}
