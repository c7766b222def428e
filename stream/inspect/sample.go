package inspect

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of one look of a Watcher.
const (
	samplePartitions = 512             // partitions; if there are more, the queues take turns
	sampleBatch      = 64              // partitions per pipeline
	sampleGroups     = 64              // groups of a partition that are read one by one
	sampleConsumers  = 500             // consumers of a group; with more, all count as alive
	sampleRetries    = 100             // members of the schedule among which retries are counted
	sampleNewest     = 10              // entries whose lateness is read
	sampleBytes      = 2 << 20         // of the newest entries, of all queues together
	sampleUnknown    = 32 << 10        // assumed bytes of an entry of unknown size
	sampleTimeout    = 2 * time.Second // of each pipeline
	consumerAlive    = time.Minute     // since a consumer last asked for entries
)

// FreshLetter is the greatest age of a dead letter that still indicates that messages are being given up.
const FreshLetter = 5 * time.Minute

// QueueSample is a Watcher's view of a queue, over all its partitions: figures that cost the server next to nothing.
// Stats is more exact.
type QueueSample struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Held       bool   `json:"held"`
	Flow
	Err error `json:"-"` // the queue could not be read; the rest is from the last successful look

	Scheduled int64       `json:"scheduled"` // includes retries, and overdue messages
	Overdue   int64       `json:"overdue"`
	Behind    view.Millis `json:"behind_ms"`  // lateness of the oldest overdue message
	Stalled   view.Millis `json:"stalled_ms"` // how long messages have been overdue while none became ready

	// Late is the greatest lateness of the newest entries: when each became ready − when it was due. Nil: none was seen
	// within a minute. Entries that a worker acknowledged before the look are not seen.
	Late *view.Millis `json:"late_ms,omitempty"`

	Ready       int64         `json:"ready"` // see QueueStats
	ReadyApprox bool          `json:"ready_approx,omitempty"`
	Entries     int64         `json:"entries"`
	Dead        int64         `json:"dead"`
	NewestDead  *view.Millis  `json:"newest_dead_ms,omitempty"` // age of the newest dead letter; nil: over 5 minutes
	PerSecond   *QueueRates   `json:"per_second,omitempty"`     // since the last look; nil at the first one
	Groups      []GroupSample `json:"groups"`
	MoreGroups  int           `json:"more_groups,omitempty"` // groups that were not read
}

// QueueRates are the events of a queue per second. Nil: the server does not tell.
type QueueRates struct {
	In   *float64 `json:"in"`   // became scheduled, including retries, minus cancelled ones
	Out  *float64 `json:"out"`  // became ready
	Done *float64 `json:"done"` // were freed, because every group was done with them
}

// GroupSample is a Watcher's view of a group.
type GroupSample struct {
	Name      string       `json:"name"`
	Lag       int64        `json:"lag"`
	LagApprox bool         `json:"lag_approx,omitempty"` // Lag is an upper bound: the server does not tell it
	Pending   int64        `json:"pending"`
	Oldest    *view.Millis `json:"oldest_idle_ms,omitempty"` // since the oldest pending entry was delivered or extended

	// OldestHeld is the longest time that one of the oldest entries of each partition has been held, and Holder its
	// consumer. Usual: see GroupStats.
	OldestHeld *view.Millis `json:"oldest_held_ms,omitempty"`
	Holder     string       `json:"holder,omitempty"`
	Usual      *view.Millis `json:"usual_ms,omitempty"`

	// Waiting is how long the oldest undelivered entry has waited, as a lower bound: the Watcher sees only the newest
	// entries, and whether the group advances between looks. Unread: see GroupStats.
	Waiting *view.Millis `json:"waiting_ms,omitempty"`
	Unread  *view.Millis `json:"unread_ms,omitempty"`

	Visibility     time.Duration `json:"-"` // visibility timeout; 0: the group holds nothing
	HandlerTimeout time.Duration `json:"-"` // of a handler, by the policy; 0: no limit, or nothing is held

	// Alive counts those of Consumers that read within the last minute. AliveApprox: before Redis 7.2 an idle consumer
	// looks like a dead one, and all count as alive.
	Alive       int64 `json:"alive"`
	AliveApprox bool  `json:"alive_approx,omitempty"`
	Consumers   int64 `json:"consumers"`

	// Retrying is the number of the group's retries among the 100 members of each partition that are due next.
	// RetryingMore: the schedule is longer.
	Retrying     int64 `json:"retrying"`
	RetryingMore bool  `json:"retrying_more,omitempty"`

	// Done is the number of deliveries that ended per second: acknowledged, failed, or skipped as another group's
	// retry.
	Done *float64 `json:"done_per_second,omitempty"`
}

// read reads partitions, in two round trips per batch: one for counts, one for contents. now is the server's clock.
func (w *Watcher) read(ctx context.Context, parts []*partition, now time.Time) {
	r := partitionReader{c: w.c, now: now}
	others := []view.Question{r.settings(lua.NewGlobals(w.prefix).Defaults, &w.defaults)}
	ask := func(batch []*partition, questions func(*partition) []view.Question, others ...view.Question) []error {
		call, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		lists := make([][]view.Question, len(batch))
		for i, p := range batch {
			lists[i] = questions(p)
		}
		return view.AskEach(call, w.c, append(lists, others)...)[:len(batch)]
	}
	for batch := range slices.Chunk(parts, sampleBatch) {
		for i, err := range ask(batch, r.counts, others...) {
			batch[i].err = err
		}
		others = nil
		batch = slices.DeleteFunc(slices.Clone(batch), func(p *partition) bool { return p.err != nil })
		ask(batch, func(p *partition) []view.Question { // failures are left out here: the stream may be gone by now
			return append(r.groupQuestions(p), w.sampleQuestions(&r, p)...)
		})
		for _, p := range batch {
			p.standing = map[string]standing{}
			r.conclude(p, func(i int) groupLag {
				lag := serverLag(p.entries, p.infos[i])
				if lag.entries > 0 {
					lag.since = w.waitingSince(p, p.infos[i], now)
				}
				return lag
			})
			for _, g := range p.groups {
				if g.pending > 0 {
					policy := p.policyOf(g.name, w.defaults)
					g.visibility, g.handlerTimeout = policy.VisibilityTimeout, policy.HandlerTimeout
				}
			}
			p.addRetries(p.retries)
			w.takeNewest(p, now)
			w.takeLetter(p, now)
			w.stood[p.name] = p.standing
		}
	}
}

// sampleQuestions asks for the next due retries, and for the newest entries.
func (w *Watcher) sampleQuestions(r *partitionReader, p *partition) (all []view.Question) {
	b := w.c.B
	if p.metas > 0 && p.scheduled > 0 { // each retry has meta
		all = append(all, view.Into(b().Zrange().Key(p.keys.Due).Min("0").Max(strconv.Itoa(sampleRetries-1)).Build(), &p.retries,
			rueidis.RedisResult.AsStrSlice))
	}
	if p.entries > 0 && w.bytes > 0 {
		newest := b().Xrevrange().Key(p.keys.Stream).End("+").Start("-").Count(w.spend(p.name)).Build()
		all = append(all, view.Entries(newest, &p.newest))
	}
	if p.dead > w.letters[p.name].count && w.bytes > 0 {
		w.bytes -= sampleUnknown
		all = append(all, r.newestLetter(p))
	}
	return all
}

// spend returns how many of the newest entries of a partition to ask for, and subtracts their likely bytes from the
// budget of this look.
func (w *Watcher) spend(name string) (entries int64) {
	size, known := w.sizes[name]
	entries = 1
	if known {
		entries = int64(min(sampleNewest, max(1, 4<<10/max(1, size))))
	} else {
		size = sampleUnknown
	}
	w.bytes -= int(entries) * size
	return entries
}

// takeNewest notes the lateness and the size of a stream's newest entries.
func (w *Watcher) takeNewest(p *partition, now time.Time) {
	if len(p.newest) == 0 {
		return
	}
	bytes, late, newest := 0, (*view.Millis)(nil), time.Time{}
	for _, e := range p.newest {
		bytes += view.EntrySize(e)
		due, ready := lua.ParseEntry(e.ID, e.FieldValues).Due, lua.EntryTime(e.ID)
		if due.IsZero() {
			continue
		}
		lateness := view.Millis(max(0, ready.Sub(due)))
		late = longest(late, &lateness)
		if ready.After(newest) {
			newest = ready
		}
	}
	if now.Sub(newest) < time.Minute {
		p.late = late
	}
	w.sizes[p.name] = bytes / len(p.newest)
}

// serverLag returns the server's lag, or if it has none an upper bound: pending entries are delivered ones.
func serverLag(entries int64, g view.GroupInfo) groupLag {
	most := max(0, entries-g.Pending)
	switch {
	case g.Lag < 0:
		return groupLag{entries: most, approx: most > 0}
	case g.Read < 0: // then the server estimates, too
		return groupLag{entries: min(g.Lag, most)}
	}
	return groupLag{entries: min(g.Lag, entries)}
}

// sampleOf returns the sample of a queue from its partitions.
func sampleOf(queue string, parts []*partition) QueueSample {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.err)
	}
	f := sum(parts)
	s := QueueSample{
		Queue: queue, Partitions: len(parts), Held: f.held, Flow: f.flow, Err: errors.Join(errs...),
		Scheduled: f.scheduled, Overdue: f.overdue,
		Behind: f.behind, Stalled: f.stalled, NewestDead: f.letterAge, Late: f.late, Ready: f.ready,
		ReadyApprox: f.readyApprox, Entries: f.entries, Dead: f.dead,
		MoreGroups: f.moreGroups, Groups: []GroupSample{},
	}
	for _, g := range f.groups {
		alive := int64(0)
		for _, lives := range g.consumers {
			if lives {
				alive++
			}
		}
		one := GroupSample{
			Name: g.name, Lag: g.lag, LagApprox: g.lagApprox, Pending: g.pending, Oldest: g.oldestIdle, Waiting: g.waiting,
			Unread: g.unread, Usual: g.usual, Visibility: g.visibility, HandlerTimeout: g.handlerTimeout,
			Alive: max(g.manyConsumers, alive), AliveApprox: g.consumersApprox,
			Consumers: max(g.manyConsumers, int64(len(g.consumers))), Retrying: g.retrying, RetryingMore: g.retryingApprox,
		}
		if g.longest != nil {
			one.OldestHeld, one.Holder = &g.longest.Held, g.longest.Consumer
		}
		s.Groups = append(s.Groups, one)
	}
	return s
}
