package bullmq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
)

// found is a job or a job scheduler as Redis has it.
type found struct {
	queue, visited, id, mark string

	fields    map[string]string // nil: there is no such hash
	lock      time.Duration     // how long the lock of its worker still holds; 0 = it has none
	scores    map[string]float64
	list      string // the list that had it in the last Scan
	hasLogs   bool
	processed bool // it is a parent, and has results of its children

	// Of a scheduler, or of a job that one has made.
	schedulerName string
	nextMillis    float64 // time of the scheduler's next job; 0 = there is no such scheduler
	template      map[string]string
	hasNext       bool // BullMQ adds another job with the same deduplication ID when this one ends
}

// zsets are the structures that have a score for a job.
var zsets = []string{delayed, prioritized, completed, failed, waitingChildren}

// Read implements migrate.Source.
func (s *Source) Read(ctx context.Context, queue string, ids []string) ([]migrate.Job, error) {
	all := make([]found, len(ids))
	var cmds []rueidis.Completed
	for i := range ids {
		id, mark := idOf(ids[i])
		all[i] = found{queue: queue, visited: ids[i], id: id, mark: mark, scores: map[string]float64{},
			list: s.lists[queue][id]}
		key := s.key(queue, id)
		cmds = append(cmds, s.c.B().Hgetall().Key(key).Build(), s.c.B().Pttl().Key(key+":lock").Build(),
			s.c.B().Exists().Key(key+":logs").Build(), s.c.B().Exists().Key(key+":processed").Build())
		for _, zset := range zsets {
			cmds = append(cmds, s.c.B().Zscore().Key(s.key(queue, zset)).Member(id).Build())
		}
	}
	answers, now, err := migrate.DoWithTime(ctx, s.c, cmds...)
	if err != nil {
		return nil, err
	}
	perJob := 4 + len(zsets)
	for i := range all {
		if err := all[i].take(answers[i*perJob : (i+1)*perJob]); err != nil {
			return nil, fmt.Errorf("read job %s: %w", ids[i], err)
		}
	}
	if err := s.readRelated(ctx, queue, all); err != nil {
		return nil, err
	}
	jobs := make([]migrate.Job, len(ids))
	for i, f := range all {
		jobs[i] = s.job(f, now)
	}
	return jobs, nil
}

// take reads the answers about one job.
func (f *found) take(answers []rueidis.RedisResult) error {
	fields, err := answers[0].AsStrMap()
	if migrate.IsForeign(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(fields) > 0 {
		f.fields = fields
	}
	millis, err := answers[1].AsInt64()
	if err != nil {
		return err
	}
	f.lock = time.Duration(max(millis, 0)) * time.Millisecond
	logs, err := answers[2].AsInt64()
	if err != nil {
		return err
	}
	processed, err := answers[3].AsInt64()
	if err != nil {
		return err
	}
	f.hasLogs, f.processed = logs > 0, processed > 0
	for i, zset := range zsets {
		if score, err := answers[4+i].AsFloat64(); err == nil {
			f.scores[zset] = score
		}
	}
	return nil
}

// isJob reports whether the hash is that of a job. The hash of a scheduler has no timestamp.
func (f *found) isJob() bool { return f.fields["timestamp"] != "" && f.fields["data"] != "" }

// readRelated reads the schedulers of jobs that one has made, and whether a job has a successor by deduplication.
func (s *Source) readRelated(ctx context.Context, queue string, all []found) error {
	var cmds []rueidis.Completed
	var of []*found
	repeat := s.key(queue, "repeat")
	for i := range all {
		f := &all[i]
		f.schedulerName = f.fields["rjk"]
		if name, isRepeat := strings.CutPrefix(f.id, "repeat:"); isRepeat && !f.isJob() {
			f.schedulerName = name
		}
		if f.schedulerName == "" && f.fields["deid"] == "" {
			continue
		}
		of = append(of, f)
		cmds = append(cmds, s.c.B().Zscore().Key(repeat).Member(f.schedulerName).Build(),
			s.c.B().Hgetall().Key(repeat+":"+f.schedulerName).Build(),
			s.c.B().Exists().Key(s.key(queue, "dn:"+f.fields["deid"])).Build())
	}
	if len(cmds) == 0 {
		return nil
	}
	answers, err := migrate.Do(ctx, s.c, cmds...)
	if err != nil {
		return err
	}
	for i, f := range of {
		if score, err := answers[3*i].AsFloat64(); err == nil {
			f.nextMillis = score
		}
		if template, err := answers[3*i+1].AsStrMap(); err == nil {
			f.template = template
		}
		if n, err := answers[3*i+2].AsInt64(); err == nil {
			f.hasNext = n > 0
		}
	}
	return nil
}

// number reads a number as BullMQ writes it. Without one it is 0.
func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}
