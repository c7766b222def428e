package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

const (
	step          = 1000 // members or entries that one call looks at, if the time of a call allows it
	progressEvery = 100 * time.Millisecond
	sizesAtOnce   = 100 // partitions whose sizes are read in one round trip

	// A call that gets no answer is repeated, because it changes nothing.
	patience    = 10 * time.Second // how long a call is repeated
	mostRepeats = 100              // how often calls are repeated in one search
	repeatPause = 200 * time.Millisecond
)

// Run calls found for each place of a message that passes the filter, as soon as it is found, one call at a time. If
// found returns an error, Run ends with that error. If found is nil, Run only counts.
//
// If the filter has a Prefix, the scheduled messages with exactly this ID are found first. Then the queues are searched
// one after the other, and in each queue the schedules of all partitions, then the streams, then the dead letters, in
// no order of time. Run finds each place that exists from the beginning of the search to its end. A message that moves
// meanwhile may be found in two places. If a delivery fails during the search, so that the message goes back to a
// schedule, the message may be missed. Dead letters that are added after the beginning are not found. If a key of a
// queue has a wrong type, the other queues are searched, and the error, which names the key, is returned at the end: it
// wraps lua.ErrWrongType.
//
// A call that gets no answer within 30 s, or 5 s for the number of partitions, fails. After the first failure, calls
// are repeated for 10 s, and at most 100 times in a search. A search takes about one call for each millisecond of the
// server's time. A search of all n messages is O(n). The server reads each entry and each dead letter whole, and each
// payload of a schedule if the filter has a Text. Run keeps the names of all members that it found in the partition
// whose schedule it searches, about 100 bytes each.
//
// ErrInvalid: a fault of the filter or options, before Redis is touched.
func Run(
	ctx context.Context, c rueidis.Client, prefix string, f Filter, o Options, found func(Hit) error,
) (Progress, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), f.Validate(), o.Validate()); err != nil {
		return Progress{}, err
	}
	r := &run{client: c, prefix: prefix, filter: f, options: o, found: found, load: cmp.Or(o.Load, DefaultLoad)}
	err := r.search(ctx)
	if errors.Is(err, errLimit) {
		err = nil
	} else if err == nil {
		r.progress.Looked, r.progress.Complete = r.progress.Total, true
	}
	r.progress.Queue = ""
	r.tell(true)
	if err != nil && !r.isRefused {
		err = fmt.Errorf("search: %w", err)
	}
	return r.progress, err
}

// errLimit ends a search that has found as much as it may.
var errLimit = errors.New("the limit of hits is reached")

// run is one search.
type run struct {
	client  rueidis.Client
	prefix  string
	filter  Filter
	options Options
	found   func(Hit) error
	load    float64

	isRefused bool      // found has returned an error
	unheard   time.Time // since when calls get no answer; zero: the last call got one
	repeats   int       // of calls that got no answer
	skipped   []error   // of queues with a key of a wrong type, one each

	progress Progress
	told     time.Time // when Progress was called last
	next     time.Time // when the next call may begin, so that the search uses no more than its share
}

// part is one partition of a queue.
type part struct {
	queue     string
	partition int
	keys      lua.Keys

	due, metas, payloads, entries, letters int64
	lastLetter                             string // "" if there were no letters at the beginning

	seen map[string]bool // members of the schedule that were found

	err error // wraps lua.ErrWrongType: a key has another type, and the sizes are unknown
}

func (r *run) search(ctx context.Context) error {
	counts, err := r.counts(ctx)
	if err != nil {
		return err
	}
	queues := slices.Sorted(maps.Keys(counts))
	parts := make(map[string][]*part, len(queues))
	var all []*part
	for _, queue := range queues {
		parts[queue] = r.parts(queue, 0, counts[queue].Latest())
		all = append(all, parts[queue]...)
	}
	if err := r.readSizes(ctx, all); err != nil {
		return err
	}
	r.tell(true)
	if err := r.lookForExact(ctx, all); err != nil {
		return err
	}
	for _, queue := range queues {
		r.progress.Queue = queue
		err := r.searchQueue(ctx, queue, parts[queue])
		if err != nil && (r.isRefused || !errors.Is(err, lua.ErrWrongType)) {
			return errors.Join(append(r.skipped, err)...)
		}
		if err != nil {
			r.skipped = append(r.skipped, fmt.Errorf("%s is left out: %w", queue, err))
		}
	}
	return errors.Join(r.skipped...)
}

// counts returns the partition counts of the filter's queues, or of all registered queues.
func (r *run) counts(ctx context.Context) (map[string]lua.Counts, error) {
	if len(r.filter.Queues) == 0 {
		return read(ctx, r, func() (map[string]lua.Counts, error) {
			ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
			defer cancel()
			return lua.ReadRegistry(ctx, r.client, lua.NewGlobals(r.prefix))
		})
	}
	counts := make(map[string]lua.Counts, len(r.filter.Queues))
	for _, queue := range r.filter.Queues {
		one, err := r.countsOf(ctx, queue)
		if err != nil {
			return nil, err
		}
		counts[queue] = one
	}
	return counts, nil
}

func (r *run) countsOf(ctx context.Context, queue string) (lua.Counts, error) {
	return read(ctx, r, func() (lua.Counts, error) { return view.ReadCounts(ctx, r.client, r.prefix, queue) })
}

// parts returns the partitions of a queue from the first one on, up to count.
func (r *run) parts(queue string, first, count int) (parts []*part) {
	for i := first; i < count; i++ {
		parts = append(parts, &part{
			queue: queue, partition: i, keys: lua.NewKeys(r.prefix, lua.PartitionName(queue, i)), seen: map[string]bool{},
		})
	}
	return parts
}

// readSizes reads the sizes of partitions, and the ends of their dead letters, and adds to the total. If a key has a
// wrong type, it sets the error of the partition.
func (r *run) readSizes(ctx context.Context, parts []*part) error {
	b := r.client.B
	for some := range slices.Chunk(parts, sizesAtOnce) {
		var lists [][]view.Question
		for _, p := range some {
			lists = append(lists, []view.Question{
				view.Number(b().Zcard().Key(p.keys.Due).Build(), &p.due),
				view.Number(b().Hlen().Key(p.keys.Meta).Build(), &p.metas),
				view.Number(b().Hlen().Key(p.keys.Payload).Build(), &p.payloads),
				view.Number(b().Xlen().Key(p.keys.Stream).Build(), &p.entries),
				view.Number(b().Xlen().Key(p.keys.Dead).Build(), &p.letters),
			})
		}
		_, err := read(ctx, r, func() (any, error) {
			for i, err := range view.AskEach(ctx, r.client, lists...) {
				if err != nil && !errors.Is(err, lua.ErrWrongType) {
					return nil, err
				}
				some[i].err = err
			}
			return nil, nil
		})
		if err != nil {
			return err
		}
	}
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		if len(r.ofSchedule().States) > 0 {
			_, members := p.scan(r.ofSchedule())
			r.progress.Total += members
		}
		if len(r.ofStream().States) > 0 {
			r.progress.Total += p.entries
		}
		if len(r.ofLetters().States) > 0 && p.letters > 0 {
			r.progress.Total += p.letters
			if err := r.readLastLetter(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// readLastLetter reads which letter of the partition is the newest one.
func (r *run) readLastLetter(ctx context.Context, p *part) error {
	var end lua.StreamSearch
	err := r.call(ctx, func(ctx context.Context) (used time.Duration, err error) {
		end, _, err = lua.SearchEntries(ctx, r.client, p.keys.Dead, r.ofLetters(), lua.StreamSearch{})
		return end.Used, err
	})
	p.lastLetter = end.Last
	return err
}

func (r *run) ofSchedule() lua.SearchFilter {
	return r.filter.forScript(lookup.StateScheduled, lookup.StateRetrying)
}

func (r *run) ofStream() lua.SearchFilter {
	return r.filter.forScript(lookup.StateReady, lookup.StatePending)
}

func (r *run) ofLetters() lua.SearchFilter { return r.filter.forScript(lookup.StateDead) }

// scan returns the key that a search of the schedule scans, and the number of its members. It scans the hash meta if
// that is smaller: the hash has a field for each retry, and for each message with headers, a key, an expiry or a limit
// of attempts. A filter by ID also needs first-time messages without a meta. scanSchedule looks these up, because their
// member is the ID.
func (p *part) scan(f lua.SearchFilter) (key lua.Scan, members int64) {
	switch {
	case p.metas < p.due && (f.NeedsMeta() || len(f.IDs) > 0):
		return lua.ScanMeta, p.metas
	case p.payloads <= p.due && f.DependsOnPayload():
		return lua.ScanPayload, p.payloads
	}
	return lua.ScanDue, p.due
}

func (r *run) searchQueue(ctx context.Context, queue string, parts []*part) error {
	for _, p := range parts {
		if p.err != nil {
			return p.err
		}
	}
	for done := 0; len(r.ofSchedule().States) > 0 && done < len(parts); {
		for ; done < len(parts); done++ {
			if err := r.searchSchedule(ctx, parts[done]); err != nil {
				return err
			}
		}
		// A message may have moved to a partition that was added meanwhile.
		counts, err := r.countsOf(ctx, queue)
		if err != nil {
			return err
		}
		added := r.parts(queue, len(parts), counts.Latest())
		if err := r.readSizes(ctx, added); err != nil {
			return err
		}
		for _, p := range added { // their dead letters came after the beginning
			r.progress.Total -= p.letters
			p.letters, p.lastLetter = 0, ""
			if p.err != nil {
				return p.err
			}
		}
		parts = append(parts, added...)
	}
	if f := r.ofStream(); len(f.States) > 0 {
		for _, p := range parts {
			add := func(one lua.FoundStored) error { return r.addAll(p, r.filter.ofStream(one)...) }
			if err := r.searchStream(ctx, p.keys.Stream, "", p.entries, f, add); err != nil {
				return err
			}
		}
	}
	if f := r.ofLetters(); len(f.States) > 0 {
		for _, p := range parts {
			if p.lastLetter == "" {
				continue
			}
			add := func(one lua.FoundStored) error { return r.addAll(p, ofLetters(p.partition, one)) }
			if err := r.searchStream(ctx, p.keys.Dead, p.lastLetter, p.letters, f, add); err != nil {
				return err
			}
		}
	}
	return nil
}

// searchSchedule searches the schedule of a partition. It finds every member that is there from the beginning to the
// end of the search, once.
func (r *run) searchSchedule(ctx context.Context, p *part) error {
	looked := r.progress.Looked
	for w := (lua.MoveWait{}); ; {
		err := r.scanSchedule(ctx, p)
		// An error of found is not repeated, because its hits are in p.seen.
		if r.isRefused || !w.Again(ctx, err) && !r.again(ctx, err) {
			return err
		}
		r.progress.Looked = looked // the scan starts over, because a new connection may be to another server process
	}
}

// scanSchedule scans a schedule over one connection, because a cursor is only valid in the server process that made it.
func (r *run) scanSchedule(ctx context.Context, p *part) error {
	conn, release := lua.Pin(r.client)
	defer release()
	f := r.ofSchedule()
	scan, members := p.scan(f)
	progress := r.startKey(members)
	for s := (lua.DueSearch{Limit: step, Scan: scan, Left: f.IDs}); !s.Done; {
		var found []lua.FoundDue
		err := r.call(ctx, func(ctx context.Context) (used time.Duration, err error) {
			s, found, err = lua.SearchDue(ctx, conn, p.keys, f, s)
			return s.Used, err
		})
		if err != nil {
			return err
		}
		progress.add(s.Looked)
		if err := r.addScheduled(p, found); err != nil {
			return err
		}
		r.tell(false)
	}
	progress.end()
	return nil
}

// addScheduled reports members of the schedule, each once, because a scan may return a member twice.
func (r *run) addScheduled(p *part, found []lua.FoundDue) error {
	for _, one := range found {
		hit, ok := r.filter.ofSchedule(one)
		if !ok || p.seen[one.Member] {
			continue
		}
		p.seen[one.Member] = true
		if err := r.addAll(p, hit); err != nil {
			return err
		}
	}
	return nil
}

// lookForExact finds the scheduled messages whose ID equals the filter's Prefix, before the scan, because users often
// give a whole ID. It costs a round trip for each 100 partitions, and one for each hit. It ignores a key that it cannot
// read, and the scan then reports the key.
func (r *run) lookForExact(ctx context.Context, parts []*part) error {
	id, f := r.filter.Prefix, r.ofSchedule()
	if id == "" || !slices.Contains(f.States, lua.SearchScheduled) {
		return nil
	}
	for some := range slices.Chunk(parts, sizesAtOnce) {
		due := make([]time.Time, len(some))
		lists := make([][]view.Question, len(some))
		for i, p := range some {
			lists[i] = []view.Question{view.Score(r.client.B().Zscore().Key(p.keys.Due).Member(id).Build(), &due[i])}
		}
		view.AskEach(ctx, r.client, lists...)
		for i, p := range some {
			if due[i].IsZero() {
				continue
			}
			var found []lua.FoundDue
			err := r.call(ctx, func(ctx context.Context) (used time.Duration, err error) {
				s, hits, err := lua.SearchDue(ctx, r.client, p.keys, f, lua.LookDue([]string{id}, 1))
				found = hits
				return s.Used, err
			})
			if err != nil {
				continue
			}
			if err := r.addScheduled(p, found); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// searchStream searches a stream up to the entry last, or if it is "" up to the newest one.
func (r *run) searchStream(ctx context.Context, key, last string, size int64, f lua.SearchFilter,
	add func(lua.FoundStored) error) error {
	progress := r.startKey(size)
	for s := (lua.StreamSearch{Limit: step, Last: last}); !s.Done; {
		var found []lua.FoundStored
		err := r.call(ctx, func(ctx context.Context) (used time.Duration, err error) {
			s, found, err = lua.SearchEntries(ctx, r.client, key, f, s)
			return s.Used, err
		})
		if r.again(ctx, err) {
			continue
		}
		if err != nil {
			return err
		}
		progress.add(s.Looked)
		for _, one := range found {
			if err := add(one); err != nil {
				return err
			}
		}
		r.tell(false)
	}
	progress.end()
	return nil
}

// call makes one call, as soon as the share of the search allows it. do returns the time that the call took on the
// server, 0 if that is unknown.
func (r *run) call(ctx context.Context, do func(context.Context) (used time.Duration, err error)) error {
	// Waits below a millisecond are put off, because a timer is not exact to less.
	if wait := time.Until(r.next); wait > time.Millisecond {
		loop.Sleep(ctx, wait)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	began := time.Now()
	used, err := do(ctx)
	if took := time.Since(began); used <= 0 || used > took {
		used = took
	}
	if r.next.Before(began) {
		r.next = began // time that was not used does not add up
	}
	r.next = r.next.Add(time.Duration(float64(used) / r.load))
	if err == nil {
		r.unheard = time.Time{}
	}
	return err
}

// read makes a call of do that takes the server no time worth counting. It repeats the call if it gets no answer.
func read[T any](ctx context.Context, r *run, do func() (T, error)) (T, error) {
	for {
		answer, err := do()
		if err == nil {
			r.unheard = time.Time{}
		}
		if !r.again(ctx, err) {
			return answer, err
		}
	}
}

// again reports whether the call that failed with err is to be repeated. Then it has waited a moment.
func (r *run) again(ctx context.Context, err error) bool {
	if r.isRefused || !lua.Temporary(err) || r.repeats >= mostRepeats {
		return false
	}
	if r.unheard.IsZero() {
		r.unheard = time.Now()
	}
	r.repeats++
	return time.Since(r.unheard) < patience && loop.Sleep(ctx, repeatPause)
}

// addAll reports hits of a partition.
func (r *run) addAll(p *part, hits ...Hit) error {
	for _, h := range hits {
		h.Queue, h.Partition = p.queue, p.partition
		r.progress.Found++
		if r.found != nil {
			if err := r.found(h); err != nil {
				r.isRefused = true
				return err
			}
		}
		if r.options.Limit > 0 && r.progress.Found >= int64(r.options.Limit) {
			return errLimit
		}
	}
	return nil
}

// tell reports the progress, if it is time or if it must.
func (r *run) tell(must bool) {
	if r.options.Progress == nil || !must && time.Since(r.told) < progressEvery {
		return
	}
	r.told = time.Now()
	r.options.Progress(r.progress)
}

// keyProgress counts the progress through one key. The key may have more or fewer items than expected, because items
// come and go.
type keyProgress struct {
	progress         *Progress
	before, expected int64
	looked           int64
}

func (r *run) startKey(expected int64) *keyProgress {
	return &keyProgress{progress: &r.progress, before: r.progress.Looked, expected: expected}
}

func (p *keyProgress) add(looked int) {
	p.looked += int64(looked)
	p.progress.Looked = p.before + min(p.looked, p.expected)
}

func (p *keyProgress) end() { p.progress.Looked = p.before + p.expected }
