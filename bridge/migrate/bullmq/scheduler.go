package bullmq

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// scheduler makes the Job of a job scheduler. Its message is a recurrence, whose first occurrence is the one after the
// scheduler's next job. That job is moved like any other, so that no occurrence comes twice or not at all.
func (s *Source) scheduler(f found) migrate.Job {
	if f.nextMillis == 0 { // it was removed, or the hash is none of BullMQ
		return migrate.Job{ID: f.visited, Fate: migrate.Gone}
	}
	job := migrate.Job{ID: f.visited, State: scheduler, Fate: migrate.Stays, Place: place{scheduler: f.schedulerName}}
	if !s.options.Schedulers {
		return job
	}
	spec, hasEnded, err := s.recurrence(f)
	if err != nil {
		return migrate.Refuse(f.visited, scheduler, err)
	}
	if hasEnded {
		job.State = ended
		return job
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return migrate.Refuse(f.visited, scheduler, err)
	}
	job.Fate = migrate.Moves
	job.Entry = admin.Record{Kind: admin.RecordRecurrence, ID: spec.Name, Payload: text}
	var o options
	if json.Unmarshal([]byte(f.template["opts"]), &o) == nil {
		if o.Attempts > 1 {
			job.Unsaid = append(job.Unsaid, "attempts of a job scheduler")
		}
		if o.Priority > 0 {
			job.Unsaid = append(job.Unsaid, "priority of a job scheduler")
		}
	}
	return job
}

// recurrence returns the recurrence of a scheduler. hasEnded means that the scheduler has no job after its next one.
func (s *Source) recurrence(f found) (spec bridge.Recurrence, hasEnded bool, err error) {
	invalid := func(field, value, rule string) (bridge.Recurrence, bool, error) {
		return bridge.Recurrence{}, false, lua.Invalid(field, value, "%s", rule)
	}
	t := f.template
	if t["ic"] == "" { // it has no template
		return invalid("scheduler", f.schedulerName, "is a repeatable job, which was added with the option repeat: "+
			"add it again with upsertJobScheduler, or by duestream recur add")
	}
	payload := t["data"]
	if payload == "" {
		payload = "{}" // BullMQ does not store a template without data
	}
	next := time.UnixMilli(int64(f.nextMillis))
	spec = bridge.Recurrence{Name: f.schedulerName, Payload: []byte(payload),
		Headers: map[string]string{bridge.KindHeader: t["name"]}, Start: next.Add(time.Millisecond)}
	switch {
	case t["every"] != "":
		spec.Every = time.Duration(number(t["every"])) * time.Millisecond
		if spec.Every < time.Second {
			return invalid("every", t["every"], "must be at least 1000 ms")
		}
		spec.Phase = time.Duration(int64(f.nextMillis)%spec.Every.Milliseconds()) * time.Millisecond
	case t["pattern"] == "":
		return invalid("scheduler", f.schedulerName, "has neither pattern nor every: duestream does not know its strategy")
	default:
		spec.Cron, spec.Zone = t["pattern"], t["tz"]
		if spec.Zone == "" {
			spec.Zone = s.options.Zone
		}
		if spec.Zone == "" {
			return invalid("tz", "", "is missing, so BullMQ uses the time zone of its process: say which one it is")
		}
	}
	if t["startDate"] != "" {
		if start := dateOf(t["startDate"]); start.After(spec.Start) {
			spec.Start = start
		}
	}
	if t["endDate"] != "" {
		spec.End = dateOf(t["endDate"])
		if spec.End.IsZero() {
			return invalid("endDate", t["endDate"], "must be a time in Unix milliseconds")
		}
		hasEnded = spec.End.Before(spec.Start)
	}
	if limit := number(t["limit"]); limit > 0 {
		// ic counts the jobs so far, with the next one.
		left := limit - math.Max(1, number(t["ic"]))
		spec.Count, hasEnded = int(left), hasEnded || left < 1
	}
	if hasEnded {
		return spec, true, nil
	}
	checked := spec
	checked.Queue = "any" // the key under which the spec is stored names the queue, and Move may rename it
	_, err = checked.Compile()
	return spec, false, err
}

// dateOf reads a date of a scheduler: Unix milliseconds, or the JSON of a Date. Zero: it is neither.
func dateOf(text string) time.Time {
	if millis := number(text); millis > 0 {
		return time.UnixMilli(int64(millis))
	}
	date, err := time.Parse(time.RFC3339Nano, strings.Trim(text, `"`))
	if err != nil {
		return time.Time{}
	}
	return date
}

// staysWithScheduler reports whether a job is the next one of a scheduler that stays in BullMQ: a worker adds the
// scheduler's following job when it begins this one.
func (s *Source) staysWithScheduler(f found) bool {
	if f.schedulerName == "" || f.nextMillis == 0 || !f.isNext() {
		return false
	}
	if !s.options.Schedulers {
		return true
	}
	_, _, err := s.recurrence(f)
	return err != nil
}

// isNext reports whether a job is the next one of its scheduler. The time is the end of the job's ID.
func (f *found) isNext() bool {
	_, millis, _ := cutLast(f.id, ":")
	return number(millis) == f.nextMillis
}
