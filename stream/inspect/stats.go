package inspect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of one look at a queue. What lies beyond them is estimated, and marked so.
const (
	statsEntries = 10_000  // of each walk
	statsBytes   = 2 << 20 // of each walk
	statsScans   = 50      // steps of ZSCAN, 1,000 members each
)

// QueueStats is what a queue holds. Counts are of one moment each, not of the same moment.
type QueueStats struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Held       bool   `json:"held"`

	Scheduled     int64       `json:"scheduled"` // with retries, and with what is overdue
	Overdue       int64       `json:"overdue"`
	OldestOverdue view.Millis `json:"oldest_overdue_ms"`
	NextDue       time.Time   `json:"next_due,omitzero"` // the earliest due time that is still to come

	// Ready is how many entries at least one group has not been given yet; all, when there are no groups.
	Ready        int64 `json:"ready"`
	ReadyApprox  bool  `json:"ready_approx,omitempty"`
	Entries      int64 `json:"entries"` // of the stream: ready, pending, and acknowledged but not freed yet
	Dead         int64 `json:"dead"`
	DedupWindows int64 `json:"dedup_windows"`

	Groups []GroupStats `json:"groups"`
	// per key, by the last part of its name; absent where the server does not say
	Memory   map[string]int64 `json:"memory_bytes,omitempty"`
	Policy   stream.Policy    `json:"policy"` // for groups without settings of their own
	Warnings []string         `json:"warnings,omitempty"`

	ByPartition []PartitionStats `json:"by_partition,omitempty"` // of a queue that has more than one
}

// GroupStats is what a queue holds for one group.
type GroupStats struct {
	Name string `json:"name"`

	// Lag is how many entries the group has not been given yet. It is counted, not taken from the server, whose own figure is
	// wrong after entries were deleted out of order: the entries up to the group's last delivered one are counted from the oldest
	// on, and those after it from the newest on, whichever ends first. LagApprox: neither ended within 10,000 entries or 2 MiB;
	// then it is the server's figure, or if it has none, at most what is given here.
	Lag       int64 `json:"lag"`
	LagApprox bool  `json:"lag_approx,omitempty"`

	Pending       int64         `json:"pending"`
	OldestPending *PendingEntry `json:"oldest_pending,omitempty"` // the oldest entry, not the one that is idle for longest
	Consumers     int64         `json:"consumers"`                // each counts once, in however many partitions it reads

	// Retrying is how many retries are scheduled for the group. RetryingApprox: projected from the first 50,000 members of the
	// schedule.
	Retrying       int64 `json:"retrying"`
	RetryingApprox bool  `json:"retrying_approx,omitempty"`

	// Dead is how many dead letters the group has. DeadApprox: of the newest 10,000 letters or 2 MiB only.
	Dead       int64 `json:"dead"`
	DeadApprox bool  `json:"dead_approx,omitempty"`

	Policy stream.Policy `json:"policy"`
}

// Stats returns what a queue holds, in all its partitions together. One that does not exist holds nothing. It reads about 20
// requests' worth, at most 6 MiB, per partition in bounded steps. lua.ErrWrongType: a key holds something else; the error names
// it.
func Stats(ctx context.Context, c rueidis.Client, prefix, queue string) (QueueStats, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return QueueStats{}, err
	}
	parts := make([]inspection, counts.Latest())
	err = view.EachPartition(counts.Names(queue), func(i int, name string) error {
		parts[i] = newInspection(c, prefix, name)
		return parts[i].run(ctx)
	})
	if err != nil {
		return QueueStats{}, fmt.Errorf("stats of %s: %w", queue, err)
	}
	whole := parts[0]
	if len(parts) > 1 {
		whole = mergePartitions(queue, parts)
	}
	whole.stats.Partitions = len(parts)
	whole.judge()
	return whole.stats, nil
}

func newInspection(c rueidis.Client, prefix, name string) inspection {
	return inspection{
		c: c, prefix: prefix, keys: lua.NewKeys(prefix, name), stats: QueueStats{Queue: name, Groups: []GroupStats{}},
		consumers: map[string]map[string]bool{},
	}
}

func (s *inspection) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.types, s.schedule, s.groups, s.retries, s.dead, s.memory} {
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout) // rueidis repeats reads for as long as it lives
		err := step(call)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// inspection gathers the stats of one partition, step by step.
type inspection struct {
	c                rueidis.Client
	prefix           string
	keys             lua.Keys
	stats            QueueStats
	stream           view.StreamInfo
	looksLikeSeconds int64
	consumers        map[string]map[string]bool // group → names
}

type keyType struct{ name, key, want string }

func (s *inspection) all() []keyType {
	k := s.keys
	return []keyType{
		{"due", k.Due, "zset"}, {"payload", k.Payload, "hash"}, {"meta", k.Meta, "hash"}, {"stream", k.Stream, "stream"},
		{"dead", k.Dead, "stream"}, {"wake", k.Wake, "stream"}, {"policy", k.Policy, "hash"}, {"seen", k.Seen, "zset"},
		{"calm", k.Calm, "hash"},
	}
}

// types refuses a queue of which a key holds something else.
func (s *inspection) types(ctx context.Context) error {
	var cmds []rueidis.Completed
	for _, k := range s.all() {
		cmds = append(cmds, s.c.B().Type().Key(k.key).Build())
	}
	var errs []error
	for i, reply := range s.c.DoMulti(ctx, cmds...) {
		k := s.all()[i]
		got, err := reply.ToString()
		if err != nil {
			return lua.Classify("TYPE "+k.key, err)
		}
		if got != k.want && got != "none" {
			errs = append(errs, fmt.Errorf("key %s holds a %s where a %s belongs: %w", k.key, got, k.want, lua.ErrWrongType))
		}
	}
	return errors.Join(errs...)
}

func (s *inspection) schedule(ctx context.Context) error {
	now, err := view.ServerTime(ctx, s.c)
	if err != nil {
		return err
	}
	ms := strconv.FormatInt(now.UnixMilli(), 10)
	due, b := s.keys.Due, s.c.B
	replies := s.c.DoMulti(ctx,
		b().Zcard().Key(due).Build(),
		b().Zcount().Key(due).Min("-inf").Max(ms).Build(),
		b().Zcount().Key(due).Min("1e9").Max("1e11").Build(),
		b().Zcard().Key(s.keys.Seen).Build(),
		b().Xlen().Key(s.keys.Dead).Build(),
		b().Zrange().Key(due).Min("0").Max("0").Withscores().Build(),
		b().Zrangebyscore().Key(due).Min("("+ms).Max("+inf").Withscores().Limit(0, 1).Build(),
	)
	for i, n := range []*int64{&s.stats.Scheduled, &s.stats.Overdue, &s.looksLikeSeconds, &s.stats.DedupWindows, &s.stats.Dead} {
		if *n, err = replies[i].AsInt64(); err != nil {
			return lua.Classify("schedule "+due, err)
		}
	}
	head, err := replies[5].AsZScores()
	if err != nil {
		return lua.Classify("ZRANGE "+due, err)
	}
	if len(head) > 0 && s.stats.Overdue > 0 {
		s.stats.OldestOverdue = view.Millis(now.Sub(view.ScoreTime(head[0].Score)))
	}
	next, err := replies[6].AsZScores()
	if err != nil {
		return lua.Classify("ZRANGEBYSCORE "+due, err)
	}
	if len(next) > 0 {
		s.stats.NextDue = view.ScoreTime(next[0].Score)
	}
	return nil
}

func (s *inspection) groups(ctx context.Context) error {
	var err error
	if s.stream, err = view.ReadStream(ctx, s.c, s.keys.Stream); err != nil {
		return err
	}
	s.stats.Entries, s.stats.Ready = s.stream.Length, s.stream.Length
	// No group is called "": its policy is what counts for groups without settings of their own.
	policies, warning, err := stream.ReadPolicies(ctx, s.c, s.prefix, s.stats.Queue, append(s.stream.Names(), ""))
	if err != nil {
		return err
	}
	s.stats.Policy, s.stats.Held = policies[""], policies[""].Held
	s.warn(warning)
	lags, err := measureLags(ctx, s.c, s.keys.Stream, s.stream)
	if err != nil {
		return err
	}
	if len(lags) > 0 {
		s.stats.Ready = 0
	}
	for i, g := range s.stream.Groups {
		one := GroupStats{Name: g.Name, Pending: g.Pending, Lag: lags[i].entries, LagApprox: lags[i].approx,
			Policy: policies[g.Name]}
		if one.Lag >= s.stats.Ready {
			s.stats.Ready, s.stats.ReadyApprox = one.Lag, one.LagApprox
		}
		consumers, err := view.ReadConsumers(ctx, s.c, s.keys.Stream, g.Name)
		if err != nil {
			return err
		}
		s.consumers[g.Name] = map[string]bool{}
		for _, consumer := range consumers {
			if consumer.Name != lua.ReclaimConsumer {
				s.consumers[g.Name][consumer.Name] = true
			}
		}
		one.Consumers = int64(len(s.consumers[g.Name]))
		if g.Pending > 0 {
			oldest, err := pendingEntries(ctx, s.c, s.keys.Stream, g.Name, PendingFilter{}, 1)
			if err != nil && !errors.Is(err, lua.ErrNoGroup) {
				return err
			}
			if len(oldest) > 0 {
				if err := readBodies(ctx, s.c, s.keys.Stream, 0, oldest); err != nil {
					return err
				}
				one.OldestPending = &oldest[0]
			}
		}
		s.stats.Groups = append(s.stats.Groups, one)
	}
	return nil
}

// retries counts the members of the schedule that are retries, per group. Each has meta: without any there is nothing to count.
func (s *inspection) retries(ctx context.Context) error {
	metas, err := s.c.Do(ctx, s.c.B().Hlen().Key(s.keys.Meta).Build()).AsInt64()
	if err != nil {
		return lua.Classify("HLEN "+s.keys.Meta, err)
	}
	if metas == 0 {
		return nil
	}
	counts := map[string]int64{}
	complete, cursor := false, uint64(0)
	for range statsScans {
		page, err := s.c.Do(ctx, s.c.B().Zscan().Key(s.keys.Due).Cursor(cursor).Match("*"+lua.Separator+"*"+lua.Separator+"*").
			Count(1000).Build()).AsScanEntry()
		if err != nil {
			return lua.Classify("ZSCAN "+s.keys.Due, err)
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			if m := lua.ParseMember(page.Elements[i]); m.Kind != lua.MemberFirst {
				counts[m.Group]++
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			complete = true
			break
		}
	}
	for i := range s.stats.Groups {
		g := &s.stats.Groups[i]
		if g.Retrying = counts[g.Name]; !complete {
			g.Retrying, g.RetryingApprox = g.Retrying*max(statsScans*1000, s.stats.Scheduled)/(statsScans*1000), true
		}
	}
	return nil
}

// dead counts the letters per group, newest first.
func (s *inspection) dead(ctx context.Context) error {
	if s.stats.Dead == 0 || len(s.stats.Groups) == 0 {
		return nil
	}
	counts := map[string]int64{}
	entries, bytes, approx := 0, 0, false
	for letter, err := range view.Walk(ctx, s.c, s.keys.Dead, "-", "+", true) {
		if err != nil {
			return err
		}
		if approx = entries >= statsEntries || bytes >= statsBytes; approx {
			break
		}
		entries++
		bytes += view.EntrySize(letter)
		counts[lua.ParseEntry(letter.ID, letter.FieldValues).Group]++
	}
	for i := range s.stats.Groups {
		g := &s.stats.Groups[i]
		g.Dead, g.DeadApprox = counts[g.Name], approx
	}
	return nil
}

// memory asks for the size of each key. Servers and users without MEMORY USAGE leave it out.
func (s *inspection) memory(ctx context.Context) error {
	var cmds []rueidis.Completed
	for _, k := range s.all() {
		cmds = append(cmds, s.c.B().MemoryUsage().Key(k.key).Build())
	}
	for i, reply := range s.c.DoMulti(ctx, cmds...) {
		if n, err := reply.AsInt64(); err == nil {
			if s.stats.Memory == nil {
				s.stats.Memory = map[string]int64{}
			}
			s.stats.Memory[s.all()[i].name] = n
		}
	}
	return ctx.Err()
}

func (s *inspection) warn(err error) {
	if err != nil {
		s.stats.Warnings = append(s.stats.Warnings, strings.Split(err.Error(), "\n")...)
	}
}

// judge adds warnings for what is there but looks wrong.
func (s *inspection) judge() {
	say := func(format string, args ...any) {
		s.stats.Warnings = append(s.stats.Warnings, fmt.Sprintf(format, args...))
	}
	st := s.stats
	if st.Entries > 0 && len(st.Groups) == 0 {
		say("no consumer group: %d ready entries wait for one, and are never freed", st.Entries)
	}
	for _, g := range st.Groups {
		if lua.CheckGroup(g.Name) != nil {
			say("group %.64q has a name that no retry can carry: what it abandons stays pending", g.Name)
		}
		if g.Consumers == 0 && g.Lag > 0 {
			say("group %q has no consumers, and %d entries wait for it; they stay in memory until it has acknowledged them",
				g.Name, g.Lag)
		}
	}
	if s.looksLikeSeconds > 0 {
		say("%d due times look like seconds where milliseconds belong: they count as 1970, and are delivered at once",
			s.looksLikeSeconds)
	}
	if time.Duration(st.OldestOverdue) > 10*time.Second && !st.Held {
		say("messages are overdue by %s: is a bridge running?", st.OldestOverdue)
	}
}
