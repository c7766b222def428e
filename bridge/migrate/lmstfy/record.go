package lmstfy

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// stateOf returns the state of a job, and tells for a job of timer_set whether it is delayed or in flight. A job is
// delayed if it has tries left, and its score is the due time that its ID holds, give or take a second.
func stateOf(e entry) string {
	if e.state != Delayed {
		return e.state
	}
	published, delay, _, ok := lmstfy.ParseID(e.id)
	difference := e.due.Sub(published.Add(delay).Truncate(time.Second))
	if ok && e.tries > 0 && delay > 0 && difference.Abs() <= time.Second {
		return Delayed
	}
	return InFlight
}

// record returns the record of a job for duestream. ErrInvalid: duestream cannot store the job.
//
//   - A dead job becomes a dead letter of the group.
//   - A job in flight with its last try becomes a dead letter too, unless it expires before its ttr ends. If its
//     consumer acknowledges it through the gateway, the dead letter is purged.
//   - Every other job becomes a message with its remaining tries. A job in flight with its last try, and a job whose
//     tries are not known, become messages with one try.
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
	lastTry := e.state == InFlight && e.tries == 0
	outlivesTTR := b.expires.IsZero() || b.expires.After(e.due)
	switch {
	case e.state == Dead || lastTry && outlivesTTR:
		text := "died in lmstfy"
		if lastTry {
			text = "in flight with its last try when it was moved from lmstfy"
		}
		r.Attempt, r.MaxAttempts, r.Due = 1, 1, due.UnixMilli()
		r = migrate.DeadLetter(r, lmstfy.Group, text, now) // lmstfy does not store when a job died
	case lastTry: // the job expires before its ttr ends, so lmstfy would not make it a dead letter
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
