package bullmq

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// States of a job.
const (
	waiting         = "wait"
	paused          = "paused"
	active          = "active"
	prioritized     = "prioritized"
	delayed         = "delayed"
	completed       = "completed"
	failed          = "failed"
	waitingChildren = "waiting-children"
)

// scheduler is the state of a job scheduler, and nextOfScheduler that of its next job if the job stays with it.
const (
	scheduler       = "job scheduler"
	nextOfScheduler = "next job of a job scheduler"
	ended           = "ended job scheduler"
)

// program is the name under which moved jobs are remembered.
const program = "bullmq"

// DefaultPrefix is the prefix of all keys that BullMQ uses without the option prefix.
const DefaultPrefix = "bull"

// Options says which jobs are moved, and how.
type Options struct {
	Prefix string   // BullMQ's option prefix; "" = DefaultPrefix
	Queues []string // only the jobs of these queues; empty = of all queues

	// FailedTo is the group whose dead letters failed jobs become. "" = failed jobs stay in BullMQ.
	FailedTo string
	// Schedulers also moves job schedulers, as recurrences, and their next jobs. Without it both stay in BullMQ.
	Schedulers bool
	// Zone is the time zone of schedulers that have a pattern and no tz, such as "Europe/Paris". BullMQ uses the zone of
	// its process for them. "" = they are refused.
	Zone string
}

// Source reads the jobs of BullMQ. It implements migrate.Source.
type Source struct {
	c       rueidis.Client
	options Options
	lists   map[string]map[string]string // by queue and ID: the list that had the job in the last Scan
}

var _ migrate.Source = (*Source)(nil)

// New returns a Source of the jobs in a Redis. ErrInvalid: the Redis is a cluster, or an option is not valid.
func New(ctx context.Context, c rueidis.Client, o Options) (*Source, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.FailedTo != "" {
		if err := lua.CheckGroup(o.FailedTo); err != nil {
			return nil, err
		}
	}
	if o.Zone != "" {
		if _, err := time.LoadLocation(o.Zone); err != nil {
			return nil, lua.Invalid("zone", o.Zone, "must be a name of the IANA database, such as Europe/Paris")
		}
	}
	return &Source{c: c, options: o}, migrate.CheckServer(ctx, c)
}

// Program implements migrate.Source.
func (s *Source) Program() string { return program }

// Target implements migrate.Source: a queue keeps its name.
func (s *Source) Target(queue string) (string, error) { return queue, nil }

// key returns the key of a job, or of one of the structures of a queue.
func (s *Source) key(queue, name string) string { return s.options.Prefix + ":" + queue + ":" + name }

// structures are the names in a queue's keys that are no IDs.
var structures = []string{waiting, paused, active, prioritized, delayed, completed, failed, waitingChildren, "meta",
	"id", "repeat", "events", "marker", "pc", "priority", "limiter", "stalled", "stalled-check"}

// suffixes end the names of the keys that a job has besides its hash.
var suffixes = []string{":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful"}

// parse splits a key, if it may be that of a job or a scheduler.
func (s *Source) parse(key string) (queue, id string, ok bool) {
	rest, _ := strings.CutPrefix(key, s.options.Prefix+":")
	queue, id, ok = strings.Cut(rest, ":")
	if !ok || id == "" || slices.Contains(structures, id) {
		return "", "", false
	}
	for _, prefix := range []string{"de:", "dn:", "metrics:"} {
		if strings.HasPrefix(id, prefix) {
			return "", "", false
		}
	}
	for _, suffix := range suffixes {
		if strings.HasSuffix(id, suffix) {
			return "", "", false
		}
	}
	return queue, id, true
}

func (s *Source) isWanted(queue string) bool {
	return len(s.options.Queues) == 0 || slices.Contains(s.options.Queues, queue)
}

// A job is visited by its ID, an @, and a mark that tells it from other jobs that had the ID: BullMQ numbers jobs 1, 2,
// 3, and begins anew after obliterate. The mark of a job is its timestamp, and that of a scheduler is its times.
func visited(id, mark string) string { return id + "@" + mark }

// idOf returns the ID and the mark of a visited job.
func idOf(visited string) (id, mark string) {
	id, mark, _ = cutLast(visited, "@")
	return id, mark
}

// markFields are the fields of a hash from which markOf makes the mark.
var markFields = []string{"timestamp", "pattern", "every", "tz"}

func markOf(fields map[string]string) string {
	if fields["timestamp"] != "" {
		return fields["timestamp"]
	}
	return strings.Join([]string{fields["pattern"], fields["every"], fields["tz"]}, "/")
}

// cutLast splits a text at its last separator.
func cutLast(text, separator string) (before, after string, ok bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// literal makes a glob pattern that matches only the text.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// Scan implements migrate.Source. It visits the waiting jobs first, the oldest first. So Remove finds each at the end
// of its list. It keeps in memory which list each job was in, because Redis cannot tell this of one job without reading
// the whole list.
func (s *Source) Scan(ctx context.Context, visit func(queue, id string)) error {
	ids := map[string][]string{}
	var queues []string
	err := migrate.Keys(ctx, s.c, literal.Replace(s.options.Prefix)+":*", func(key string) {
		queue, id, ok := s.parse(key)
		if !ok || !s.isWanted(queue) {
			return
		}
		if ids[queue] == nil {
			queues = append(queues, queue)
		}
		ids[queue] = append(ids[queue], id)
	})
	if err != nil {
		return err
	}
	s.lists = map[string]map[string]string{}
	for _, queue := range queues {
		marks, err := s.marks(ctx, queue, ids[queue])
		if err != nil {
			return err
		}
		s.lists[queue] = map[string]string{}
		for _, list := range []string{waiting, paused, active} {
			err := migrate.Backward(ctx, s.c, s.key(queue, list), func(id string) {
				s.lists[queue][id] = list
				if mark, isJob := marks[id]; isJob {
					visit(queue, visited(id, mark))
				}
			})
			if err != nil {
				return err
			}
		}
		for _, id := range ids[queue] {
			if mark, isJob := marks[id]; isJob {
				visit(queue, visited(id, mark))
			}
		}
	}
	return nil
}

// marksAtOnce is how many marks are read in one round trip.
const marksAtOnce = 1000

// marks returns the marks of jobs and schedulers, by their IDs. A key that is no hash has none.
func (s *Source) marks(ctx context.Context, queue string, ids []string) (map[string]string, error) {
	all := make(map[string]string, len(ids))
	for page := range slices.Chunk(ids, marksAtOnce) {
		cmds := make([]rueidis.Completed, len(page))
		for i, id := range page {
			cmds[i] = s.c.B().Hmget().Key(s.key(queue, id)).Field(markFields...).Build()
		}
		answers, err := migrate.Do(ctx, s.c, cmds...)
		if err != nil {
			return nil, err
		}
		for i, answer := range answers {
			values, err := answer.ToArray()
			if err != nil { // another program has written a key of another type
				continue
			}
			fields := map[string]string{}
			for n, value := range values {
				if text, err := value.ToString(); err == nil {
					fields[markFields[n]] = text
				}
			}
			all[page[i]] = markOf(fields)
		}
	}
	return all, nil
}
