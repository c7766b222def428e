package migrate

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
	"github.com/duestream/duestream/lua"
)

// letterName is the entry ID that every imported dead letter asks for; the job's ID tells the letters apart. It lies
// in the future, so the import gives each letter an entry ID of its own time instead. The letter's age then counts
// from the import, because lmstfy does not store when a job died.
const letterName = "9999999999999999-0"

// stateOf tells whether a job of timer_set is delayed or in flight. A delayed job has tries left, and its time in
// timer_set is the due time in its ID.
func stateOf(e entry) State {
	if e.state != Delayed {
		return e.state
	}
	published, delay, _, ok := lmstfy.ParseID(e.id)
	away := e.due.Sub(published.Add(delay).Truncate(time.Second))
	if ok && e.tries > 0 && delay > 0 && away.Abs() <= time.Second {
		return Delayed
	}
	return InFlight
}

// record returns the record of a job for duestream. ErrInvalid: duestream cannot store the job.
//
//   - A dead job becomes a dead letter of the group. So does a job in flight with its last try; an acknowledgement of
//     it through the gateway purges the dead letter.
//   - Every other job becomes a message, with its remaining tries.
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
	dies := e.state == InFlight && e.tries == 0 && (b.expires.IsZero() || b.expires.After(e.due))
	switch {
	case e.state == Dead || dies:
		r.Kind, r.Letter, r.Group, r.Reason = admin.RecordDead, letterName, lmstfy.Group, lua.ReasonMaxAttempts
		r.Attempt, r.MaxAttempts, r.Due, r.Dead = 1, 1, due.UnixMilli(), now.UnixMilli()
		r.Error, r.Expires = "died in lmstfy", 0
		if dies {
			r.Error = "in flight with its last try when it was moved from lmstfy"
		}
	case e.state == InFlight && e.tries == 0: // it expires before its ttr ends
		r.Due, r.MaxAttempts = e.due.UnixMilli(), 1
	case e.state == Ready || e.state == Stray:
		r.Due = min(due.UnixMilli(), now.UnixMilli())
	default:
		r.Due = e.due.UnixMilli()
	}
	if r.MaxAttempts < 1 {
		return r, lua.Invalid("tries", strconv.Itoa(e.tries), "must be above 0")
	}
	return r, r.Check()
}
