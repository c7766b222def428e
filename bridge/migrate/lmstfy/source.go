package lmstfy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/lua"
)

// program is the name under which moved jobs are remembered.
const program = "lmstfy"

// Keys of lmstfy's Redis.
const (
	timerKey = "timer_set"
	poolKey  = "j" // j/NAMESPACE/QUEUE/ID: a string, which expires with the job
	readyKey = "q" // q/NAMESPACE/QUEUE: a list, the oldest job at its end
	deadKey  = "d" // d/NAMESPACE/QUEUE: a list, the oldest job at its end
)

// States of a job in lmstfy.
const (
	Ready    = "ready"
	Delayed  = "delayed"
	InFlight = "in_flight" // delivered to a consumer, and its ttr has not ended
	Dead     = "dead"
	Stray    = "stray" // in no structure: the server died while moving the job, so lmstfy will never deliver it
)

// queueID identifies a queue of lmstfy. Package migrate knows it as NAMESPACE/QUEUE. Neither part holds a slash,
// because the keys of jobs are split at slashes.
type queueID struct{ namespace, name string }

func (q queueID) String() string { return q.namespace + "/" + q.name }

func (q queueID) key(prefix string) string { return prefix + "/" + q.String() }

// SplitQueue returns the namespace and the name of a queue, as a Tally of package migrate names it: NAMESPACE/QUEUE.
func SplitQueue(queue string) (namespace, name string) {
	namespace, name, _ = strings.Cut(queue, "/")
	return namespace, name
}

func queueOf(queue string) queueID {
	namespace, name := SplitQueue(queue)
	return queueID{namespace, name}
}

func compareQueues(a, b queueID) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// Options says which jobs are moved.
type Options struct {
	Namespaces, Queues []string // only the jobs in these; empty = all
}

// Source reads the jobs of lmstfy. It implements migrate.Source and migrate.Preparer. It names a queue NAMESPACE/QUEUE.
type Source struct {
	c       rueidis.Client
	options Options

	placed map[queueID]map[string]entry // by queue and ID: where the last Scan found a job
}

var (
	_ migrate.Source   = (*Source)(nil)
	_ migrate.Preparer = (*Source)(nil)
)

// New returns a Source of the jobs of one pool of lmstfy, which are in one database of a Redis. ErrInvalid: the Redis
// is a cluster.
func New(ctx context.Context, c rueidis.Client, o Options) (*Source, error) {
	return &Source{c: c, options: o}, migrate.CheckServer(ctx, c)
}

// Program implements migrate.Source.
func (s *Source) Program() string { return program }

// Target implements migrate.Source: queue NAMESPACE/QUEUE becomes NAMESPACE:QUEUE, which a gateway serves under
// lmstfy's paths.
func (s *Source) Target(queue string) (string, error) {
	return lmstfy.QueueName(SplitQueue(queue))
}

// Prepare implements migrate.Preparer: the queue gets the group and the settings that a gateway needs.
func (s *Source) Prepare(ctx context.Context, to *admin.Admin, name string) (groups []string, _ error) {
	return []string{lmstfy.Group}, lmstfy.EnsureQueue(ctx, to, name)
}

func (s *Source) isWanted(queue queueID) bool {
	return (len(s.options.Namespaces) == 0 || slices.Contains(s.options.Namespaces, queue.namespace)) &&
		(len(s.options.Queues) == 0 || slices.Contains(s.options.Queues, queue.name))
}

// Scan implements migrate.Source. It visits the jobs of a queue in the order in which lmstfy would deliver them: ready
// jobs, jobs of timer_set, dead jobs, and last the jobs that it found in no structure. A job may move between two
// reads, and be read twice. Then the later reading counts.
func (s *Source) Scan(ctx context.Context, visit func(queue, id string)) error {
	jobs := map[queueID][]string{}
	err := migrate.Keys(ctx, s.c, poolKey+"/*", func(key string) {
		parts := strings.Split(key, "/")
		if len(parts) != 4 {
			return
		}
		if queue := (queueID{parts[1], parts[2]}); s.isWanted(queue) {
			jobs[queue] = append(jobs[queue], parts[3])
		}
	})
	if err != nil {
		return err
	}
	timer, err := s.timer(ctx)
	if err != nil {
		return err
	}
	s.placed = map[queueID]map[string]entry{}
	for _, queue := range slices.SortedFunc(maps.Keys(jobs), compareQueues) {
		ready, err := s.list(ctx, queue.key(readyKey), Ready)
		if err != nil {
			return err
		}
		dead, err := s.list(ctx, queue.key(deadKey), Dead)
		if err != nil {
			return err
		}
		latest := map[string]entry{}
		for _, e := range slices.Concat(timer[queue], ready, dead) { // the structures were read in this order
			latest[e.id] = e
		}
		s.placed[queue] = latest
		for _, e := range slices.Concat(ready, timer[queue], dead) {
			if latest[e.id] == e {
				visit(queue.String(), e.id)
			}
		}
		slices.Sort(jobs[queue])
		for _, id := range jobs[queue] {
			visit(queue.String(), id)
		}
	}
	return nil
}

// body is the value of a job's own key.
type body struct {
	bytes   []byte
	expires time.Time // zero = never
}

// Read implements migrate.Source. The place of a job is that of the last Scan.
func (s *Source) Read(ctx context.Context, name string, ids []string) ([]migrate.Job, error) {
	queue := queueOf(name)
	var cmds []rueidis.Completed
	for _, id := range ids {
		cmds = append(cmds, s.c.B().Pttl().Key(jobKey(queue, id)).Build(), s.c.B().Get().Key(jobKey(queue, id)).Build())
	}
	answers, now, err := migrate.DoWithTime(ctx, s.c, cmds...)
	if err != nil {
		return nil, err
	}
	jobs := make([]migrate.Job, 0, len(ids))
	for pair := range slices.Chunk(answers, 2) {
		jobs = append(jobs, s.job(queue, ids[len(jobs)], pair[0], pair[1], now))
	}
	return jobs, nil
}

// job makes the Job of the answers to PTTL and GET of a job's own key.
func (s *Source) job(queue queueID, id string, pttl, get rueidis.RedisResult, now time.Time) migrate.Job {
	bytes, err := get.AsBytes()
	switch {
	case migrate.IsForeign(err):
		return migrate.Refuse(id, "", lua.Invalid("job", id, "is not as lmstfy stores it: its key holds no string"))
	case err != nil: // the job was acknowledged, or has expired
		return migrate.Job{ID: id, Fate: migrate.Gone}
	}
	b := body{bytes: bytes}
	if ttl, _ := pttl.AsInt64(); ttl >= 0 { // ms; negative = the key is missing or never expires
		b.expires = now.Add(time.Duration(ttl) * time.Millisecond)
	}
	e, isPlaced := s.placed[queue][id]
	if !isPlaced {
		e = entry{id: id, state: Stray, tries: 1}
	}
	e.state = stateOf(e)
	r, err := record(e, b, now)
	if err != nil {
		return migrate.Refuse(id, e.state, err)
	}
	job := migrate.Job{ID: id, State: e.state, Entry: r, Place: e}
	if !isPlaced {
		job.Fate = migrate.Unsettled
	}
	return job
}

func jobKey(queue queueID, id string) string { return queue.key(poolKey) + "/" + id }
