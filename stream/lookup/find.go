package lookup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// Sighting is a place of a message, with the details that Find adds.
type Sighting struct {
	Queue string `json:"queue"`
	Place
	Why        string `json:"why,omitempty"`        // why it is not delivered, or not done, in words for people
	For        string `json:"for,omitempty"`        // ready, pending: the only group of a retry; "": not a retry
	Deliveries int64  `json:"deliveries,omitempty"` // pending: how often the entry was delivered, by the server's count
	Cancelled  bool   `json:"cancelled,omitempty"`  // pending: it was cancelled; its consumer learns of it and ends it
	GivenBack  bool   `json:"given_back,omitempty"` // pending: the worker gave it back by XNACK; no consumer holds it
	Front      string `json:"front,omitempty"`      // waiting for its key: the first message of its key; "": unknown
	// scheduled, retrying: ID of the entry that was scheduled again, or of the letter that was redriven
	Before string `json:"before,omitempty"`
}

// Window is an open dedup window: the queue accepted a message with this ID, and nobody cancelled it since.
type Window struct {
	Queue string    `json:"queue"`
	Until time.Time `json:"until"`
}

// Finding is the result of Find: the places of a message, its history with times, and the extent of the search.
type Finding struct {
	ID      string     `json:"id"`
	At      time.Time  `json:"at"` // beginning of the search, by the server's clock
	Places  []Sighting `json:"places"`
	Why     string     `json:"why,omitempty"` // why the message is in no place, if known; each place has its own Why
	History []Moment   `json:"history"`
	Windows []Window   `json:"windows,omitempty"`
	Queues  int        `json:"queues"` // queues searched
	Looked  int64      `json:"looked"` // members, entries and letters searched that have no index by message ID
}

// FindOptions change what Find does. The zero value is valid.
type FindOptions struct {
	Queues []string // where to look; empty: in all registered queues

	Seen     func(Sighting)            // called for each place as soon as it is found, one call at a time
	Progress func(looked, total int64) // called at intervals, one call at a time; total grows
}

// Find returns every place where Redis holds a message, in all queues of the prefix, with its known history.
// ErrNotFound: there is no such place, because every group has acknowledged the message, or the message was cancelled
// or purged, or never existed. The Finding then tells where Find looked.
//
// Find looks up a scheduled message by its ID. The server searches all entries and dead letters, in steps of at most
// 250 or 1 MiB, and Find reads only those of the message. For retries Find reads the hash meta or the schedule,
// whichever is smaller, in steps of 1,000. A message that moves during the search may appear in two places. If Find
// finds no place, it searches a second time, in the data added since.
func Find(ctx context.Context, c rueidis.Client, prefix, id string, o FindOptions) (Finding, error) {
	f := Finding{ID: id, Places: []Sighting{}, History: []Moment{}}
	errs := []error{lua.CheckPrefix(prefix), lua.CheckID(id)}
	for _, queue := range o.Queues {
		errs = append(errs, lua.CheckQueue(queue))
	}
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	var err error
	if f.At, err = view.ServerTime(ctx, c); err != nil {
		return f, fmt.Errorf("find %s: %w", id, err)
	}
	s := newFinder(c, prefix, id)
	s.seen, s.progress = o.Seen, o.Progress
	s.reasons = newReasons(ctx, c, prefix, f.At)
	places, queues, err := s.find(ctx, o.Queues)
	f.Places = append(f.Places, places...)
	f.Queues = queues
	f.Looked = s.total
	f.Windows = s.openWindows(f.At)
	f.History = history(f)
	if errors.Is(err, deadletter.ErrNotFound) {
		f.Why = s.reasons.whyNowhere(f)
	}
	if err != nil {
		return f, fmt.Errorf("find %s: %w", id, err)
	}
	return f, nil
}

// Locate is Find in one queue, for the places only: it reads neither reasons nor history.
func Locate(ctx context.Context, c rueidis.Client, prefix, queue, id string) ([]Place, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckID(id)); err != nil {
		return nil, err
	}
	found, _, err := newFinder(c, prefix, id).find(ctx, []string{queue})
	if err != nil {
		return nil, fmt.Errorf("locate %s in %s: %w", id, queue, err)
	}
	places := make([]Place, len(found))
	for i, one := range found {
		places[i] = one.Place
	}
	return places, nil
}

// queueCounts returns the partition counts of queues. If queues is empty, it returns those of all registered queues.
func queueCounts(ctx context.Context, c rueidis.Client, prefix string, queues []string) (map[string]lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	if len(queues) == 0 {
		return lua.ReadRegistry(ctx, c, lua.NewGlobals(prefix))
	}
	counts := make(map[string]lua.Counts, len(queues))
	for _, queue := range queues {
		one, err := lua.ReadCounts(ctx, c, lua.NewGlobals(prefix), queue)
		if err != nil {
			return nil, err
		}
		counts[queue] = one
	}
	return counts, nil
}

// finder looks for one message, in any number of partitions.
type finder struct {
	c          rueidis.Client
	prefix, id string
	reasons    *reasons // nil: reasons are not wanted

	mu            sync.Mutex
	seen          func(Sighting)
	progress      func(looked, total int64)
	looked, total int64               // items read, and items to read
	locators      map[string]*locator // by partition
}

func newFinder(c rueidis.Client, prefix, id string) *finder {
	return &finder{c: c, prefix: prefix, id: id, locators: map[string]*locator{}}
}

// find looks in these queues, or in all queues if queues is empty. It looks a second time if it found nothing, because
// the message may have moved behind the search. searched is the number of queues. With an error it returns the places
// found before the error.
func (s *finder) find(ctx context.Context, queues []string) (found []Sighting, searched int, err error) {
	for range 2 {
		counts, err := queueCounts(ctx, s.c, s.prefix, queues)
		if err != nil {
			return found, searched, err
		}
		locators := s.locatorsIn(counts)
		names := make([]string, len(locators))
		for i, l := range locators {
			names[i] = lua.PartitionName(l.queue, l.partition)
		}
		places := make([][]Sighting, len(locators))
		err = view.EachPartition(names, func(i int, _ string) (err error) {
			places[i], err = locators[i].locate(ctx)
			return err
		})
		found, searched = slices.Concat(places...), len(counts)
		if err != nil || len(found) > 0 {
			return found, searched, err
		}
	}
	return nil, searched, deadletter.ErrNotFound
}

// locatorsIn returns a locator for each partition of the queues. The message may be in any partition, because an
// ordering key, which the finder does not know, may have decided the partition.
func (s *finder) locatorsIn(counts map[string]lua.Counts) (all []*locator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, queue := range slices.Sorted(maps.Keys(counts)) {
		for _, partition := range counts[queue].Candidates(s.id) {
			name := lua.PartitionName(queue, partition)
			l := s.locators[name]
			if l == nil {
				l = &locator{finder: s, queue: queue, partition: partition, keys: lua.NewKeys(s.prefix, name)}
				s.locators[name] = l
			}
			all = append(all, l)
		}
	}
	return all
}

// addProgress adds to the number of items read, and to the number of items to read.
func (s *finder) addProgress(looked, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked += looked
	s.total += total
	if s.progress != nil {
		// More items may be read than the total has, because items are added during the search.
		s.progress(min(s.looked, s.total), s.total)
	}
}

// openWindows returns the dedup windows that the locators saw and that are open at now.
func (s *finder) openWindows(now time.Time) (open []Window) {
	for _, name := range slices.Sorted(maps.Keys(s.locators)) {
		if l := s.locators[name]; l.window.After(now) {
			open = append(open, Window{l.queue, l.window})
		}
	}
	return open
}

// Remembered returns the time until which the queue refuses a new message with this ID because of an earlier message.
// It returns zero if the ID is not refused. Whether the earlier message is finished, Find tells. It takes one round
// trip for the registry, one per partition, and one more for each partition with a window.
func Remembered(ctx context.Context, c rueidis.Client, prefix, queue, id string) (until time.Time, err error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckID(id)); err != nil {
		return until, err
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err != nil {
		return until, fmt.Errorf("dedup window of %s: %w", id, err)
	}
	for _, partition := range counts.Candidates(id) {
		var end time.Time
		key := lua.NewKeys(prefix, lua.PartitionName(queue, partition)).Seen
		err := view.Ask(ctx, c, view.Score(c.B().Zscore().Key(key).Member(id).Build(), &end))
		var now time.Time
		if err == nil && end.After(until) {
			now, err = view.ServerTimeOf(ctx, c, key)
		}
		if err != nil {
			return until, fmt.Errorf("dedup window of %s: %w", id, err)
		}
		if end.After(until) && end.After(now) { // a window stays in the set for a while after it has ended
			until = end
		}
	}
	return until, nil
}
