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

// Watcher samples queues at intervals, at little cost. Look returns the state, and the rates since the last Look. It
// sends eight to twelve commands per partition, and up to two per group, in two pipelines for every 64 partitions. It
// reads at most about 2 MiB of the newest entries and dead letters. It changes nothing. Queues with more than 512
// partitions together take turns; until its next turn a queue keeps its last sample. It must not be used concurrently.
type Watcher struct {
	c      rueidis.Client
	prefix string
	only   []string // nil = all queues that the bridges know

	known map[string]lua.Counts
	seen  map[string]*lastSample
	turn  int            // where the next look begins
	sizes map[string]int // partition → mean bytes of its newest entries
	bytes int            // budget of this look for newest entries

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

// NewWatcher returns a Watcher of these queues; with none, of all that the bridges know.
func NewWatcher(c rueidis.Client, prefix string, queues []string) *Watcher {
	return &Watcher{c: c, prefix: prefix, only: queues, seen: map[string]*lastSample{}, sizes: map[string]int{},
		stood: map[string]map[string]standing{}, letters: map[string]letterCount{}}
}

// Look returns samples of the queues, sorted by name, with rates since the last look. A queue that cannot be read has
// its error in Err. Look fails if the server cannot be asked, or if no queue can be read.
func (w *Watcher) Look(ctx context.Context) ([]QueueSample, error) { return w.LookAt(ctx, nil) }

// LookAt is Look at the wanted queues only; nil: all. An unwanted queue costs nothing, and has no rates at its next
// look.
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
	case w.known == nil: // else the known one is used: on a cluster the registry may be away while most queues are not
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

func (w *Watcher) clock(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	return view.ServerTime(ctx, w.c)
}

// inTurn returns the queues of this look: all, or as many as have 512 partitions together, at least one.
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
	w.turn += len(turn)
	if len(turn) == len(names) {
		w.turn++ // so that the budget for newest entries is not always spent on the same queues
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
	// All queues failed, and not because of their contents: the server is away, and the first error tells why.
	if len(queues) > 0 && len(failed) == len(queues) && !errors.Is(failed[0], lua.ErrWrongType) {
		return failed[0]
	}
	return nil
}

// forget drops the state of queues that are no longer watched.
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

// watchedCounts holds, per partition, the counts whose differences between two looks are rates.
type watchedCounts map[string]partitionCounts

type partitionCounts struct {
	scheduled, entries int64
	added              int64  // entries ever added
	addedBy            string // its source: only figures of the same source compare; "" = unknown
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
			if fresh { // nothing was ever delivered; the server may not tell
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

// fillRates fills in the rates between two looks. NaN = unknown.
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

// perSecond returns a rate; nil = unknown. A negative one counts as 0: somebody else deleted entries.
func perSecond(n float64, span time.Duration) *float64 {
	if math.IsNaN(n) || span <= 0 {
		return nil
	}
	rate := max(0, n/span.Seconds())
	return &rate
}
