package metrics

import (
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
)

// mostAway is how many series are kept that were put away. Beyond it all are dropped: they start again from 0 if they
// come back.
const mostAway = 2000

// series holds the metrics of one part for one queue or group, one for each event. The caller of Observer.Of keeps it,
// even while the queue or group has lost its label.
type series struct {
	counters [observe.Events]*atomic.Uint64
	times    [observe.Events]observer
	batches  [observe.Events]observer
	running  *atomic.Int64 // abandoned handlers that still run; nil = the part has no handlers

	instead atomic.Pointer[series] // counts in place of this one; nil = this one counts itself
	missed  atomic.Bool            // instead has counted something since the last call of active
	told    uint64                 // sum of the counters at the last call of counted; guarded by names.mu
}

// raises is the change that an event makes to the number of running abandoned handlers.
var raises = [observe.Events]int64{observe.Abandoned: 1, observe.AbandonedReturned: -1}

// now returns the series that counts at present: this one, or the one in place of it.
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

// AddTimed implements observe.Series.
func (s *series) AddTimed(event observe.Event, n int, d time.Duration) {
	s = s.now()
	s.Add(event, n)
	if t := s.times[event]; t != nil {
		t.observe(d.Seconds(), n)
	}
}

// counted reports whether something was counted since its last call.
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

// active returns the labels under which something was counted since its last call, and the labels that were put away
// and had something counted as other since then.
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

// putAway hides the series of a queue or of a group. From then on their events count as other.
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

// bringBack shows the series of a queue or of a group again, with their old values.
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
