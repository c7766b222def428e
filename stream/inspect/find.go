package inspect

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
	For        string `json:"for,omitempty"`        // ready, pending: the group, of a retry
	Deliveries int64  `json:"deliveries,omitempty"` // pending: how often the entry was delivered, by the server's count
	Cancelled  bool   `json:"cancelled,omitempty"`  // pending: it was cancelled; the consumer learns of it, and ends it
	// scheduled, retrying: ID of the entry that was scheduled again, or of the letter that was redriven
	Before string `json:"before,omitempty"`
}

// Window is an open dedup window: a message with this ID was taken, and not cancelled since.
type Window struct {
	Queue string    `json:"queue"`
	Until time.Time `json:"until"`
}

// Finding is the result of Find: the places of a message, its history with times, and the extent of the search.
type Finding struct {
	ID      string     `json:"id"`
	At      time.Time  `json:"at"` // by the server's clock, at the beginning of the search
	Places  []Sighting `json:"places"`
	Why     string     `json:"why,omitempty"` // why it is nowhere, if known; each place has its own Why
	History []Moment   `json:"history"`
	Windows []Window   `json:"windows,omitempty"`
	Queues  int        `json:"queues"` // searched
	Looked  int64      `json:"looked"` // members, entries and letters that were read, where no lookup by ID is possible
}

// FindOptions change what Find does. The zero value is valid.
type FindOptions struct {
	Queues []string // where to look; none = all registered queues

	// Connect, when set, lets Find open two more connections to each server, on which it reads streams in half the
	// time. Without it, or if the server refuses them, Find reads streams through the client.
	Connect *rueidis.ClientOption

	Seen     func(Sighting)            // called for each place as soon as it is found, one at a time
	Progress func(looked, total int64) // called at intervals, one call at a time; total grows
}

// Find returns every place where Redis holds a message, in all queues of the prefix, with its known history.
// ErrNotFound: there is none, because every group has acknowledged the message, or it was cancelled or purged, or never
// existed; the Finding tells where Find looked.
//
// A scheduled message is looked up by its ID. For retries, entries and dead letters Find reads all of them: streams
// from both ends at once, in pages of about 64 KiB; the hash meta, or the schedule if that is smaller, in steps of
// 1,000. A message that moves meanwhile may appear in two places. If none is found, Find looks a second time, in the
// data added since.
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
	var filters []rueidis.Client
	// one connection per direction: while a page of one is parsed, the server sends the other's
	for o.Connect != nil && len(filters) < 2 {
		filter, err := newFilterClient(*o.Connect, id)
		if err != nil {
			break
		}
		defer filter.Close()
		filters = append(filters, filter)
	}
	s := newFinder(c, filters, prefix, id)
	s.seen, s.progress = o.Seen, o.Progress
	s.around = newSurroundings(ctx, c, prefix, f.At)
	places, queues, err := s.find(ctx, o.Queues)
	f.Places, f.Queues, f.Looked, f.Windows = append(f.Places, places...), queues, s.total, s.windows(f.At)
	f.History = history(f)
	if errors.Is(err, deadletter.ErrNotFound) {
		f.Why = s.around.whyNowhere(f)
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
	found, _, err := newFinder(c, nil, prefix, id).find(ctx, []string{queue})
	if err != nil {
		return nil, fmt.Errorf("locate %s in %s: %w", id, queue, err)
	}
	places := make([]Place, len(found))
	for i, one := range found {
		places[i] = one.Place
	}
	return places, nil
}

// queueCounts returns the partition counts of queues; with no names, of all registered queues.
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
	streams    *streamSearch
	around     *surroundings // nil: reasons are not wanted

	mu          sync.Mutex
	seen        func(Sighting)
	progress    func(looked, total int64)
	done, total int64
	locators    map[string]*locator // by partition
}

func newFinder(c rueidis.Client, filters []rueidis.Client, prefix, id string) *finder {
	s := &finder{c: c, prefix: prefix, id: id, locators: map[string]*locator{}}
	s.streams = &streamSearch{c: c, filters: filters, id: id, looked: func(n int) { s.step(int64(n), 0) }}
	return s
}

// find looks in these queues, or in all, and a second time if it found nothing. queues is their number. With an error
// it returns the places found before.
func (s *finder) find(ctx context.Context, only []string) (found []Sighting, queues int, err error) {
	for range 2 {
		counts, err := queueCounts(ctx, s.c, s.prefix, only)
		if err != nil {
			return found, queues, err
		}
		looks := s.locatorsIn(counts)
		names := make([]string, len(looks))
		for i, l := range looks {
			names[i] = lua.PartitionName(l.queue, l.partition)
		}
		places := make([][]Sighting, len(looks))
		err = view.EachPartition(names, func(i int, _ string) (err error) {
			places[i], err = looks[i].look(ctx)
			return err
		})
		found, queues = slices.Concat(places...), len(counts)
		if err != nil || len(found) > 0 {
			return found, queues, err
		}
	}
	return nil, queues, deadletter.ErrNotFound
}

// locatorsIn returns a locator for each partition of the queues: the unknown key of the message decides its partition.
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

// step adds to the number of items read, and to the number to read.
func (s *finder) step(done, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += done
	s.total += total
	if s.progress != nil {
		s.progress(min(s.done, s.total), s.total) // items read from both ends of a stream count twice
	}
}

func (s *finder) windows(now time.Time) (open []Window) {
	for _, name := range slices.Sorted(maps.Keys(s.locators)) {
		if l := s.locators[name]; l.window.After(now) {
			open = append(open, Window{l.queue, l.window})
		}
	}
	return open
}

// Remembered returns the time until which the ID of a message is refused because of an earlier message; zero if it is
// not refused. It does not tell whether that message is finished: Find does. One round trip per partition, one more
// where there is a window, and one for the registry.
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
		if end.After(until) && end.After(now) { // an ended window stays for a while
			until = end
		}
	}
	return until, nil
}
