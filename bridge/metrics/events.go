package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// timeBuckets are the classic buckets of all durations. Alerting rules and dashboards depend on them.
var timeBuckets = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 900, 3600}

var (
	batchBuckets   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
	attemptBuckets = []float64{1, 2, 3, 5, 10, 20, 40}
)

// counterOf maps an event to the counter that counts the event, and to the value of the label reason or part.
var counterOf = [observe.Events]struct{ name, reason string }{
	observe.Enqueued: {name: "enqueued"}, observe.EnqueuedReady: {name: "enqueued_ready"}, observe.Duplicate: {name: "duplicates"},
	observe.Cancelled: {name: "cancelled"}, observe.Rescheduled: {name: "rescheduled"},
	observe.Heartbeat: {name: "heartbeats"}, observe.BridgeReconnect: {name: "reconnects", reason: "bridge"},
	observe.WorkerReconnect: {name: "reconnects", reason: "worker"},
	observe.Drained:         {name: "drained"}, observe.DeadDrained: {name: "dead_lettered", reason: "drained"},
	observe.Freed: {name: "freed"}, observe.WindowEnded: {name: "windows_ended"}, observe.OrphanDeleted: {name: "orphans"},
	observe.Reclaimed: {name: "reclaimed"}, observe.RetriedVisibility: {name: "retried", reason: lua.ReasonVisibilityTimeout},
	observe.DeadReclaimed: {name: "dead_lettered", reason: "reclaimed"},
	observe.Delivered:     {name: "delivered"}, observe.Acknowledged: {name: "acknowledged"},
	observe.RetriedError: {name: "retried", reason: "error"}, observe.RetriedAfter: {name: "retried", reason: "retry_after"},
	observe.RetriedPanic:    {name: "retried", reason: "panic"},
	observe.RetriedTimeout:  {name: "retried", reason: lua.ReasonHandlerTimeout},
	observe.DeadTimeout:     {name: "dead_lettered", reason: lua.ReasonHandlerTimeout},
	observe.HandlerTimeout:  {name: "handler_timeouts"},
	observe.Abandoned:       {name: "handlers_abandoned"},
	observe.DeadMaxAttempts: {name: "dead_lettered", reason: lua.ReasonMaxAttempts},
	observe.DeadRetryFor:    {name: "dead_lettered", reason: lua.ReasonRetryFor},
	observe.DeadSnoozes:     {name: "dead_lettered", reason: lua.ReasonMaxSnoozes},
	observe.DeadLetter:      {name: "dead_lettered", reason: lua.ReasonDeadLetter},
	observe.Released:        {name: "released"}, observe.Snoozed: {name: "snoozed"}, observe.Skipped: {name: "skipped"}, observe.Lost: {name: "lost"},
	observe.CancelledHeld: {name: "cancelled_deliveries"},
	observe.Unknown:       {name: "unknown"}, observe.Stuck: {name: "stuck"},
	observe.Redriven: {name: "redriven"}, observe.Purged: {name: "purged"},
}

// batches are the events that may come in batches, with their label in duestream_batch_messages.
var batches = [observe.Events]string{
	observe.Enqueued: "enqueued", observe.Drained: "drained", observe.Acking: "acknowledged", observe.Failing: "failed",
	observe.Reclaimed: "reclaimed", observe.Freed: "freed",
}

// parts lists the events of each part, so that a bridge shows no zeros for events that only a worker has.
var parts = [...]struct{ process, queue, group []observe.Event }{
	observe.Client: {queue: []observe.Event{
		observe.Enqueued, observe.EnqueuedReady, observe.Duplicate, observe.Cancelled, observe.Rescheduled,
	}},
	observe.Bridge: {
		process: []observe.Event{observe.Heartbeat, observe.BridgeReconnect},
		queue: []observe.Event{
			observe.Drained, observe.DeadDrained, observe.Freed, observe.WindowEnded, observe.OrphanDeleted,
		},
		group: []observe.Event{observe.Reclaimed, observe.RetriedVisibility, observe.DeadReclaimed, observe.Stuck},
	},
	observe.Worker: {group: []observe.Event{
		observe.Delivered, observe.Handling, observe.Handled, observe.Acknowledged, observe.RetriedError, observe.RetriedAfter,
		observe.RetriedPanic, observe.RetriedTimeout, observe.DeadMaxAttempts, observe.DeadTimeout, observe.DeadRetryFor,
		observe.DeadSnoozes, observe.DeadLetter, observe.CancelledHeld,
		observe.Released, observe.Snoozed, observe.Skipped, observe.Lost, observe.Unknown, observe.Stuck, observe.Settled,
		observe.Attempts, observe.WorkerReconnect, observe.Acking, observe.Failing, observe.HandlerTimeout, observe.Abandoned,
		observe.AbandonedReturned,
	}},
	observe.Operator: {queue: []observe.Event{observe.Redriven, observe.Purged}},
}

// events holds the metrics that count events: counters, histograms and the gauge of abandoned handlers.
type events struct {
	names    *names
	hiders   []hider
	counters map[string]counters
	valued   [observe.Events]*histograms // of the events that have a value
	batch    *histograms
	scripts  *histograms
	errors   *prometheus.CounterVec
	running  levels

	mu             sync.RWMutex
	series, hidden map[seriesKey]*series
	script         map[string]observer
}

type seriesKey struct {
	part         observe.Part
	queue, group string // labels
}

func newEvents(n *names, withNative bool) *events {
	e := &events{names: n, counters: map[string]counters{}, series: map[seriesKey]*series{},
		hidden: map[seriesKey]*series{}, script: map[string]observer{}}
	n.events = e
	for _, c := range counterHelp {
		e.counters[c.name] = newCounters(c.name+"_total", c.help, c.labels)
		e.hiders = append(e.hiders, e.counters[c.name])
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *histograms {
		h := newHistograms(name, help, buckets, labels...)
		if withNative {
			h.native = prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: "duestream_" + name, Help: help, Buckets: buckets,
				NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
				NativeHistogramMinResetDuration: time.Hour}, labels)
		}
		e.hiders = append(e.hiders, h)
		return h
	}
	e.valued[observe.Drained] = histogram("lateness_seconds",
		"Time from due to ready; each message of a drain counts with the lateness of the oldest.", timeBuckets, "queue")
	e.valued[observe.Handling] = histogram("handler_lateness_seconds",
		"Time from due to the start of the handler.", timeBuckets, "queue", "group")
	e.valued[observe.Handled] = histogram("handler_duration_seconds",
		"Time that handlers ran.", timeBuckets, "queue", "group")
	e.valued[observe.Settled] = histogram("acknowledge_duration_seconds",
		"Time from the end of the handler until Redis had settled the delivery.", timeBuckets, "queue", "group")
	e.valued[observe.Attempts] = histogram("attempts", "Attempts of a message until it was acknowledged.",
		attemptBuckets, "queue", "group")
	e.batch = histogram("batch_messages", "Messages of one call, by what happened to them.", batchBuckets, "event")
	e.scripts = histogram("script_duration_seconds",
		"Time of one script call, including the round trip to Redis.", timeBuckets, "script")
	e.running = newLevels("handlers_abandoned_running", "Abandoned handlers that have not returned.", byGroup)
	e.hiders = append(e.hiders, e.running)
	e.errors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "duestream_errors_total",
		Help: "Calls to Redis that failed, by the kind of error."}, []string{"kind"})
	for _, kind := range errorKinds {
		e.errors.WithLabelValues(kind.name)
	}
	e.errors.WithLabelValues(timeoutKind)
	return e
}

// of returns the series of a queue and group. It is always the same series while they keep their labels.
func (e *events) of(part observe.Part, queue, group string) *series {
	key := seriesKey{part: part}
	if queue != "" {
		key.queue, key.group = e.names.labels(queue, group)
	}
	e.mu.RLock()
	s := e.series[key]
	e.mu.RUnlock()
	if s != nil {
		return s
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ofKey(key)
}

// ofKey returns the series with the given labels. The caller holds mu.
func (e *events) ofKey(key seriesKey) *series {
	s := e.series[key]
	if s == nil {
		s = e.newSeries(key)
		e.series[key] = s
	}
	return s
}

// newSeries returns new series with the given labels, for the events that the part can have.
func (e *events) newSeries(key seriesKey) *series {
	s, partEvents := &series{}, parts[key.part].process
	switch {
	case key.group != "":
		partEvents = parts[key.part].group
	case key.queue != "":
		partEvents = parts[key.part].queue
	}
	if key.part == observe.Worker && key.group != "" {
		s.running = e.running.with(key.queue, key.group)
	}
	for _, event := range partEvents {
		if c := counterOf[event]; c.name != "" {
			s.counters[event] = e.counters[c.name].with(labelsOf(c.name, key, c.reason)...)
		}
		if v := e.valued[event]; v != nil {
			s.values[event] = v.with(timeLabels(event, key)...)
		}
		if name := batches[event]; name != "" {
			s.batches[event] = e.batch.with(name)
		}
	}
	return s
}

// timeLabels returns the labels of the histogram of an event's values.
func timeLabels(event observe.Event, key seriesKey) []string {
	if event == observe.Drained {
		return []string{key.queue}
	}
	return []string{key.queue, key.group}
}

// errorKinds are the kinds by which errors of Redis are counted. A missing group or key does not count as an error.
var errorKinds = []struct {
	name string
	kind error
}{
	{"unavailable", lua.ErrUnavailable}, {"denied", lua.ErrDenied}, {"untrusted", lua.ErrUntrusted}, {"full", lua.ErrFull},
	{"wrong_type", lua.ErrWrongType}, {"unsupported", lua.ErrUnsupported},
}

const timeoutKind = "timeout"

// call records a call to Redis that has ended.
func (e *events) call(script string, took time.Duration, err error) {
	if err != nil {
		e.count(err)
	}
	if script == "" {
		return
	}
	e.mu.RLock()
	o := e.script[script]
	e.mu.RUnlock()
	if o == nil {
		o = e.scripts.with(script) // bounded, because duestream has a fixed set of scripts
		e.mu.Lock()
		e.script[script] = o
		e.mu.Unlock()
	}
	o.observe(took.Seconds(), 1)
}

// count counts an error by its kind.
func (e *events) count(err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		e.errors.WithLabelValues(timeoutKind).Inc()
		return
	}
	err = lua.Classify("", err)
	for _, one := range errorKinds {
		if errors.Is(err, one.kind) {
			e.errors.WithLabelValues(one.name).Inc()
			return
		}
	}
}

// Describe implements prometheus.Collector.
func (e *events) Describe(out chan<- *prometheus.Desc) {
	for _, h := range e.hiders {
		h.Describe(out)
	}
	e.errors.Describe(out)
}

// Collect implements prometheus.Collector.
func (e *events) Collect(out chan<- prometheus.Metric) {
	for _, h := range e.hiders {
		h.Collect(out)
	}
	e.errors.Collect(out)
}
