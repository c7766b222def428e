package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// Source is the Redis in which another program keeps its jobs. Move calls it from one goroutine.
type Source interface {
	// Program is the name of the other program, such as "asynq". Moved jobs are remembered under it, so it must never
	// change.
	Program() string

	// Target returns the name in duestream of one of the program's queues. With an error all jobs of the queue are
	// refused.
	Target(queue string) (name string, _ error)

	// Scan calls visit for every job of the wanted queues: at least for those whose keys exist during the whole call. It
	// visits the jobs of a queue in the order in which the program would deliver them, as far as it can tell, and may
	// visit a job twice. Every pass begins with a Scan.
	Scan(ctx context.Context, visit func(queue, id string)) error

	// Read reads jobs of one queue. The result has one Job for each ID, in the same order.
	Read(ctx context.Context, queue string, ids []string) ([]Job, error)

	// Remove deletes jobs that Read has returned from the Redis of the program. It tells for each job whether it is
	// deleted. A job that has changed its state since Read may stay. The next pass then reads it again.
	Remove(ctx context.Context, queue string, jobs []Job) (removed []bool, _ error)
}

// Preparer is a Source whose queues need settings in duestream.
type Preparer interface {
	// Prepare sets up a queue of duestream before its first job is stored, and returns the groups that it needs. It may
	// be called again for the same queue.
	Prepare(ctx context.Context, to *admin.Admin, queue string) (groups []string, _ error)
}

// Fate says what Move does with a Job.
type Fate int

// Fates of a job.
const (
	Moves     Fate = iota // it is moved
	Gone                  // it has ended since Scan, so there is nothing to move
	Stays                 // it is left where it is on purpose, such as a completed job; it is counted by its state
	Unsettled             // it is in no structure now. It is read again in the next passes, and in the end moved.
	Refused               // duestream cannot store it, or cannot read it; Err says why
)

// Job is a job as Read found it.
type Job struct {
	ID    string
	Fate  Fate
	State string       // the program's word for its state, such as "scheduled": the report counts by it
	Entry admin.Record // for Moves and Unsettled: what is stored. Its ID need not be the job's.
	Err   error        // for Refused

	// Unsaid names the settings of the job that its message cannot have, such as "timeout". The report counts them.
	Unsaid []string

	// Place is what Remove needs to know. Move does not look at it.
	Place any
}

// Refuse returns a Job that is refused.
func Refuse(id, state string, err error) Job {
	return Job{ID: id, Fate: Refused, State: state, Err: err}
}

// anyLetterID is the entry ID of every dead letter's record. It lies in the future, so the import gives each letter an
// entry ID of the present time instead. The job's ID tells the letters apart.
const anyLetterID = "9999999999999999-0"

// DeadLetter turns the record of a message into that of a dead letter of a group. died is when the job failed for the
// last time.
func DeadLetter(r admin.Record, group, text string, died time.Time) admin.Record {
	r.Kind, r.Letter, r.Group, r.Reason = admin.RecordDead, anyLetterID, group, lua.ReasonMaxAttempts
	r.Error, r.Dead, r.Expires = Shorten(text), died.UnixMilli(), 0
	return r
}

// Shorten cuts the text of an error to the length that a message may have.
func Shorten(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > lua.MaxErrorBytes {
		text = strings.ToValidUTF8(text[:lua.MaxErrorBytes], "")
	}
	return text
}

// callLimit bounds one round trip to the Redis of a program.
const callLimit = 30 * time.Second

// Limit gives a round trip to the Redis of a program 30 seconds. Move cannot be interrupted during a batch, so each
// round trip needs a limit: without it, a server that hangs would hold the run for ever.
func Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callLimit)
}

// Do sends commands to the Redis of a program in one round trip, within 30 seconds. It returns the server's first
// error, unless the error means that a key is missing or has a foreign type.
func Do(ctx context.Context, c rueidis.Client, cmds ...rueidis.Completed) ([]rueidis.RedisResult, error) {
	call, cancel := Limit(ctx)
	defer cancel()
	answers := c.DoMulti(call, cmds...)
	for _, answer := range answers {
		if err := answer.Error(); err != nil && !rueidis.IsRedisNil(err) && !IsForeign(err) {
			return nil, fmt.Errorf("read the other Redis: %w", err)
		}
	}
	return answers, nil
}

// DoWithTime is Do, and returns the time of the server at the beginning of the round trip, too.
func DoWithTime(ctx context.Context, c rueidis.Client, cmds ...rueidis.Completed) ([]rueidis.RedisResult, time.Time,
	error) {
	answers, err := Do(ctx, c, slices.Insert(cmds, 0, c.B().Time().Build())...)
	if err != nil {
		return nil, time.Time{}, err
	}
	clock, err := answers[0].AsIntSlice()
	if err != nil || len(clock) != 2 {
		return nil, time.Time{}, fmt.Errorf("read the other Redis: no time: %w", err)
	}
	return answers[1:], time.UnixMilli(clock[0]*1000 + clock[1]/1000), nil
}

// IsForeign reports whether an error means that a key has another type than the program writes. Such a key was written
// by another program that shares the Redis.
func IsForeign(err error) bool {
	answer, is := rueidis.IsRedisErr(err)
	return is && strings.HasPrefix(answer.Error(), "WRONGTYPE")
}

// scanPage is how many keys one SCAN looks at.
const scanPage = 1000

// Keys calls visit for every key that matches a glob pattern, page by page.
func Keys(ctx context.Context, c rueidis.Client, pattern string, visit func(key string)) error {
	for cursor := uint64(0); ; {
		answers, err := Do(ctx, c, c.B().Scan().Cursor(cursor).Match(pattern).Count(scanPage).Build())
		if err != nil {
			return err
		}
		page, err := answers[0].AsScanEntry()
		if err != nil {
			return fmt.Errorf("read the other Redis: %w", err)
		}
		for _, key := range page.Elements {
			visit(key)
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

// Backward calls visit for every element of a list, from its end to its beginning. A key of another type counts as an
// empty list. Elements that are added or removed meanwhile may be missed.
func Backward(ctx context.Context, c rueidis.Client, key string, visit func(element string)) error {
	for last := int64(-1); ; last -= scanPage {
		answers, err := Do(ctx, c, c.B().Lrange().Key(key).Start(last-scanPage+1).Stop(last).Build())
		if err != nil {
			return err
		}
		page, err := answers[0].AsStrSlice()
		if IsForeign(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the other Redis: %w", err)
		}
		for i := len(page) - 1; i >= 0; i-- {
			visit(page[i])
		}
		if len(page) < scanPage {
			return nil
		}
	}
}

// CheckServer refuses a Redis from which a Source cannot read all jobs: one of a cluster, because SCAN reads one of its
// servers alone.
func CheckServer(ctx context.Context, c rueidis.Client) error {
	answers, err := Do(ctx, c, c.B().Info().Section("cluster").Build())
	if err != nil {
		return err
	}
	text, err := answers[0].ToString()
	if err != nil {
		return fmt.Errorf("read the other Redis: %w", err)
	}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "cluster_enabled:1" {
			return lua.Invalid("from", "a Redis Cluster", "must be a single Redis: a scan reads one server of a cluster "+
				"alone. Copy the keys of the jobs to a single server, or let the program finish its jobs")
		}
	}
	return nil
}
