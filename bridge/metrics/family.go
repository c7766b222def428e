package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// family holds the series of one metric by labels. The series of a queue or group can be hidden, and shown again later
// with their old values, because Prometheus might take a counter that starts again from 0 for one that continues.
type family[T any] struct {
	desc   *prometheus.Desc
	labels []string
	make   func() *T

	mu            sync.Mutex
	shown, hidden map[labelValues]*T
}

type labelValues [3]string

func newFamily[T any](name, help string, labels []string, newSeries func() *T) *family[T] {
	return &family[T]{desc: prometheus.NewDesc("duestream_"+name, help, labels, nil), labels: labels, make: newSeries,
		shown: map[labelValues]*T{}, hidden: map[labelValues]*T{}}
}

// with returns the series with these labels, always the same one.
func (f *family[T]) with(labels ...string) *T {
	var key labelValues
	copy(key[:], labels)
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.shown[key]; one != nil {
		return one
	}
	one := f.hidden[key]
	if one == nil {
		one = f.make()
	}
	delete(f.hidden, key)
	f.shown[key] = one
	return one
}

// hide hides the series of a queue or group, until with shows them again.
func (f *family[T]) hide(p pair) {
	if len(f.labels) == 0 || f.labels[0] != "queue" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, one := range f.shown {
		if p.holds(key[0], key[1]) {
			delete(f.shown, key)
			f.hidden[key] = one
		}
	}
}

// dropHidden drops the hidden series.
func (f *family[T]) dropHidden() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.hidden)
}

// each calls do for every shown series. It holds no lock during the calls, because collecting may be slow and must not
// delay counting.
func (f *family[T]) each(do func(one *T, labels []string)) {
	f.mu.Lock()
	all := maps.Clone(f.shown)
	f.mu.Unlock()
	for key, one := range all {
		do(one, key[:len(f.labels)])
	}
}

// Describe implements prometheus.Collector.
func (f *family[T]) Describe(out chan<- *prometheus.Desc) { out <- f.desc }

// hider is a collector whose series of a queue or group can be hidden.
type hider interface {
	prometheus.Collector
	hide(pair)
	dropHidden()
}

// levels are the series of one gauge that events raise and lower.
type levels struct{ *family[atomic.Int64] }

func newLevels(name, help string, labels []string) levels {
	return levels{newFamily(name, help, labels, func() *atomic.Int64 { return new(atomic.Int64) })}
}

// Collect implements prometheus.Collector. It shows a negative value as zero, because a gauge may be raised under one
// label and lowered under "other".
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
