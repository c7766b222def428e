package asynq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// States of a task.
const (
	pending     = "pending"
	active      = "active"
	scheduled   = "scheduled"
	retry       = "retry"
	archived    = "archived"
	completed   = "completed"
	aggregating = "aggregating"
)

// program is the name under which moved tasks are remembered.
const program = "asynq"

// Options says which tasks are moved, and how.
type Options struct {
	Queues []string // only the tasks of these queues; empty = of all queues

	// ArchivedTo is the group whose dead letters archived tasks become. "" = archived tasks stay in asynq.
	ArchivedTo string
	// Aggregating also moves tasks with an aggregation group, each as a message of its own. Without it they stay in
	// asynq, because duestream does not aggregate messages.
	Aggregating bool
}

// Source reads the tasks of asynq. It implements migrate.Source.
type Source struct {
	c       rueidis.Client
	options Options
}

var _ migrate.Source = (*Source)(nil)

// New returns a Source of the tasks in a Redis. ErrInvalid: the Redis is a cluster, or the group is not valid.
func New(ctx context.Context, c rueidis.Client, o Options) (*Source, error) {
	if o.ArchivedTo != "" {
		if err := lua.CheckGroup(o.ArchivedTo); err != nil {
			return nil, err
		}
	}
	return &Source{c: c, options: o}, migrate.CheckServer(ctx, c)
}

// Program implements migrate.Source.
func (s *Source) Program() string { return program }

// Target implements migrate.Source: a queue keeps its name.
func (s *Source) Target(queue string) (string, error) { return queue, nil }

// key returns the key of one of the structures of a queue.
func key(queue, name string) string { return "asynq:{" + queue + "}:" + name }

// taskKey returns the key of a task.
func taskKey(queue, id string) string { return key(queue, "t:"+id) }

// parseTaskKey splits the key of a task.
func parseTaskKey(key string) (queue, id string, ok bool) {
	rest, hasPrefix := strings.CutPrefix(key, "asynq:{")
	queue, id, hasID := strings.Cut(rest, "}:t:")
	return queue, id, hasPrefix && hasID
}

func (s *Source) isWanted(queue string) bool {
	return len(s.options.Queues) == 0 || slices.Contains(s.options.Queues, queue)
}

// Scan implements migrate.Source. It visits pending tasks first, the oldest first. So Remove finds each of them at the
// end of its list.
func (s *Source) Scan(ctx context.Context, visit func(queue, id string)) error {
	tasks := map[string][]string{}
	var queues []string
	err := migrate.Keys(ctx, s.c, "asynq:{*}:t:*", func(key string) {
		queue, id, ok := parseTaskKey(key)
		if !ok || !s.isWanted(queue) {
			return
		}
		if tasks[queue] == nil {
			queues = append(queues, queue)
		}
		tasks[queue] = append(tasks[queue], id)
	})
	if err != nil {
		return err
	}
	for _, queue := range queues {
		err := migrate.Backward(ctx, s.c, key(queue, pending), func(id string) { visit(queue, id) })
		if err != nil {
			return err
		}
		for _, id := range tasks[queue] {
			visit(queue, id)
		}
	}
	return nil
}

// zsets are the structures that have a score for a task.
var zsets = []string{scheduled, retry, archived, lease}

const lease = "lease"

// answersPerTask is the number of commands by which Read reads a task: HMGET, and a ZSCORE for each of zsets.
const answersPerTask = 5

// Read implements migrate.Source.
func (s *Source) Read(ctx context.Context, queue string, ids []string) ([]migrate.Job, error) {
	var cmds []rueidis.Completed
	for _, id := range ids {
		fields := s.c.B().Hmget().Key(taskKey(queue, id)).Field("msg", "state", "pending_since")
		cmds = append(cmds, fields.Build())
		for _, name := range zsets {
			cmds = append(cmds, s.c.B().Zscore().Key(key(queue, name)).Member(id).Build())
		}
	}
	answers, now, err := migrate.DoWithTime(ctx, s.c, cmds...)
	if err != nil {
		return nil, err
	}
	var jobs []migrate.Job
	for i, group := range slices.Collect(slices.Chunk(answers, answersPerTask)) {
		jobs = append(jobs, s.job(ids[i], queue, group, now))
	}
	return jobs, nil
}

// found is a task as it is in Redis.
type found struct {
	id, queue, state string
	message          message
	since            time.Time            // when it became pending; zero = not known
	scores           map[string]time.Time // by the names in zsets
}

// job makes the Job of a task of the answers to its commands.
func (s *Source) job(id, queue string, answers []rueidis.RedisResult, now time.Time) migrate.Job {
	fields, err := answers[0].ToArray()
	if migrate.IsForeign(err) {
		return migrate.Refuse(id, "", lua.Invalid("task", id, "is not as asynq stores it: its key holds no hash"))
	}
	if err != nil || len(fields) != 3 {
		return migrate.Refuse(id, "", fmt.Errorf("task %s: %w", id, err))
	}
	data, msgErr := fields[0].ToString()
	f := found{id: id, queue: queue, scores: map[string]time.Time{}}
	f.state, _ = fields[1].ToString()
	if since, err := fields[2].AsInt64(); err == nil {
		f.since = time.Unix(0, since)
	}
	for i, name := range zsets {
		if score, err := answers[1+i].AsFloat64(); err == nil {
			f.scores[name] = time.UnixMilli(int64(score * 1000))
		}
	}
	switch {
	case msgErr != nil && f.state == "":
		return migrate.Job{ID: id, Fate: migrate.Gone}
	case msgErr != nil:
		return migrate.Refuse(id, f.state, lua.Invalid("task", id, "is not as asynq stores it: it has no msg"))
	}
	if f.message, err = decode([]byte(data)); err != nil {
		return migrate.Refuse(id, f.state, lua.Invalid("task", id, "%v", err))
	}
	return s.entry(f, now)
}
