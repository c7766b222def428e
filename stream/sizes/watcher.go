package sizes

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
// reads the registry of queues, and then sends one script for every 64 partitions. On a cluster it sends one script for
// each partition, all together. If a group holds entries, it also reads the default settings. For groups with a backlog
// it reads up to 16 older entries. It reads at most about 2 MiB of the newest entries and dead letters, and 1 MiB of
// the older entries. It changes nothing. Queues with more than 512 partitions together take turns; until its next turn
// a queue keeps its last sample. It must not be used concurrently.
type Watcher struct {
	c      rueidis.Client
	prefix string
	queues []string // empty: all queues that the bridges know

	registry  map[string]lua.Counts      // partition counts, by queue
	samples   map[string]*lastSample     // by queue
	nextQueue int                        // index of the queue at which the next look begins
	caches    map[string]*partitionCache // by partition
	defaults  map[string]string          // the policy's default settings, as last read
}

// watchPartitions is the number of partitions of one look. If there are more, the queues take turns.
const watchPartitions = 512

// watchBytes bounds the newest entries and dead letters of one look, of all queues together.
const watchBytes = 2 << 20

// lateFor is how long a lateness counts: a look measures the newest entries only if the newest of them became ready
// within this time, and a look that measures none shows the last lateness for this time.
const lateFor = time.Minute

// lastSample is a Watcher's last sample of a queue.
type lastSample struct {
	sample QueueSample
	taken  time.Time     // by the local clock
	counts watchedCounts // nil: the last look failed, so the next one computes no rates
	late   *view.Millis  // the last measured lateness; nil: none was measured
	lateAt time.Time     // when late was measured, by the server's clock
}

// NewWatcher returns a Watcher of these queues. If queues is empty, it watches all queues that the bridges know.
func NewWatcher(c rueidis.Client, prefix string, queues []string) *Watcher {
	return &Watcher{
		c: c, prefix: prefix, queues: queues,
		samples: map[string]*lastSample{}, caches: map[string]*partitionCache{},
	}
}

// Look returns samples of the queues, sorted by name, with rates since the last look. A queue that cannot be read has
// its error in Err. Look fails if the server cannot be asked, or if no queue can be read.
func (w *Watcher) Look(ctx context.Context) ([]QueueSample, error) { return w.LookAt(ctx, nil) }

// LookAt is Look at the wanted queues only. If wanted is nil, it looks at all queues. An unwanted queue costs nothing,
// and has no rates at its next look.
func (w *Watcher) LookAt(ctx context.Context, wanted func(queue string) bool) ([]QueueSample, error) {
	call, cancel := context.WithTimeout(ctx, glanceTimeout)
	registry, err := lua.ReadRegistry(call, w.c, lua.NewGlobals(w.prefix))
	cancel()
	switch {
	case err == nil:
		w.registry = registry
	case len(w.registry) == 0 || w.c.Mode() != rueidis.ClientModeCluster:
		return nil, fmt.Errorf("look at queues: %w", err)
	default:
		// Use the registry of the last look: its master may be away while most queues can be read.
	}
	names := w.queues
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(w.registry))
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if wanted != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !wanted(name) })
	}
	if err := w.sampleQueues(ctx, w.nextQueues(names)); err != nil {
		return nil, fmt.Errorf("look at queues: %w", err)
	}
	samples := make([]QueueSample, 0, len(names))
	for _, name := range names {
		if last := w.samples[name]; last != nil {
			samples = append(samples, last.sample)
		}
	}
	w.forgetOthers(names)
	return samples, nil
}

// nextQueues returns the queues of this look: all, or as many as have 512 partitions together, at least one.
func (w *Watcher) nextQueues(names []string) (queues []string) {
	if len(names) == 0 {
		return nil
	}
	w.nextQueue %= len(names)
	partitions := 0
	for i := range names {
		name := names[(w.nextQueue+i)%len(names)]
		if partitions += w.registry[name].Latest(); partitions > watchPartitions && i > 0 {
			break
		}
		queues = append(queues, name)
	}
	w.nextQueue += len(queues)
	if len(queues) == len(names) {
		w.nextQueue++ // so that the budget for newest entries is not always spent on the same queues
	}
	return queues
}

// sampleQueues reads queues and keeps their samples.
func (w *Watcher) sampleQueues(ctx context.Context, queues []string) error {
	byQueue := make([][]*partition, len(queues))
	for i, queue := range queues {
		byQueue[i] = newPartitions(w.prefix, queue, w.registry[queue])
	}
	r := reader{c: w.c, prefix: w.prefix, depth: glance, caches: w.caches, defaults: w.defaults,
		budget: budget{newestBytes: watchBytes, oldestAsks: oldestAsks, oldestBytes: oldestBytes}}
	r.glance(ctx, slices.Concat(byQueue...))
	w.defaults = r.defaults
	taken := time.Now()
	var errs []error
	for i, queue := range queues {
		sample := sampleOf(queue, byQueue[i])
		if sample.Err != nil {
			errs = append(errs, sample.Err)
			w.noteFailure(queue, sample)
			continue
		}
		w.keepSample(queue, sample, countPartitions(byQueue[i]), taken, r.now)
	}
	// If every queue failed, and not because of a key's type, then the server is away, and the first error tells why.
	if len(queues) > 0 && len(errs) == len(queues) && !errors.Is(errs[0], lua.ErrWrongType) {
		return errs[0]
	}
	return nil
}

// noteFailure adds the error of a failed sample to the last good sample, and drops the rates, which are out of date.
func (w *Watcher) noteFailure(queue string, failed QueueSample) {
	last := w.samples[queue]
	if last == nil {
		w.samples[queue] = &lastSample{sample: failed}
		return
	}
	last.sample.Err, last.sample.PerSecond, last.counts = failed.Err, nil, nil
}

// keepSample adds the rates since the last sample, and the last measured lateness, to a sample and keeps it. taken is
// by the local clock, now by the server's.
func (w *Watcher) keepSample(queue string, sample QueueSample, counts watchedCounts, taken, now time.Time) {
	next := &lastSample{taken: taken, counts: counts}
	if last := w.samples[queue]; last != nil {
		next.late, next.lateAt = last.late, last.lateAt
		if last.counts != nil {
			fillRates(&sample, last.counts, counts, taken.Sub(last.taken))
		}
	}
	if sample.Late != nil {
		next.late, next.lateAt = sample.Late, now
	} else if now.Sub(next.lateAt) < lateFor {
		sample.Late = next.late
	}
	next.sample = sample
	w.samples[queue] = next
}

// forgetOthers drops the samples and caches of all queues except those named.
func (w *Watcher) forgetOthers(names []string) {
	maps.DeleteFunc(w.samples, func(name string, _ *lastSample) bool {
		_, found := slices.BinarySearch(names, name)
		return !found
	})
	maps.DeleteFunc(w.caches, func(name string, _ *partitionCache) bool {
		queue, _, _ := lua.SplitPartition(name)
		return w.samples[queue] == nil
	})
}

// watchedCounts holds, by partition, the counts from which two looks compute rates.
type watchedCounts map[string]partitionCounts

type partitionCounts struct {
	scheduled, entries int64
	added              int64 // entries ever added to the stream
	addedSource        addedSource
	groups             map[string]groupCounts
}

// addedSource is the source of the number of entries ever added. A rate needs two numbers of the same source.
type addedSource int

const (
	addedUnknown  addedSource = iota
	addedByServer             // the sum of the server's entries-read and lag of a group
	addedByLength             // the length of a stream from which nothing was deleted yet
)

type groupCounts struct {
	read    int64 // entries ever delivered to the group; -1: unknown
	pending int64
}

func countPartitions(parts []*partition) watchedCounts {
	all := watchedCounts{}
	for _, p := range parts {
		counts := partitionCounts{scheduled: p.Scheduled, entries: p.Entries, groups: map[string]groupCounts{}}
		anyDelivered := false
		for _, g := range p.infos {
			delivered := g.Last != (view.EntryID{})
			counts.groups[g.Name] = groupCounts{g.Read, g.Pending}
			if !delivered { // the counts of the group are 0, even if the server does not know them
				counts.groups[g.Name] = groupCounts{}
			}
			if g.Read >= 0 && g.Lag >= 0 {
				counts.added, counts.addedSource = max(counts.added, g.Read+g.Lag), addedByServer
			}
			anyDelivered = anyDelivered || delivered
		}
		if counts.addedSource == addedUnknown && !anyDelivered {
			// No group was given an entry, so none was deleted yet: the length is the number ever added.
			counts.added, counts.addedSource = p.Entries, addedByLength
		}
		all[p.name] = counts
	}
	return all
}

// fillRates fills in the rates between two looks. NaN stands for an unknown number.
func fillRates(s *QueueSample, previous, current watchedCounts, span time.Duration) {
	var in, out, done float64
	ended := map[string]float64{} // deliveries, by group
	for name, cur := range current {
		prev, known := previous[name]
		added := float64(cur.added - prev.added)
		if !known || cur.addedSource == addedUnknown || cur.addedSource != prev.addedSource {
			added = math.NaN()
		}
		in += added + float64(cur.scheduled-prev.scheduled)
		out += added
		done += added - float64(cur.entries-prev.entries)
		for group, curGroup := range cur.groups {
			prevGroup, known := prev.groups[group]
			if !known || curGroup.read < 0 || prevGroup.read < 0 {
				ended[group] = math.NaN()
				continue
			}
			delivered := curGroup.read - prevGroup.read
			ended[group] += float64(delivered - (curGroup.pending - prevGroup.pending))
		}
	}
	s.PerSecond = &QueueRates{In: perSecond(in, span), Out: perSecond(out, span), Done: perSecond(done, span)}
	for i := range s.Groups {
		if n, known := ended[s.Groups[i].Name]; known {
			s.Groups[i].Done = perSecond(n, span)
		}
	}
}

// perSecond returns n per second of span, or nil if n is NaN. A negative n counts as 0, because another program deleted
// entries.
func perSecond(n float64, span time.Duration) *float64 {
	if math.IsNaN(n) || span <= 0 {
		return nil
	}
	rate := max(0, n/span.Seconds())
	return &rate
}
