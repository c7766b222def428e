package asynq

import (
	"maps"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// defaultTimeout is the timeout that asynq gives each task with neither timeout nor deadline. The report does not count
// it, because every task would have one.
const defaultTimeout = int64(30 * time.Minute / time.Second)

// place is what Remove needs to know of a task.
type place struct{ uniqueKey string }

// entry makes the Job of a task.
func (s *Source) entry(f found, now time.Time) migrate.Job {
	job := migrate.Job{ID: f.id, State: f.state, Unsaid: unsaid(f.message), Place: place{f.message.uniqueKey}}
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
	r := admin.Record{Kind: admin.RecordScheduled, ID: f.id, Payload: f.message.payload, Headers: headers,
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

// unsaid names the settings of a task that its message does not have.
func unsaid(m message) (names []string) {
	add := func(is bool, name string) {
		if is {
			names = append(names, name)
		}
	}
	add(m.timeout != 0 && m.timeout != defaultTimeout, "timeout")
	add(m.deadline != 0, "deadline")
	add(m.uniqueKey != "", "unique lock")
	add(m.retention != 0, "retention")
	add(m.groupKey != "", "group")
	return names
}
