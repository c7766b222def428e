package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// family holds what is counted for one metric, by labels. What belongs to a queue or group can be put away, and comes back as it
// was: a counter that began anew could be taken for one that went on.
type family[T any] struct {
	desc   *prometheus.Desc
	labels []string
	make   func() *T

	mu        sync.Mutex
	all, away map[labelValues]*T
}

type labelValues [3]string

func newFamily[T any](name, help string, labels []string, one func() *T) *family[T] {
	return &family[T]{desc: prometheus.NewDesc("duestream_"+name, help, labels, nil), labels: labels, make: one,
		all: map[labelValues]*T{}, away: map[labelValues]*T{}}
}

// with returns the one with these labels, always the same one.
func (f *family[T]) with(labels ...string) *T {
	var key labelValues
	copy(key[:], labels)
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.all[key]
	if one == nil {
		if one = f.away[key]; one == nil {
			one = f.make()
		}
		delete(f.away, key)
		f.all[key] = one
	}
	return one
}

func (f *family[T]) putAway(p pair) {
	if len(f.labels) == 0 || f.labels[0] != "queue" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, one := range f.all {
		if p.holds(key[0], key[1]) {
			delete(f.all, key)
			f.away[key] = one
		}
	}
}

// forget forgets what was put away.
func (f *family[T]) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.away)
}

// each calls do for all that are there. It holds no lock meanwhile: who collects may be slow, and those that count must not wait.
func (f *family[T]) each(do func(one *T, labels []string)) {
	f.mu.Lock()
	all := maps.Clone(f.all)
	f.mu.Unlock()
	for key, one := range all {
		do(one, key[:len(f.labels)])
	}
}

// Describe implements prometheus.Collector.
func (f *family[T]) Describe(out chan<- *prometheus.Desc) { out <- f.desc }

// holder is what shows series that belong to queues and groups.
type holder interface {
	prometheus.Collector
	putAway(pair)
	forget()
}

// levels are the series of one gauge that goes up and down by events.
type levels struct{ *family[atomic.Int64] }

func newLevels(name, help string, labels []string) levels {
	return levels{newFamily(name, help, labels, func() *atomic.Int64 { return new(atomic.Int64) })}
}

// Collect implements prometheus.Collector. What went up under one label may go down under "other", so none is shown below zero.
func (l levels) Collect(out chan<- prometheus.Metric) {
	l.each(func(one *atomic.Int64, labels []string) {
		out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(max(0, one.Load())), labels...)
	})
}

// counters are the series of one counter.
type counters struct{ *family[atomic.Uint64] }

func newCounters(name, help string, labels []string) counters {
	return counters{newFamily(name, help, labels, func() *atomic.Uint64 { return new(atomic.Uint64) })}
}

// Collect implements prometheus.Collector.
func (c counters) Collect(out chan<- prometheus.Metric) {
	c.each(func(one *atomic.Uint64, labels []string) {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(one.Load()), labels...)
	})
}
