package metrics

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/observe"
)

// outboxes are the relays of this process, by the table of their outbox.
type outboxes struct {
	timeout time.Duration

	mu     sync.Mutex
	relays []*observe.RelayView
	ended  map[string]observe.RelayCounts // of relays that have ended, by table
}

func outboxDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("duestream_outbox_"+name, help, append([]string{"table"}, labels...), nil)
}

var (
	outboxWaiting = outboxDesc("waiting_rows", "Rows that wait for a relay.")
	outboxFailed  = outboxDesc("failed_rows", "Rows that were refused, and are kept with their errors.")
	outboxOldest  = outboxDesc("oldest_row_seconds", "Age of the oldest row that waits; 0 = none waits.")
	outboxDone    = outboxDesc("handed_over_total", "Rows that relays of this process handed over and deleted.", "result")
	outboxRefused = outboxDesc("refused_total", "Rows that relays of this process kept with an error.")
	outboxPutOff  = outboxDesc("put_off_total", "Hand-overs of single rows that failed, and are repeated later.")
)

// RelayStarted follows a relay of an outbox: see outbox.RelayConfig.Observer.
func (m *Metrics) RelayStarted(r observe.RelayView) (ended func()) {
	o, one := m.outboxes, &r
	o.mu.Lock()
	defer o.mu.Unlock()
	o.relays = append(o.relays, one)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.relays = slices.DeleteFunc(slices.Clone(o.relays), func(other *observe.RelayView) bool { return other == one })
		o.ended[r.Table] = sumOf(o.ended[r.Table], r.Counts())
	}
}

func sumOf(a, b observe.RelayCounts) observe.RelayCounts {
	return observe.RelayCounts{Scheduled: a.Scheduled + b.Scheduled, Cancelled: a.Cancelled + b.Cancelled,
		Duplicates: a.Duplicates + b.Duplicates, TooLate: a.TooLate + b.TooLate, Refused: a.Refused + b.Refused,
		PutOff: a.PutOff + b.PutOff}
}

// Describe implements prometheus.Collector.
func (o *outboxes) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		outboxWaiting, outboxFailed, outboxOldest, outboxDone, outboxRefused, outboxPutOff,
	} {
		out <- d
	}
}

// read returns the metrics of all outboxes, within the timeout. The gauges of a table that cannot be read are left out.
func (o *outboxes) read() (all []prometheus.Metric) {
	o.mu.Lock()
	relays, counts := o.relays, map[string]observe.RelayCounts{}
	for table, ended := range o.ended {
		counts[table] = ended
	}
	for _, r := range relays {
		counts[r.Table] = sumOf(counts[r.Table], r.Counts())
	}
	o.mu.Unlock()
	add := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(d, kind, v, labels...))
	}
	for table, n := range counts {
		add(outboxDone, prometheus.CounterValue, float64(n.Scheduled), table, "scheduled")
		add(outboxDone, prometheus.CounterValue, float64(n.Cancelled), table, "cancelled")
		add(outboxDone, prometheus.CounterValue, float64(n.Duplicates), table, "duplicate")
		add(outboxDone, prometheus.CounterValue, float64(n.TooLate), table, "too_late")
		add(outboxRefused, prometheus.CounterValue, float64(n.Refused), table)
		add(outboxPutOff, prometheus.CounterValue, float64(n.PutOff), table)
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	read := map[string]bool{}
	for _, r := range relays {
		if read[r.Table] {
			continue
		}
		rows, err := r.Rows(ctx)
		if err != nil {
			continue
		}
		read[r.Table] = true
		add(outboxWaiting, prometheus.GaugeValue, float64(rows.Waiting), r.Table)
		add(outboxFailed, prometheus.GaugeValue, float64(rows.Failed), r.Table)
		add(outboxOldest, prometheus.GaugeValue, rows.Oldest.Seconds(), r.Table)
	}
	return all
}
