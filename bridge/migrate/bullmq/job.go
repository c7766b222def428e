package bullmq

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// scoreFactor is the number of scores that BullMQ has for one millisecond of the zset delayed.
const scoreFactor = 4096

// maxCrashes is how often workers may abandon a moved job, apart from its attempts: BullMQ puts a job of a dead worker
// back once (its default of maxStalledCount).
const maxCrashes = 2

// place is what Remove needs to know of a job.
type place struct {
	deduplication string // ID under which BullMQ refuses other jobs; "" = none
	scheduler     string // name of the scheduler that is to be removed; "" = it is a job
}

// options are the options of a job that matter for its message. The other options, such as those that say how long
// completed jobs are kept, mean nothing after the move.
type options struct {
	Attempts float64         `json:"attempts"`
	Backoff  json.RawMessage `json:"backoff"`
	LIFO     bool            `json:"lifo"`
	Priority float64         `json:"priority"`
	Group    json.RawMessage `json:"group"` // of BullMQ Pro
}

// job makes the Job of what was found.
func (s *Source) job(f found, now time.Time) migrate.Job {
	isScheduler := strings.HasPrefix(f.id, "repeat:") && !f.isJob()
	switch {
	case markOf(f.fields) != f.mark: // the next pass finds the job that has the ID now
		return migrate.Job{ID: f.visited, Fate: migrate.Gone}
	case isScheduler:
		return s.scheduler(f)
	case !f.isJob():
		return migrate.Job{ID: f.visited, Fate: migrate.Gone}
	}
	state, due := f.state(now)
	job := migrate.Job{ID: f.visited, State: state, Place: place{deduplication: f.fields["deid"]}}
	refuse := func(field, value, rule string, args ...any) migrate.Job {
		return migrate.Refuse(f.visited, state, lua.Invalid(field, value, rule, args...))
	}
	switch {
	case state == completed, state == failed && s.options.FailedTo == "":
		job.Fate = migrate.Stays
		return job
	case state == waitingChildren:
		return refuse("job", f.id, "waits for its children: duestream has no flows. Let BullMQ finish the flow")
	case f.fields["parentKey"] != "":
		return refuse("job", f.id, "is a child of job %s, which waits for it: duestream has no flows. "+
			"Let BullMQ finish the flow", f.fields["parentKey"])
	case f.hasNext && state == active:
		return refuse("job", f.id, "has a successor with the deduplication ID %q, which BullMQ adds when the job ends. "+
			"Let BullMQ finish the job", f.fields["deid"])
	case s.staysWithScheduler(f):
		job.Fate, job.State = migrate.Stays, nextOfScheduler
		return job
	case state == "":
		job.Fate = migrate.Unsettled
	}
	var o options
	if err := json.Unmarshal([]byte(f.fields["opts"]), &o); err != nil {
		return refuse("opts", f.fields["opts"], "must be the options of a job as JSON: %v", err)
	}
	// atm is attemptsMade in BullMQ 4.
	made := max(number(f.fields["atm"]), number(f.fields["attemptsMade"]))
	attempts := int(min(max(o.Attempts, 1), lua.MaxAttemptsLimit))
	r := admin.Record{Kind: admin.RecordScheduled, ID: s.key(f.queue, f.visited), Payload: []byte(f.fields["data"]),
		Headers: map[string]string{bridge.KindHeader: f.fields["name"]}, Due: due.UnixMilli(),
		MaxAttempts: attempts, Attempt: int(min(made+1, float64(attempts))), Error: migrate.Shorten(f.fields["failedReason"]),
		Extra: map[string]string{lua.FieldMaxCrashes: strconv.Itoa(maxCrashes)}}
	delays, unsaid := retryDelays(o.Backoff, attempts)
	if delays != "" {
		r.Extra[lua.FieldRetryDelays] = delays
	}
	if state == failed {
		r = migrate.DeadLetter(r, s.options.FailedTo, f.fields["failedReason"], due)
	}
	job.Entry, job.Unsaid = r, append(unsaid, f.unsaid(o)...)
	return job
}

// state returns the state of a job, and when its message is due. "" = it is in no structure now.
func (f *found) state(now time.Time) (state string, due time.Time) {
	// A job that waits keeps its place before younger ones.
	waited := time.UnixMilli(int64(number(f.fields["timestamp"])))
	if waited.After(now) {
		waited = now
	}
	_, isPrioritized := f.scores[prioritized]
	_, isCompleted := f.scores[completed]
	_, isWaitingChildren := f.scores[waitingChildren]
	failedAt, isFailed := f.scores[failed]
	score, isDelayed := f.scores[delayed]
	switch {
	case isCompleted:
		return completed, waited
	case isFailed:
		return failed, time.UnixMilli(int64(failedAt))
	case isWaitingChildren:
		return waitingChildren, waited
	case isDelayed:
		return delayed, time.UnixMilli(int64(math.Floor(score / scoreFactor)))
	case isPrioritized:
		return prioritized, waited
	case f.lock > 0:
		return active, now.Add(f.lock)
	}
	return f.list, waited
}

// retryDelays returns the delays after failed attempts, in milliseconds with commas between. "" = the message needs
// none. unsaid names settings of the backoff that a message does not have.
func retryDelays(backoff json.RawMessage, attempts int) (delays string, unsaid []string) {
	if attempts < 2 {
		return "", nil
	}
	var b struct {
		Type   string  `json:"type"`
		Delay  float64 `json:"delay"`
		Jitter float64 `json:"jitter"`
	}
	if len(backoff) > 0 && string(backoff) != "null" {
		if fixed, err := strconv.ParseFloat(string(backoff), 64); err == nil {
			b.Type, b.Delay = "fixed", fixed
		} else if json.Unmarshal(backoff, &b) != nil {
			return "", []string{"backoff"}
		}
	}
	if b.Jitter > 0 {
		unsaid = append(unsaid, "jitter of the backoff")
	}
	switch b.Type {
	case "", "fixed": // without a backoff BullMQ tries again at once
		return delayText(b.Delay), unsaid
	case "exponential":
		var all []string
		for n := range min(attempts-1, lua.MaxDelays) {
			all = append(all, delayText(math.Round(math.Pow(2, float64(n))*b.Delay)))
		}
		return strings.Join(all, ","), unsaid
	}
	return "", append(unsaid, "backoff of the type "+migrate.Shorten(b.Type))
}

// delayText writes a delay within the bounds of retry_delays_ms.
func delayText(millis float64) string {
	return strconv.FormatInt(int64(min(max(millis, 1), float64(lua.MaxDelay.Milliseconds()))), 10)
}

// unsaid names the settings of a job that its message does not have.
func (f *found) unsaid(o options) (names []string) {
	for _, setting := range []struct {
		name string
		is   bool
	}{
		{"priority", o.Priority > 0 || number(f.fields["priority"]) > 0},
		{"lifo", o.LIFO},
		{"deduplication", f.fields["deid"] != ""},
		{"group", len(o.Group) > 0},
		{"logs", f.hasLogs},
		{"progress", f.fields["progress"] != "" && f.fields["progress"] != "0"},
		{"results of children", f.processed},
	} {
		if setting.is {
			names = append(names, setting.name)
		}
	}
	return names
}
