package delayqueue

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// States of a message, by the names of their structures.
const (
	pending = "pending"
	ready   = "ready"
	unack   = "unack"
	retry   = "retry"
	garbage = "garbage"
)

const retryCounts = "retry:cnt"

// program is the name under which moved messages are remembered.
const program = "delayqueue"

// Source reads the messages of delayqueue. It implements migrate.Source. A queue is named by the beginning of its keys,
// dp:QUEUE or {dp:QUEUE}.
type Source struct {
	c      rueidis.Client
	queues []string // names without the prefix; empty = all

	listed map[string]map[string]string // by queue and ID: the list in which the last Scan found a message
}

var _ migrate.Source = (*Source)(nil)

// New returns a Source of the messages in a Redis: of the named queues, or of all. ErrInvalid: the Redis is a cluster.
func New(ctx context.Context, c rueidis.Client, queues ...string) (*Source, error) {
	return &Source{c: c, queues: queues}, migrate.CheckServer(ctx, c)
}

// Program implements migrate.Source.
func (s *Source) Program() string { return program }

// Target implements migrate.Source: a queue keeps its name, without the prefix of its keys.
func (s *Source) Target(queue string) (string, error) { return nameOf(queue), nil }

func nameOf(queue string) string {
	return strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(queue, "{"), "}"), "dp:")
}

func key(queue, structure string) string { return queue + ":" + structure }

func payloadKey(queue, id string) string { return key(queue, "msg:"+id) }

// parsePayloadKey splits the key of a payload. The name of a queue may hold colons, and an ID holds none.
func parsePayloadKey(key string) (queue, id string, ok bool) {
	const middle = ":msg:"
	i := strings.LastIndex(key, middle)
	if i < 0 {
		return "", "", false
	}
	queue, id = key[:i], key[i+len(middle):]
	plain := strings.HasPrefix(queue, "dp:")
	tagged := strings.HasPrefix(queue, "{dp:") && strings.HasSuffix(queue, "}")
	return queue, id, plain || tagged
}

// Scan implements migrate.Source. It visits messages of lists first, the oldest first.
func (s *Source) Scan(ctx context.Context, visit func(queue, id string)) error {
	messages := map[string][]string{}
	for _, pattern := range []string{"dp:*:msg:*", "{dp:*}:msg:*"} {
		err := migrate.Keys(ctx, s.c, pattern, func(key string) {
			queue, id, ok := parsePayloadKey(key)
			if ok && (len(s.queues) == 0 || slices.Contains(s.queues, nameOf(queue))) {
				messages[queue] = append(messages[queue], id)
			}
		})
		if err != nil {
			return err
		}
	}
	s.listed = map[string]map[string]string{}
	for queue, ids := range messages {
		s.listed[queue] = map[string]string{}
		for _, list := range []string{ready, retry} {
			err := migrate.Backward(ctx, s.c, key(queue, list), func(id string) {
				s.listed[queue][id] = list
				visit(queue, id)
			})
			if err != nil {
				return err
			}
		}
		for _, id := range ids {
			visit(queue, id)
		}
	}
	return nil
}

// answersPerMessage is the number of commands by which Read reads a message.
const answersPerMessage = 6

// Read implements migrate.Source.
func (s *Source) Read(ctx context.Context, queue string, ids []string) ([]migrate.Job, error) {
	b := s.c.B()
	var cmds []rueidis.Completed
	for _, id := range ids {
		cmds = append(cmds,
			b.Get().Key(payloadKey(queue, id)).Build(),
			b.Pttl().Key(payloadKey(queue, id)).Build(),
			b.Hget().Key(key(queue, retryCounts)).Field(id).Build(),
			b.Zscore().Key(key(queue, pending)).Member(id).Build(),
			b.Zscore().Key(key(queue, unack)).Member(id).Build(),
			b.Sismember().Key(key(queue, garbage)).Member(id).Build())
	}
	answers, now, err := migrate.DoWithTime(ctx, s.c, cmds...)
	if err != nil {
		return nil, err
	}
	jobs := make([]migrate.Job, 0, len(ids))
	for group := range slices.Chunk(answers, answersPerMessage) {
		id := ids[len(jobs)]
		jobs = append(jobs, job(id, s.listed[queue][id], group, now))
	}
	return jobs, nil
}

// job makes the Job of a message of the answers to its commands. list is the list in which Scan found the message.
func job(id, list string, answers []rueidis.RedisResult, now time.Time) migrate.Job {
	payload, err := answers[0].AsBytes()
	switch {
	case migrate.IsForeign(err):
		return migrate.Refuse(id, "", lua.Invalid("message", id, "is not as delayqueue stores it: its key holds no string"))
	case err != nil:
		return migrate.Job{ID: id, Fate: migrate.Gone}
	}
	retries, _ := answers[2].AsInt64()
	retries = max(0, retries)
	r := admin.Record{Kind: admin.RecordScheduled, ID: id, Payload: payload, Due: now.UnixMilli(),
		MaxAttempts: int(min(retries+1, lua.MaxAttemptsLimit))}
	if ttl, _ := answers[1].AsInt64(); ttl > 0 {
		r.Expires = now.UnixMilli() + ttl
	}
	j := migrate.Job{ID: id, State: list}
	if doomed, _ := answers[5].AsInt64(); doomed == 1 {
		j.Fate, j.State = migrate.Stays, garbage
		return j
	}
	due, pendingErr := answers[3].AsFloat64()
	deadline, unackErr := answers[4].AsFloat64()
	switch {
	case pendingErr == nil:
		j.State, r.Due = pending, milliseconds(due)
	case unackErr == nil: // its consumer makes an attempt, so the retries are all that is left
		j.State, r.Due = unack, milliseconds(deadline)
		r.MaxAttempts = int(min(max(1, retries), lua.MaxAttemptsLimit))
	case list == "":
		j.Fate = migrate.Unsettled
	}
	j.Entry = r
	return j
}

func milliseconds(score float64) int64 { return int64(max(0, score) * 1000) }
