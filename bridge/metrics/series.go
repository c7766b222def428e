package metrics

import (
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
)

// mostAway is how many series that were put away are remembered. When there are more, those that come back begin anew.
const mostAway = 2000

// series is what one part does to one queue or group: a metric for each event that it may tell. Who asked for it keeps it, also
// while queue or group have lost their labels.
type series struct {
	counters [observe.Events]*atomic.Uint64
	times    [observe.Events]observer
	batches  [observe.Events]observer
	running  *atomic.Int64 // abandoned handlers; nil: the part has none

	instead atomic.Pointer[series] // what counts instead of this one; nil: it does so itself
	missed  atomic.Bool            // something was counted instead
	told    uint64                 // events that there were at the last look; of names.mu
}

// raises says by how much an event raises the number of abandoned handlers that run.
var raises = [observe.Events]int64{observe.Abandoned: 1, observe.AbandonedReturned: -1}

// now returns what counts.
func (s *series) now() *series {
	for i := s.instead.Load(); i != nil; i = s.instead.Load() {
		s.missed.Store(true)
		s = i
	}
	return s
}

// Add implements observe.Series.
func (s *series) Add(event observe.Event, n int) {
	s = s.now()
	if c := s.counters[event]; c != nil {
		c.Add(uint64(max(0, n)))
	}
	if b := s.batches[event]; b != nil {
		b.observe(float64(n), 1)
	}
	if s.running != nil {
		s.running.Add(int64(n) * raises[event])
	}
}

// Took implements observe.Series.
func (s *series) Took(event observe.Event, n int, d time.Duration) {
	s = s.now()
	s.Add(event, n)
	if t := s.times[event]; t != nil {
		t.observe(d.Seconds(), n)
	}
}

// counted says whether something was counted since it was asked last.
func (s *series) counted() bool {
	sum := uint64(0)
	for _, c := range s.counters {
		if c != nil {
			sum += c.Load()
		}
	}
	was := s.told
	s.told = sum
	return sum != was
}

// active returns the labels for which something was counted since it was asked last, and those that were put away and for which
// something was counted as other.
func (e *events) active() (labels, missed []pair) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for key, s := range e.series {
		if s.counted() {
			labels = append(labels, pair{key.queue, key.group})
		}
	}
	for key, s := range e.away {
		if s.missed.Swap(false) {
			missed = append(missed, pair{key.queue, key.group})
		}
	}
	return labels, missed
}

// putAway takes the series of a queue, or of a group, out of what is shown. What is still counted there counts as other.
func (e *events) putAway(p pair) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, s := range e.series {
		if !p.holds(key.queue, key.group) {
			continue
		}
		delete(e.series, key)
		e.away[key] = s
		instead := seriesKey{key.part, key.queue, other}
		if p.group == "" {
			instead.queue = other
		}
		if key.group == "" {
			instead.group = ""
		}
		s.instead.Store(e.ofKey(instead))
	}
	for _, h := range e.holders {
		h.putAway(p)
	}
	if len(e.away) > mostAway {
		clear(e.away)
		for _, h := range e.holders {
			h.forget()
		}
	}
}

// bringBack has the series of a queue go on where they ended, or those of a group.
func (e *events) bringBack(p pair) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, s := range e.away {
		if key.queue == p.queue && (key.group == p.group || p.group == "" && key.group == other) {
			delete(e.away, key)
			s.instead.Store(e.ofKey(key))
		}
	}
}
