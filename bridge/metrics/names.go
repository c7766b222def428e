package metrics

import (
	"hash/maphash"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/lua"
)

// other is the label of all queues, and of all groups, beyond those that have labels of their own.
const other = "other"

// mostOthers is how many names beyond the bound are told apart, only to say how many they are.
const mostOthers = 100_000

// names gives queues and groups their labels, so that there are never more than a process was told to have, and none that
// Prometheus cannot hold: client_golang fails a whole scrape for one label that is not UTF-8.
type names struct {
	seed                 maphash.Seed
	maxQueues, maxGroups int
	otherQueues          *prometheus.Desc
	otherGroups          *prometheus.Desc

	mu             sync.RWMutex
	queues         map[string]bool
	groups         map[pair]bool
	beyond, others map[uint64]bool // queues and groups, by hash
}

type pair struct{ queue, group string }

func newNames(maxQueues, maxGroups int) *names {
	return &names{
		seed: maphash.MakeSeed(), maxQueues: maxQueues, maxGroups: maxGroups,
		queues: map[string]bool{}, groups: map[pair]bool{}, beyond: map[uint64]bool{}, others: map[uint64]bool{},
		otherQueues: prometheus.NewDesc("duestream_other_queues", "Queues that are counted together as other.", nil, nil),
		otherGroups: prometheus.NewDesc("duestream_other_groups", "Pairs of queue and group that are counted together as other.",
			nil, nil),
	}
}

// labels returns the labels of a queue and a group, which may be "".
func (n *names) labels(queue, group string) (queueLabel, groupLabel string) {
	p := pair{queue, group}
	n.mu.RLock()
	known := n.queues[queue] && (group == "" || n.groups[p])
	n.mu.RUnlock()
	if known {
		return queue, group
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.queues[queue] {
		if queue == other || len(n.queues) >= n.maxQueues || lua.CheckQueue(queue) != nil {
			n.note(n.beyond, queue)
			queue = other
		} else {
			n.queues[queue] = true
		}
	}
	if group == "" {
		return queue, ""
	}
	if queue == other || !n.groups[p] && (group == other || len(n.groups) >= n.maxGroups || lua.CheckGroup(group) != nil) {
		n.note(n.others, p.queue+"\x00"+group)
		return queue, other
	}
	n.groups[p] = true
	return queue, group
}

func (n *names) note(set map[uint64]bool, name string) {
	if len(set) < mostOthers {
		set[maphash.String(n.seed, name)] = true
	}
}

// Describe implements prometheus.Collector.
func (n *names) Describe(out chan<- *prometheus.Desc) {
	out <- n.otherQueues
	out <- n.otherGroups
}

// Collect implements prometheus.Collector.
func (n *names) Collect(out chan<- prometheus.Metric) {
	n.mu.RLock()
	queues, groups := len(n.beyond), len(n.others)
	n.mu.RUnlock()
	out <- prometheus.MustNewConstMetric(n.otherQueues, prometheus.GaugeValue, float64(queues))
	out <- prometheus.MustNewConstMetric(n.otherGroups, prometheus.GaugeValue, float64(groups))
}
