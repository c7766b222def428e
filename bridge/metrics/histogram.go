package metrics

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram counts values in classic buckets. Unlike that of client_golang it takes many equal values at the cost of one, and one
// at half the cost: a drain brings a thousand of the same lateness.
type histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds: the last one is for what is above all
	sum    atomic.Uint64   // bits of a float64: foreign due times may be decades late, and whole numbers would overflow
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

// observer takes n equal values.
type observer interface{ observe(v float64, n int) }

// native is a histogram of client_golang, for native buckets beside the classic ones.
type native struct{ prometheus.Observer }

func (o native) observe(v float64, n int) {
	for range n {
		o.Observe(v)
	}
}

// histograms are those of one metric, by their labels.
type histograms struct {
	desc   *prometheus.Desc
	bounds []float64
	native *prometheus.HistogramVec // nil unless native ones are wanted

	mu  sync.Mutex
	all map[[2]string]*histogram
	n   int // how many labels there are
}

// with returns the one with these labels, always the same one.
func (h *histograms) with(labels ...string) observer {
	if h.native != nil {
		return native{h.native.WithLabelValues(labels...)}
	}
	var key [2]string
	copy(key[:], labels)
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.all[key]
	if one == nil {
		one = &histogram{bounds: h.bounds, counts: make([]atomic.Uint64, len(h.bounds)+1)}
		h.all[key] = one
	}
	return one
}

// Describe implements prometheus.Collector.
func (h *histograms) Describe(out chan<- *prometheus.Desc) { out <- h.desc }

// Collect implements prometheus.Collector. What is observed meanwhile may be in the sum and not in a bucket yet, or the other way
// round, until the next scrape.
func (h *histograms) Collect(out chan<- prometheus.Metric) {
	if h.native != nil {
		h.native.Collect(out)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for labels, one := range h.all {
		buckets, count := make(map[float64]uint64, len(h.bounds)), uint64(0)
		for i, bound := range h.bounds {
			count += one.counts[i].Load()
			buckets[bound] = count
		}
		count += one.counts[len(h.bounds)].Load()
		out <- prometheus.MustNewConstHistogram(h.desc, count, math.Float64frombits(one.sum.Load()), buckets, labels[:h.n]...)
	}
}
