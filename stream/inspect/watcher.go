package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Watcher looks at queues again and again, at little cost: eight to twelve commands per partition, and up to two per group, in
// two pipelines for every 64 partitions; of the newest entries and dead letters it reads at most about 2 MiB. It changes nothing.
// Queues with more than 512 partitions together take turns; until its next turn a queue keeps its last sample. It must not be
// used concurrently.
type Watcher struct {
	c      rueidis.Client
	prefix string
	only   []string // nil = all queues that the bridges know

	known map[string]lua.Counts
	seen  map[string]*lastSample
	turn  int            // where the next look begins
	sizes map[string]int // partition → bytes of its newest entries, each
	bytes int            // that this look may still read of newest entries

	defaults map[string]string
	stood    map[string]map[string]standing // by partition and group
	letters  map[string]letterCount         // by partition
}

// lastSample is the last look at a queue.
type lastSample struct {
	sample QueueSample
	at     time.Time // local
	counts watchedCounts
	late   *view.Millis
	lateAt time.Time // by the server's clock
}

// NewWatcher returns a watcher of these queues; without any, of all that the bridges know.
func NewWatcher(c rueidis.Client, prefix string, queues []string) *Watcher {
	return &Watcher{c: c, prefix: prefix, only: queues, seen: map[string]*lastSample{}, sizes: map[string]int{},
		stood: map[string]map[string]standing{}, letters: map[string]letterCount{}}
}

// Look returns what the queues hold, by name, with rates since the look before. A queue that cannot be looked at says so itself,
// in Err; Look fails when the server cannot be asked, or no queue can be looked at.
func (w *Watcher) Look(ctx context.Context) ([]QueueSample, error) { return w.LookAt(ctx, nil) }

// LookAt is Look at those queues alone that are wanted; nil: all are. What is not wanted costs nothing, and has no rates at the
// look after.
func (w *Watcher) LookAt(ctx context.Context, wanted func(queue string) bool) ([]QueueSample, error) {
	now, err := w.clock(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at queues: %w", err)
	}
	call, cancel := context.WithTimeout(ctx, sampleTimeout)
	registry, err := lua.ReadRegistry(call, w.c, lua.NewGlobals(w.prefix))
	cancel()
	switch {
	case err == nil:
		w.known = registry
	case w.known == nil: // else what was known counts: on a cluster the registry may be away while most queues are not
		return nil, fmt.Errorf("look at queues: %w", err)
	}
	names := w.only
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(w.known))
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if wanted != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !wanted(name) })
	}
	if err := w.lookAt(ctx, w.inTurn(names), now); err != nil {
		return nil, fmt.Errorf("look at queues: %w", err)
	}
	samples := make([]QueueSample, 0, len(names))
	for _, name := range names {
		if s := w.seen[name]; s != nil {
			samples = append(samples, s.sample)
		}
	}
	w.forget(names)
	return samples, nil
}

// clock asks for the time of the first server that answers: of a cluster, one may be away.
func (w *Watcher) clock(ctx context.Context) (now time.Time, err error) {
	for _, node := range w.c.Nodes() {
		call, cancel := context.WithTimeout(ctx, sampleTimeout)
		now, err = view.ServerTime(call, node)
		cancel()
		if err == nil {
			return now, nil
		}
	}
	return now, err
}

// inTurn returns the queues to look at now: all, or as many as have 512 partitions together, at least one.
func (w *Watcher) inTurn(names []string) (turn []string) {
	if len(names) == 0 {
		return nil
	}
	w.turn %= len(names)
	partitions := 0
	for i := range names {
		name := names[(w.turn+i)%len(names)]
		if partitions += w.known[name].Latest(); partitions > samplePartitions && i > 0 {
			break
		}
		turn = append(turn, name)
	}
	if w.turn += len(turn); len(turn) == len(names) {
		w.turn++ // so that the bytes of newest entries are not always those of the same queues
	}
	return turn
}

func (w *Watcher) lookAt(ctx context.Context, queues []string, now time.Time) error {
	w.bytes = sampleBytes
	byQueue := make([][]*partition, len(queues))
	for i, queue := range queues {
		byQueue[i] = newPartitions(w.prefix, queue, w.known[queue])
	}
	w.read(ctx, slices.Concat(byQueue...), now)
	at, failed := time.Now(), []error{}
	for i, queue := range queues {
		s := w.seen[queue]
		sample, counts := sampleOf(queue, byQueue[i]), countPartitions(byQueue[i])
		if sample.Err != nil {
			failed = append(failed, sample.Err)
			if s == nil {
				w.seen[queue] = &lastSample{sample: sample, at: at}
			} else {
				s.sample.Err, s.sample.PerSecond, s.counts = sample.Err, nil, nil
			}
			continue
		}
		next := &lastSample{at: at, counts: counts}
		if s != nil {
			next.late, next.lateAt = s.late, s.lateAt
			if s.counts != nil {
				fillRates(&sample, s.counts, counts, at.Sub(s.at))
			}
		}
		if sample.Late != nil {
			next.late, next.lateAt = sample.Late, now
		} else if now.Sub(next.lateAt) < time.Minute {
			sample.Late = next.late
		}
		next.sample = sample
		w.seen[queue] = next
	}
	// All queues failed, and not because of what they hold: the server is away, and the first error says why.
	if len(queues) > 0 && len(failed) == len(queues) && !errors.Is(failed[0], lua.ErrWrongType) {
		return failed[0]
	}
	return nil
}

// forget drops what is remembered of queues that are not watched any more.
func (w *Watcher) forget(names []string) {
	maps.DeleteFunc(w.seen, func(name string, _ *lastSample) bool {
		_, found := slices.BinarySearch(names, name)
		return !found
	})
	gone := func(name string) bool {
		queue, _, _ := lua.SplitPartition(name)
		return w.seen[queue] == nil
	}
	maps.DeleteFunc(w.sizes, func(name string, _ int) bool { return gone(name) })
	maps.DeleteFunc(w.stood, func(name string, _ map[string]standing) bool { return gone(name) })
	maps.DeleteFunc(w.letters, func(name string, _ letterCount) bool { return gone(name) })
}

// watchedCounts holds, per partition, the counts of which the difference between two looks is a rate.
type watchedCounts map[string]partitionCounts

type partitionCounts struct {
	scheduled, entries int64
	added              int64  // entries ever
	addedBy            string // by what it is known: only figures known by the same compare; "" = it is not known
	groups             map[string]groupCounts
}

type groupCounts struct{ read, pending int64 } // read: -1 = not known

func countPartitions(parts []*partition) watchedCounts {
	all := watchedCounts{}
	for _, p := range parts {
		one := partitionCounts{scheduled: p.scheduled, entries: p.entries, groups: map[string]groupCounts{}}
		untouched := true
		for _, g := range p.infos {
			fresh := g.Last == (view.EntryID{})
			one.groups[g.Name] = groupCounts{g.Read, g.Pending}
			if fresh { // nothing was delivered ever; the server may not say so
				one.groups[g.Name] = groupCounts{}
			}
			if g.Read >= 0 && g.Lag >= 0 {
				one.added, one.addedBy = max(one.added, g.Read+g.Lag), "server"
			}
			untouched = untouched && fresh
		}
		if one.addedBy == "" && untouched { // no group was given anything, so nothing was freed
			one.added, one.addedBy = p.entries, "length"
		}
		all[p.name] = one
	}
	return all
}

// fillRates fills in what happened between two looks. What is not known is NaN.
func fillRates(s *QueueSample, before, now watchedCounts, span time.Duration) {
	var in, out, done float64
	groups := map[string]float64{}
	for name, a := range now {
		b, known := before[name]
		added, gone := float64(a.added-b.added), float64(b.entries-a.entries)
		if !known || a.addedBy == "" || a.addedBy != b.addedBy {
			added = math.NaN()
		}
		in += float64(a.scheduled-b.scheduled) + added
		out += added
		done += added + gone
		for name, ga := range a.groups {
			gb, known := b.groups[name]
			ended := float64(ga.read - gb.read - (ga.pending - gb.pending))
			if !known || ga.read < 0 || gb.read < 0 {
				ended = math.NaN()
			}
			groups[name] += ended
		}
	}
	s.PerSecond = &QueueRates{In: perSecond(in, span), Out: perSecond(out, span), Done: perSecond(done, span)}
	for i := range s.Groups {
		if ended, known := groups[s.Groups[i].Name]; known {
			s.Groups[i].Done = perSecond(ended, span)
		}
	}
}

// perSecond returns a rate; nil: it is not known. A negative number counts as 0: someone else deleted something.
func perSecond(n float64, span time.Duration) *float64 {
	if math.IsNaN(n) || span <= 0 {
		return nil
	}
	rate := max(0, n/span.Seconds())
	return &rate
}
