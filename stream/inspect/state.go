package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one read of a StateReader.
const (
	stateScans     = 10       // steps of ZSCAN for one partition, of 1,000 members each
	stateMoreScans = 20       // further steps after the first one, of all partitions together
	stateEntries   = 1000     // length of a stream whose lags are counted if the server does not tell them
	stateMeasures  = 16       // number of such streams
	stateLetters   = 16 << 20 // bytes of dead letters, of all partitions together
	stateUnread    = 4 << 20  // bytes of entries read for their age, of all partitions together
)

// PartitionState is the state of one partition for metrics.
type PartitionState struct {
	Queue     string
	Partition int
	Err       error // lua.ErrWrongType: a key has another type; the rest is unknown
	Held      bool
	Flow

	Scheduled, Overdue   int64
	Behind               time.Duration // lateness of the oldest overdue message
	NextDue              time.Time     // the earliest future due time; zero = none
	Ready, Entries, Dead int64
	Memory               int64 // bytes; -1: the server does not tell

	Groups []GroupState

	// Letters counts the newest 10,000 dead letters by group and reason; Unread is the number of further ones. If
	// letters disappear and there are more than 64 KiB of them, the oldest are assumed to be gone, and all are read
	// again once a minute.
	Letters map[LetterKind]int64
	Unread  int64
}

// GroupState is the state of one group in one partition.
type GroupState struct {
	Name         string
	Lag, Pending int64

	// Brief: it is not among the first 64 groups, by name, so the fields below are unknown.
	Brief                    bool
	Retrying                 int64         // -1: the user may not count them
	OldestAge, OldestIdle    time.Duration // of the oldest pending entry: since it became ready, since a sign of life
	OldestHeld               time.Duration // of the same entry: since it was delivered, at least
	OldestUnread             time.Duration // how long the oldest undelivered entry has waited, at least
	Usual                    time.Duration // recent duration of deliveries; negative: unknown
	Consumers, IdleConsumers int64
}

// StateReader reads the state of partitions at intervals: the figures of a Watcher, and exact ones where a Watcher's
// bounds are too narrow for sums. It keeps the counts of dead letters, and reads only new ones. Not safe for concurrent
// use.
type StateReader struct {
	c       rueidis.Client
	prefix  string
	letters map[string]*letterCounts // by partition
	budget  stateBudget
}

// NewStateReader returns a reader for the partitions of a prefix.
func NewStateReader(c rueidis.Client, prefix string) *StateReader {
	return &StateReader{c: c, prefix: prefix, letters: map[string]*letterCounts{},
		budget: stateBudget{stateLetters, stateMeasures, stateMoreScans, stateUnread}}
}

// Read returns the states of partitions, given by name. It fails if one cannot be read, except for lua.ErrWrongType,
// which is in that partition's state. It sends about ten commands per partition, two per group and one per existing
// key, in two round trips per 64 partitions. A third round trip reads the oldest undelivered entry of groups with a
// backlog. Long schedules with retries, new dead letters, and lags that the server does not know take further ones.
func (r *StateReader) Read(ctx context.Context, names []string) ([]PartitionState, error) {
	if len(names) == 0 {
		clear(r.letters)
		return nil, nil
	}
	now, err := NewWatcher(r.c, r.prefix, nil).clock(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of queues: %w", err)
	}
	read := stateRead{partitionReader: partitionReader{c: r.c, now: now}, letters: r.letters, stateBudget: r.budget}
	for batch := range slices.Chunk(names, sampleBatch) {
		if err := read.batch(ctx, r.prefix, batch); err != nil {
			return nil, fmt.Errorf("read the state of queues: %w", err)
		}
	}
	for name := range r.letters {
		if !slices.Contains(names, name) {
			delete(r.letters, name)
		}
	}
	return read.states, nil
}

// stateRead is one call of Read.
type stateRead struct {
	partitionReader
	stateBudget
	letters map[string]*letterCounts
	states  []PartitionState
}

// stateBudget is the budget of one call for all partitions together, beyond the questions asked of each.
type stateBudget struct{ letterBytes, measures, scans, unreadBytes int }

// statePartition is a partition while it is read.
type statePartition struct {
	*partition
	memory [6]int64

	deniedScan bool // of ZSCAN, which counts retries
	retried    rueidis.ScanEntry
	fresh      []rueidis.XRangeSlice   // the newest letter, if it is not counted yet
	unread     [][]rueidis.XRangeSlice // by group, the oldest undelivered entry, if it was read
}

func (r *stateRead) batch(ctx context.Context, prefix string, names []string) error {
	parts := make([]*statePartition, len(names))
	var counts, details [][]view.Question
	for i, name := range names {
		_, index, _ := lua.SplitPartition(name)
		p := &statePartition{partition: &partition{name: name, index: index, keys: lua.NewKeys(prefix, name)}}
		parts[i] = p
		if r.letters[name] == nil {
			r.letters[name] = newLetterCounts()
		}
		counts = append(counts, r.stateCounts(p))
	}
	for i, err := range view.AskEach(ctx, r.c, counts...) {
		parts[i].err = err
	}
	for _, p := range parts {
		details = append(details, r.groupQuestions(p.partition))
	}
	for _, p := range parts {
		details = append(details, r.retries(p))
	}
	for _, p := range parts {
		details = append(details, r.memory(p)...) // each alone: a server or a user without the command leaves it out
	}
	answers := view.AskEach(ctx, r.c, details...)
	var unread [][]view.Question
	for _, p := range parts {
		unread = append(unread, r.oldestUnread(p))
	}
	view.AskEach(ctx, r.c, unread...) // failures are left out: the stream may be gone by now
	for i, p := range parts {
		err := cmp.Or(p.err, answers[i], answers[len(parts)+i])
		if p.deniedScan = errors.Is(answers[len(parts)+i], lua.ErrDenied); p.deniedScan {
			err = cmp.Or(p.err, answers[i])
		}
		if err != nil {
			p.err = err
		} else if p.err = r.rest(ctx, p); p.err == nil {
			continue
		}
		if !errors.Is(p.err, lua.ErrWrongType) {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		queue, index, _ := lua.SplitPartition(p.name)
		r.states = append(r.states, PartitionState{Queue: queue, Partition: index, Err: p.err})
	}
	return ctx.Err()
}

// stateCounts asks a Watcher's questions, for the next due time, and for dead letters that are not counted yet. If
// nothing is new, no body is read.
func (r *stateRead) stateCounts(p *statePartition) []view.Question {
	b, k, now := r.c.B, p.keys, strconv.FormatInt(r.now.UnixMilli(), 10)
	next := b().Zrange().Key(k.Due).Min("("+now).Max("("+lua.ParkedFrom).Byscore().Limit(0, 1).Withscores().Build()
	fresh := b().Xrevrange().Key(k.Dead).End("+").Start("(" + r.letters[p.name].last).Count(1).Build()
	return append(r.counts(p.partition), view.Scores(next, &p.upcoming), view.Entries(fresh, &p.fresh),
		view.Number(b().Zcard().Key(k.Turns).Build(), &p.turns))
}

// streamMemory is the index of the stream's size in statePartition.memory.
const streamMemory = 3

// memory asks for the sizes of existing keys.
func (r *stateRead) memory(p *statePartition) (lists [][]view.Question) {
	k := p.keys
	for i, one := range []struct {
		key   string
		holds int64
	}{{k.Due, p.scheduled}, {k.Payload, p.scheduled}, {k.Meta, p.metas}, {k.Stream, p.entries}, {k.Dead, p.figures.dead},
		{k.Turns, p.turns}} {
		if one.holds > 0 && p.err == nil {
			lists = append(lists, []view.Question{view.Number(r.c.B().MemoryUsage().Key(one.key).Build(), &p.memory[i])})
		}
	}
	return lists
}

// oldestUnread asks for the oldest undelivered entry of each group, as long as the byte budget lasts, by the mean size
// of the partition's entries.
func (r *stateRead) oldestUnread(p *statePartition) (all []view.Question) {
	size := int(p.memory[streamMemory] / max(1, p.entries))
	p.unread = make([][]rueidis.XRangeSlice, len(p.infos))
	if size == 0 { // unknown
		return nil
	}
	for i := range p.details {
		g := p.infos[i]
		if g.Lag == 0 || r.unreadBytes < size {
			continue
		}
		r.unreadBytes -= size
		next := r.c.B().Xrange().Key(p.keys.Stream).Start("(" + g.Last.String()).End("+").Count(1).Build()
		all = append(all, view.Entries(next, &p.unread[i]))
	}
	return all
}

// retries asks for the first retries in the schedule. Each has meta.
func (r *stateRead) retries(p *statePartition) []view.Question {
	if p.metas == 0 || p.scheduled == 0 {
		return nil
	}
	return []view.Question{r.scanRetries(p, 0)}
}

func (r *stateRead) scanRetries(p *statePartition, cursor uint64) view.Question {
	return view.Scan(r.c.B().Zscan().Key(p.keys.Due).Cursor(cursor).Match("*"+lua.Separator+"*"+lua.Separator+"*").
		Count(1000).Build(), &p.retried)
}

// rest reads what needs more than one round trip, and adds the state of the partition.
func (r *stateRead) rest(ctx context.Context, p *statePartition) error {
	lags, err := r.lags(ctx, p)
	if err != nil {
		return err
	}
	for i, next := range p.unread {
		if len(next) > 0 {
			lags[i].since = lua.EntryTime(next[0].ID)
		}
	}
	r.conclude(p.partition, func(i int) groupLag { return lags[i] })
	if err := r.countRetries(ctx, p); err != nil {
		return err
	}
	kinds, unread, err := r.countLetters(ctx, p)
	if err != nil {
		return err
	}
	queue, index, _ := lua.SplitPartition(p.name)
	s := PartitionState{
		Queue: queue, Partition: index, Held: p.held, Flow: p.flow, Scheduled: p.scheduled, Overdue: p.overdue,
		Behind: time.Duration(p.behind), NextDue: p.next, Ready: p.ready, Entries: p.entries, Dead: p.figures.dead,
		Letters: kinds, Unread: unread,
	}
	for _, size := range p.memory {
		s.Memory += size
	}
	if s.Memory == 0 && p.scheduled+p.entries+p.figures.dead > 0 {
		s.Memory = -1
	}
	for _, g := range p.groups {
		if p.deniedScan {
			g.retrying = -1
		}
		s.Groups = append(s.Groups, r.groupState(g))
	}
	for i, info := range p.infos[len(p.groups):] {
		s.Groups = append(s.Groups, GroupState{Name: info.Name, Lag: lags[len(p.groups)+i].entries, Pending: info.Pending,
			Brief: true, Retrying: -1})
	}
	r.states = append(r.states, s)
	return nil
}

func (r *stateRead) groupState(g *groupFigures) GroupState {
	s := GroupState{Name: g.name, Lag: g.lag, Pending: g.pending, Retrying: g.retrying, Usual: -1,
		Consumers: max(g.manyConsumers, int64(len(g.consumers)))}
	if g.oldest != nil {
		s.OldestAge, s.OldestIdle = max(0, r.now.Sub(g.oldest.Since)), time.Duration(g.oldest.Idle)
		s.OldestHeld = time.Duration(g.oldest.Held)
	}
	if g.waiting != nil {
		s.OldestUnread = time.Duration(*g.waiting)
	}
	if g.usual != nil {
		s.Usual = time.Duration(*g.usual)
	}
	for _, alive := range g.consumers {
		if !alive {
			s.IdleConsumers++
		}
	}
	return s
}

// lags returns the lags that the server tells. If it lacks any, they are counted, if that is cheap.
func (r *stateRead) lags(ctx context.Context, p *statePartition) ([]groupLag, error) {
	lags, approx := make([]groupLag, len(p.infos)), false
	for i, g := range p.infos {
		lags[i] = serverLag(p.entries, g)
		approx = approx || lags[i].approx
	}
	if !approx || p.entries > stateEntries || r.measures == 0 {
		return lags, nil
	}
	r.measures--
	return measureLags(ctx, r.c, p.keys.Stream, view.StreamInfo{Length: p.entries, Groups: p.infos})
}

// countRetries counts the retries in the schedule, in bounded steps. For a longer schedule it extrapolates.
func (r *stateRead) countRetries(ctx context.Context, p *statePartition) error {
	step := int64(1)
	for ; ; step++ {
		for i := 0; i+1 < len(p.retried.Elements); i += 2 {
			p.addRetries(p.retried.Elements[i : i+1])
		}
		cursor := p.retried.Cursor
		if cursor == 0 {
			return nil
		}
		if step == stateScans || r.scans == 0 {
			break
		}
		r.scans--
		p.retried = rueidis.ScanEntry{}
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		err := view.Ask(call, r.c, r.scanRetries(p, cursor))
		cancel()
		if err != nil {
			return err
		}
	}
	for _, g := range p.groups {
		g.retrying = g.retrying * max(step*1000, p.scheduled) / (step * 1000)
	}
	return nil
}
