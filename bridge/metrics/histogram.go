package metrics

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram counts values in classic buckets. It records many equal values at the cost of one value, because a drain
// may have a thousand messages of the same lateness. It records one value at half the cost of client_golang's
// histogram.
type histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one for each bound, and the last for values above all bounds
	// sum holds the bits of a float64. An integer would overflow, because a due time of another program may be decades
	// late.
	sum atomic.Uint64
}

func (h *histogram) observe(v float64, n int) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i].Add(uint64(n))
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v*float64(n))) {
			return
		}
	}
}

// observer records n equal values.
type observer interface{ observe(v float64, n int) }

// native is a client_golang histogram, which has native buckets beside the classic ones.
type native struct{ prometheus.Observer }

func (o native) observe(v float64, n int) {
	for range n {
		o.Observe(v)
	}
}

// histograms are the series of one histogram.
type histograms struct {
	*family[histogram]
	native *prometheus.HistogramVec // nil without Config.NativeHistograms
}

func newHistograms(name, help string, bounds []float64, labels ...string) *histograms {
	return &histograms{family: newFamily(name, help, labels, func() *histogram {
		return &histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
	})}
}

// with returns the histogram with these labels, always the same one.
func (h *histograms) with(labels ...string) observer {
	if h.native != nil {
		return native{h.native.WithLabelValues(labels...)}
	}
	return h.family.with(labels...)
}

// hide implements hider. It deletes native histograms: a native histogram carries the time of its start, so Prometheus
// notices that it was reset.
func (h *histograms) hide(p pair) {
	h.family.hide(p)
	if h.native == nil || len(h.labels) == 0 || h.labels[0] != "queue" {
		return
	}
	labels := prometheus.Labels{"queue": p.queue}
	if p.group != "" {
		labels["group"] = p.group
	}
	h.native.DeletePartialMatch(labels)
}

// Collect implements prometheus.Collector. A value that is recorded during the call may be in the sum and not in a
// bucket, or in a bucket and not in the sum, until the next scrape.
func (h *histograms) Collect(out chan<- prometheus.Metric) {
	if h.native != nil {
		h.native.Collect(out)
		return
	}
	h.each(func(one *histogram, labels []string) {
		buckets, count := make(map[float64]uint64, len(one.bounds)), uint64(0)
		for i, bound := range one.bounds {
			count += one.counts[i].Load()
			buckets[bound] = count
		}
		count += one.counts[len(one.bounds)].Load()
		out <- prometheus.MustNewConstHistogram(h.desc, count, math.Float64frombits(one.sum.Load()), buckets, labels...)
	})
}
