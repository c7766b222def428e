package asynq

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// place is what Remove needs to know of a task.
type place struct{ uniqueKey string }

// entry makes the Job of a task.
func (s *Source) entry(f found, now time.Time) migrate.Job {
	fields, unsaid := settingsOf(f.message)
	job := migrate.Job{ID: f.id, State: f.state, Unsaid: unsaid, Place: place{f.message.uniqueKey}}
	if f.message.id != f.id {
		return migrate.Refuse(f.id, f.state, lua.Invalid("task", f.id, "holds the task of another ID, %q", f.message.id))
	}
	headers, err := headersOf(f.message)
	if err != nil {
		return migrate.Refuse(f.id, f.state, err)
	}
	if f.message.groupKey != "" && !s.options.Aggregating && f.state != archived && f.state != completed {
		job.Fate, job.State = migrate.Stays, aggregating
		return job
	}
	last := max(1, f.message.retries+1)
	attempt := min(f.message.retried+1, last)
	r := admin.Record{Kind: admin.RecordScheduled, ID: f.id, Payload: f.message.payload, Headers: headers, Extra: fields,
		MaxAttempts: int(min(last, lua.MaxAttemptsLimit)), Error: migrate.Shorten(f.message.lastError)}
	due, isPlaced := now, true
	switch f.state {
	case scheduled, retry:
		due, isPlaced = f.scores[f.state], !f.scores[f.state].IsZero()
	case pending:
		if !f.since.IsZero() && f.since.Before(now) { // so that pending tasks keep their order
			due = f.since
		}
	case aggregating:
	case active:
		due, isPlaced = f.scores[lease], !f.scores[lease].IsZero()
		attempt = min(attempt+1, last) // its worker makes the present attempt
	case archived:
		if s.options.ArchivedTo == "" {
			job.Fate = migrate.Stays
			return job
		}
		died := f.scores[archived]
		if died.IsZero() {
			died = now
		}
		due = died
		r = migrate.DeadLetter(r, s.options.ArchivedTo, f.message.lastError, died)
	case completed:
		job.Fate = migrate.Stays
		return job
	default:
		return migrate.Refuse(f.id, f.state, lua.Invalid("state", f.state, "is none that asynq 0.23 to 0.26 writes"))
	}
	if !isPlaced {
		job.Fate, due = migrate.Unsettled, now
	}
	r.Due, r.Attempt = due.UnixMilli(), int(min(attempt, lua.MaxAttemptsLimit))
	job.Entry = r
	return job
}

// headersOf returns the headers of a message: those of the task, and its type as the kind.
func headersOf(m message) (map[string]string, error) {
	headers := maps.Clone(m.headers)
	if headers == nil {
		headers = map[string]string{}
	}
	if own, taken := headers[bridge.KindHeader]; taken && own != m.kind {
		return nil, lua.Invalid("header "+bridge.KindHeader, own, "must be the type of the task, %q, by which a worker "+
			"chooses the handler", m.kind)
	}
	headers[bridge.KindHeader] = m.kind
	return headers, nil
}

// settingsOf returns the settings of a task as fields of its message, and names those that a message does not have. A
// timeout is the time limit of the handler. A retention is how long the result is kept.
func settingsOf(m message) (fields map[string]string, unsaid []string) {
	fields = map[string]string{}
	set := func(seconds int64, least, most time.Duration, field, name string) {
		switch limit := time.Duration(min(seconds, math.MaxInt64/int64(time.Second))) * time.Second; {
		case seconds == 0:
		case limit < least || limit > most:
			unsaid = append(unsaid, name)
		default:
			fields[field] = strconv.FormatInt(limit.Milliseconds(), 10)
		}
	}
	set(m.timeout, time.Second, lua.MaxDelay, lua.FieldHandlerTimeout, "timeout")
	set(m.retention, time.Second, lua.MaxResultAge, lua.FieldResult, "retention")
	for name, is := range map[string]bool{
		"deadline": m.deadline != 0, "unique lock": m.uniqueKey != "", "group": m.groupKey != "",
	} {
		if is {
			unsaid = append(unsaid, name)
		}
	}
	slices.Sort(unsaid)
	return fields, unsaid
}
