package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of one read of a queue. Figures beyond these bounds are estimates, and are marked as estimates.
const (
	statsEntries = 10_000  // of each walk
	statsBytes   = 2 << 20 // of each walk
	statsScans   = 50      // steps of ZSCAN, 1,000 members each
)

// QueueStats is the contents of a queue, over all its partitions. Its counts are of messages, entries or dead letters,
// and taken one after the other. Sizes are in bytes. Times are by the server's clock.
type QueueStats struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Held       bool   `json:"held"`
	Flow

	Scheduled     int64       `json:"scheduled"` // includes retries, and overdue messages
	Overdue       int64       `json:"overdue"`
	OldestOverdue view.Millis `json:"oldest_overdue_ms"`
	Stalled       view.Millis `json:"stalled_ms"`        // how long messages have been overdue while none became ready
	NextDue       time.Time   `json:"next_due,omitzero"` // the earliest future due time

	WaitForKey   int64 `json:"wait_for_key,omitempty"`   // due, but another message of their key is in flight
	Turns        int64 `json:"turns,omitempty"`          // notes of keys: one per message in flight or waiting
	LooksSeconds int64 `json:"due_in_seconds,omitempty"` // due times that seem to be seconds instead of milliseconds

	// Ready is the number of entries that at least one group has not been given; without groups, of all entries.
	Ready        int64 `json:"ready"`
	ReadyApprox  bool  `json:"ready_approx,omitempty"`
	Entries      int64 `json:"entries"` // of the stream: ready, pending, and acknowledged but not freed yet
	Dead         int64 `json:"dead"`
	DedupWindows int64 `json:"dedup_windows"`
	// age of the newest dead letter; nil: there is none, or no group
	NewestDead *view.Millis `json:"newest_dead_ms,omitempty"`

	Groups []GroupStats `json:"groups"`
	// per key, by the last part of its name; absent if the server does not tell
	Memory   map[string]int64 `json:"memory_bytes,omitempty"`
	Policy   stream.Policy    `json:"policy"` // for groups without settings of their own
	Warnings []string         `json:"warnings,omitempty"`

	ByPartition []PartitionStats `json:"by_partition,omitempty"` // if the queue has several partitions
}

// PartitionStats is the contents of one partition of a queue: see QueueStats.
type PartitionStats struct {
	Partition   int    `json:"partition"`
	Scheduled   int64  `json:"scheduled"`
	Overdue     int64  `json:"overdue"`
	Ready       int64  `json:"ready"`
	ReadyApprox bool   `json:"ready_approx,omitempty"`
	Entries     int64  `json:"entries"`
	Pending     int64  `json:"pending"` // of all groups
	Dead        int64  `json:"dead"`
	Memory      *int64 `json:"memory_bytes,omitempty"` // absent if the server does not tell
}

// GroupStats is the state of one group of a queue.
type GroupStats struct {
	Name string `json:"name"`

	// Lag is the number of entries that the group has not been given. It is counted, because the server's own figure is
	// wrong after entries were deleted out of order: from the oldest entry and from the newest, until one count reaches
	// the group's last delivered entry. LagApprox: neither did within 10,000 entries or 2 MiB; then Lag is the server's
	// figure, or an upper bound if it has none.
	Lag       int64 `json:"lag"`
	LagApprox bool  `json:"lag_approx,omitempty"`

	// Waiting is how long the oldest of these entries has waited, as a lower bound; nil: none waits. Unread is how long
	// no consumer of the group has read meanwhile, in the partition where that is longest.
	Waiting *view.Millis `json:"waiting_ms,omitempty"`
	Unread  *view.Millis `json:"unread_ms,omitempty"`

	Pending       int64         `json:"pending"`
	OldestPending *PendingEntry `json:"oldest_pending,omitempty"` // the oldest entry, not the longest idle one

	// OldestHeld is the entry held for the longest time, of the oldest ones of each partition. Usual is the recent
	// duration of deliveries, in the partition where they took longest; nil: unknown.
	OldestHeld *PendingEntry `json:"oldest_held,omitempty"`
	Usual      *view.Millis  `json:"usual_ms,omitempty"`

	Consumers int64 `json:"consumers"` // each counts once, however many partitions it reads

	// Retrying is the number of scheduled retries for the group. RetryingApprox: extrapolated from the first 50,000
	// members of the schedule.
	Retrying       int64 `json:"retrying"`
	RetryingApprox bool  `json:"retrying_approx,omitempty"`

	// Dead is the number of the group's dead letters. DeadApprox: of the newest 10,000 letters or 2 MiB only.
	Dead       int64 `json:"dead"`
	DeadApprox bool  `json:"dead_approx,omitempty"`

	Policy stream.Policy `json:"policy"`
}

// Stats returns the contents of a queue, over all its partitions. A queue that does not exist is empty, not an error.
// It reads at most 6 MiB per partition, in bounded steps. lua.ErrWrongType: a key has another type; the error names it.
func Stats(ctx context.Context, c rueidis.Client, prefix, queue string) (QueueStats, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return QueueStats{}, err
	}
	parts := newPartitions(prefix, queue, counts)
	err = view.EachPartition(counts.Names(queue), func(i int, _ string) error {
		now, err := view.ServerTimeOf(ctx, c, parts[i].keys.Due)
		if err != nil {
			return err
		}
		r := deepReader{partitionReader{c, now, true}, prefix, parts[i]}
		return r.read(ctx)
	})
	if err != nil {
		return QueueStats{}, fmt.Errorf("stats of %s: %w", queue, err)
	}
	return statsOf(queue, parts), nil
}

func statsOf(queue string, parts []*partition) QueueStats {
	f, policy := sum(parts), parts[0].policies[""]
	s := QueueStats{
		Queue: queue, Partitions: len(parts), Held: policy.Held, Flow: f.flow, Scheduled: f.scheduled, Overdue: f.overdue,
		OldestOverdue: f.behind, Stalled: f.stalled, LooksSeconds: f.looksSeconds, WaitForKey: f.parked, Turns: f.turns,
		NewestDead: f.letterAge, NextDue: f.next,
		Ready: f.ready, ReadyApprox: f.readyApprox, Entries: f.entries, Dead: f.dead,
		DedupWindows: f.windows, Groups: []GroupStats{}, Memory: f.memory, Policy: policy, Warnings: f.warnings,
	}
	for _, g := range f.groups {
		s.Groups = append(s.Groups, GroupStats{
			Name: g.name, Lag: g.lag, LagApprox: g.lagApprox, Pending: g.pending, OldestPending: g.oldest,
			OldestHeld: g.longest, Usual: g.usual, Waiting: g.waiting, Unread: g.unread,
			Consumers: int64(len(g.consumers)), Retrying: g.retrying, RetryingApprox: g.retryingApprox, Dead: g.dead,
			DeadApprox: g.deadApprox, Policy: g.policy,
		})
	}
	if len(parts) > 1 {
		for _, p := range parts {
			s.ByPartition = append(s.ByPartition, p.stats())
		}
		s.Warnings = append(s.Warnings, comparePartitions(queue, parts, f.groups)...)
	}
	return s
}

func (p *partition) stats() PartitionStats {
	s := PartitionStats{Partition: p.index, Scheduled: p.scheduled, Overdue: p.overdue, Ready: p.ready,
		ReadyApprox: p.readyApprox, Entries: p.entries, Dead: p.dead}
	for _, g := range p.groups {
		s.Pending += g.pending
	}
	for _, n := range p.memory {
		if s.Memory == nil {
			s.Memory = new(int64)
		}
		*s.Memory += n
	}
	return s
}

// deepReader reads the Stats of one partition, step by step.
type deepReader struct {
	partitionReader
	prefix string
	p      *partition
}

func (r *deepReader) read(ctx context.Context) error {
	for _, step := range []func(context.Context) error{r.types, r.figures, r.oldest, r.retries, r.dead, r.memory} {
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
		err := step(call)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// keyTypes returns the expected types of a partition's keys.
func (p *partition) keyTypes() []struct{ name, key, want string } {
	k := p.keys
	return []struct{ name, key, want string }{
		{"due", k.Due, "zset"}, {"payload", k.Payload, "hash"}, {"meta", k.Meta, "hash"}, {"stream", k.Stream, "stream"},
		{"dead", k.Dead, "stream"}, {"wake", k.Wake, "stream"}, {"policy", k.Policy, "hash"}, {"seen", k.Seen, "zset"},
		{"calm", k.Calm, "hash"}, {"turns", k.Turns, "zset"},
	}
}

// types returns lua.ErrWrongType if a key has another type.
func (r *deepReader) types(ctx context.Context) error {
	keys := r.p.keyTypes()
	types, questions := make([]string, len(keys)), make([]view.Question, len(keys))
	for i, k := range keys {
		questions[i] = view.Into(r.c.B().Type().Key(k.key).Build(), &types[i], rueidis.RedisResult.ToString)
	}
	if err := view.Ask(ctx, r.c, questions...); err != nil {
		return err
	}
	var errs []error
	for i, k := range keys {
		if types[i] != k.want && types[i] != "none" {
			errs = append(errs, fmt.Errorf("key %s holds a %s where a %s belongs: %w", k.key, types[i], k.want, lua.ErrWrongType))
		}
	}
	return errors.Join(errs...)
}

// figures asks a Watcher's questions without bounds, reads the policies, and measures the lags.
func (r *deepReader) figures(ctx context.Context) error {
	p := r.p
	if err := view.Ask(ctx, r.c, r.counts(p)...); err != nil {
		return err
	}
	questions := r.groupQuestions(p)
	if p.overdue > 0 { // its age tells whether the partition is being drained
		newest := r.c.B().Xrevrange().Key(p.keys.Stream).End("+").Start("-").Count(1).Build()
		questions = append(questions, view.Entries(newest, &p.newest))
	}
	if err := view.AskLong(ctx, r.c, questions...); err != nil {
		return err
	}
	info := view.StreamInfo{Length: p.entries, Groups: p.infos}
	// No group is called "": its policy is the one of groups without settings of their own.
	policies, warning, err := stream.ReadPolicies(ctx, r.c, r.prefix, p.name, append(info.Names(), ""))
	if err != nil {
		return err
	}
	p.policies = policies
	if warning != nil {
		p.warnings = strings.Split(warning.Error(), "\n")
	}
	lags, err := measureLags(ctx, r.c, p.keys.Stream, info)
	if err != nil {
		return err
	}
	r.conclude(p, func(group int) groupLag { return lags[group] })
	return nil
}

// oldest reads the bodies of the oldest pending entries.
func (r *deepReader) oldest(ctx context.Context) error {
	var list []*PendingEntry
	for _, g := range r.p.groups {
		if g.oldest != nil {
			list = append(list, g.oldest)
		}
	}
	return readBodies(ctx, r.c, r.p.keys.Stream, list)
}

// retries counts the retries in the schedule, per group. Each has meta: without any meta there are none.
func (r *deepReader) retries(ctx context.Context) error {
	if r.p.metas == 0 {
		return nil
	}
	cursor := uint64(0)
	for range statsScans {
		var page rueidis.ScanEntry
		if err := view.AskLong(ctx, r.c, view.Scan(r.c.B().Zscan().Key(r.p.keys.Due).Cursor(cursor).
			Match("*"+lua.Separator+"*"+lua.Separator+"*").Count(1000).Build(), &page)); err != nil {
			return err
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			r.p.addRetries(page.Elements[i : i+1])
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
	for _, g := range r.p.groups {
		g.retrying, g.retryingApprox = g.retrying*max(statsScans*1000, r.p.scheduled)/(statsScans*1000), true
	}
	return nil
}

// dead counts the letters per group, newest first.
func (r *deepReader) dead(ctx context.Context) error {
	if r.p.figures.dead == 0 || len(r.p.groups) == 0 {
		return nil
	}
	entries, bytes, approx := 0, 0, false
	for letter, err := range view.Walk(ctx, r.c, r.p.keys.Dead, "-", "+", true) {
		if err != nil {
			return err
		}
		if approx = entries >= statsEntries || bytes >= statsBytes; approx {
			break
		}
		if entries++; entries == 1 {
			r.p.letterAge = ageOf(letter, r.now)
		}
		bytes += view.EntrySize(letter)
		if g := r.p.group(lua.ParseEntry(letter.ID, letter.FieldValues).Group); g != nil {
			g.dead++
		}
	}
	for _, g := range r.p.groups {
		g.deadApprox = approx
	}
	return nil
}

// memory asks for the size of each key. Servers and users without MEMORY USAGE leave it out.
func (r *deepReader) memory(ctx context.Context) error {
	keys := r.p.keyTypes()
	sizes, questions := make([]int64, len(keys)), make([][]view.Question, len(keys))
	for i, k := range keys {
		sizes[i] = -1
		questions[i] = []view.Question{view.Number(r.c.B().MemoryUsage().Key(k.key).Build(), &sizes[i])}
	}
	view.AskEach(ctx, r.c, questions...)
	for i, k := range keys {
		if sizes[i] >= 0 {
			if r.p.figures.memory == nil {
				r.p.figures.memory = map[string]int64{}
			}
			r.p.figures.memory[k.name] = sizes[i]
		}
	}
	return ctx.Err()
}
