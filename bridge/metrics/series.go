package metrics

import (
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
)

// maxHidden is how many hidden series are kept. When there are more, all are dropped. A dropped series starts again
// from 0 when it is shown again.
const maxHidden = 2000

// series holds the metrics of one part for one queue or group, one metric for each event. The caller of Observer.Series
// keeps its series, even while the queue or group has lost its label.
type series struct {
	counters [observe.Events]*atomic.Uint64
	values   [observe.Events]observer
	batches  [observe.Events]observer
	running  *atomic.Int64 // abandoned handlers that still run; nil = the part has no handlers

	replacement    atomic.Pointer[series] // counts in place of this series; nil = this series counts
	countedAsOther atomic.Bool            // replacement has counted something since the last call of active
	lastSum        uint64                 // sum of the counters at the last call of hasCounted; guarded by names.mu
}

// runningChange is the change that an event makes to the number of running abandoned handlers.
var runningChange = [observe.Events]int64{observe.Abandoned: 1, observe.AbandonedReturned: -1}

// current returns the series that counts at present: this series, or its replacement.
func (s *series) current() *series {
	for next := s.replacement.Load(); next != nil; next = s.replacement.Load() {
		s.countedAsOther.Store(true)
		s = next
	}
	return s
}

// Add implements observe.Series.
func (s *series) Add(event observe.Event, n int) {
	s = s.current()
	if c := s.counters[event]; c != nil {
		c.Add(uint64(max(0, n)))
	}
	if b := s.batches[event]; b != nil {
		b.observe(float64(n), 1)
	}
	if s.running != nil {
		s.running.Add(int64(n) * runningChange[event])
	}
}

// AddTimed implements observe.Series.
func (s *series) AddTimed(event observe.Event, n int, d time.Duration) {
	s.addValue(event, n, d.Seconds())
}

// AddSized implements observe.Series.
func (s *series) AddSized(event observe.Event, n, size int) { s.addValue(event, n, float64(size)) }

func (s *series) addValue(event observe.Event, n int, value float64) {
	s = s.current()
	s.Add(event, n)
	if h := s.values[event]; h != nil {
		h.observe(value, n)
	}
}

// hasCounted reports whether something was counted since its last call.
func (s *series) hasCounted() bool {
	sum := uint64(0)
	for _, c := range s.counters {
		if c != nil {
			sum += c.Load()
		}
	}
	changed := sum != s.lastSum
	s.lastSum = sum
	return changed
}

// active returns the labels under which something was counted since its last call, and the hidden labels whose events
// were counted as other since then.
func (e *events) active() (labels, missed []pair) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for key, s := range e.series {
		if s.hasCounted() {
			labels = append(labels, pair{key.queue, key.group})
		}
	}
	for key, s := range e.hidden {
		if s.countedAsOther.Swap(false) {
			missed = append(missed, pair{key.queue, key.group})
		}
	}
	return labels, missed
}

// hide hides the series of a queue or of a group. From then on their events count as other.
func (e *events) hide(p pair) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, s := range e.series {
		if !p.holds(key.queue, key.group) {
			continue
		}
		delete(e.series, key)
		e.hidden[key] = s
		replacement := seriesKey{key.part, key.queue, other}
		if p.group == "" {
			replacement.queue = other
		}
		if key.group == "" {
			replacement.group = ""
		}
		s.replacement.Store(e.ofKey(replacement))
	}
	for _, h := range e.hiders {
		h.hide(p)
	}
	if len(e.hidden) > maxHidden {
		clear(e.hidden)
		for _, h := range e.hiders {
			h.dropHidden()
		}
	}
}

// show shows the series of a queue or of a group again, with their old values.
func (e *events) show(p pair) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, s := range e.hidden {
		// The groups of a shown queue are shown one by one, except "other", which has no label of its own.
		isOfQueue := p.group == "" && key.group == other
		if key.queue == p.queue && (key.group == p.group || isOfQueue) {
			delete(e.hidden, key)
			s.replacement.Store(e.ofKey(key))
		}
	}
}
