package metrics

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/lua"
)

// other is the shared label of all queues and groups without a label of their own.
const other = "other"

// maxOthers bounds the counted names without a label, for duestream_other_queues and duestream_other_groups.
const maxOthers = 100_000

// When no label is free, unused labels are freed.
const (
	unusedAfter = time.Hour        // a label is unused if its last use is longer ago
	freeEvery   = 10 * time.Second // least time between two searches for unused labels
)

// names assigns labels to queues and groups. It keeps within the configured bounds, and refuses names that a label
// cannot hold: client_golang fails a whole scrape for one label that is not UTF-8.
type names struct {
	seed                 maphash.Seed
	maxQueues, maxGroups int
	otherQueues          *prometheus.Desc
	otherGroups          *prometheus.Desc
	events               *events

	mu                                 sync.RWMutex // lock it before events.mu
	queues                             map[string]*name
	groups                             map[pair]*name
	unlabelledQueues, unlabelledGroups map[uint64]bool // hashes of the queues and of the groups without a label
	freedAt                            time.Time       // when unused labels were last searched for
}

// name is a queue or group that has a label.
type name struct {
	lastUse     atomic.Int64 // Unix seconds
	onlyLetters bool         // only dead letters name the group
}

// pair is a group of a queue, or a queue if group is "".
type pair struct{ queue, group string }

// String returns a text that differs for any two pairs.
func (p pair) String() string { return p.queue + "\x00" + p.group }

// holds reports whether a queue and group belong to the pair. A pair without a group holds all groups of its queue.
func (p pair) holds(queue, group string) bool {
	return queue == p.queue && (p.group == "" || group == p.group)
}

func newNames(maxQueues, maxGroups int) *names {
	return &names{
		seed: maphash.MakeSeed(), maxQueues: maxQueues, maxGroups: maxGroups,
		queues: map[string]*name{}, groups: map[pair]*name{},
		unlabelledQueues: map[uint64]bool{}, unlabelledGroups: map[uint64]bool{},
		otherQueues: prometheus.NewDesc("duestream_other_queues", "Queues that are counted together as other.", nil, nil),
		otherGroups: prometheus.NewDesc("duestream_other_groups", "Pairs of queue and group that are counted together as other.",
			nil, nil),
	}
}

// labels returns the labels of a queue and a group, which may be "". It counts as a use of both labels.
func (n *names) labels(queue, group string) (queueLabel, groupLabel string) {
	now := time.Now()
	n.mu.RLock()
	q, g := n.queues[queue], n.groups[pair{queue, group}]
	known := q != nil && (group == "" || g != nil && !g.onlyLetters)
	if known {
		n.use(now, pair{queue, group})
	}
	n.mu.RUnlock()
	if known {
		return queue, group
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.assign(now, queue, group)
}

// use records a use of the labels of a queue and a group.
func (n *names) use(now time.Time, p pair) {
	if q := n.queues[p.queue]; q != nil {
		q.lastUse.Store(now.Unix())
	}
	if g := n.groups[p]; g != nil {
		g.lastUse.Store(now.Unix())
	}
}

// assign returns the labels of a queue and a group. It gives them labels of their own if labels are free. Otherwise it
// counts the names without a label. The caller holds mu.
func (n *names) assign(now time.Time, queue, group string) (queueLabel, groupLabel string) {
	p := pair{queue, group}
	if n.queues[queue] == nil {
		canHaveLabel := queue != other && lua.CheckQueue(queue) == nil && n.roomForQueue(now)
		if !canHaveLabel {
			n.countOther(n.unlabelledQueues, queue)
			queue = other
		} else {
			n.queues[queue] = &name{}
			n.uncountOther(n.unlabelledQueues, queue)
			n.events.show(pair{queue, ""})
		}
	}
	if group != "" {
		group = n.assignGroup(now, p, queue)
	}
	n.use(now, pair{queue, group})
	return queue, group
}

// assignGroup returns the label of a group whose queue has the label queueLabel. The caller holds mu.
func (n *names) assignGroup(now time.Time, p pair, queueLabel string) string {
	known := n.groups[p]
	switch {
	case queueLabel == other, p.group == other:
		n.countOther(n.unlabelledGroups, p.String())
		return other
	case known != nil && !known.onlyLetters:
		return p.group
	case known == nil && (lua.CheckGroup(p.group) != nil || !n.roomForGroup(now)):
		n.countOther(n.unlabelledGroups, p.String())
		return other
	}
	n.groups[p] = &name{} // a group that only dead letters named keeps its label
	n.uncountOther(n.unlabelledGroups, p.String())
	n.events.show(p)
	return p.group
}

// ofLetters returns the label of a group that dead letters name. The group gets a label if a label is free. It loses
// the label when a group that is in use needs one.
func (n *names) ofLetters(queue, group string) string {
	p := pair{queue, group}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case group == "" || n.groups[p] != nil:
		return group
	case n.queues[queue] == nil, group == other, len(n.groups) >= n.maxGroups, lua.CheckGroup(group) != nil:
		n.countOther(n.unlabelledGroups, p.String())
		return other
	}
	n.groups[p] = &name{onlyLetters: true}
	n.uncountOther(n.unlabelledGroups, p.String())
	return group
}

// roomForQueue reports whether a queue may get a label. It frees unused labels if that is necessary.
func (n *names) roomForQueue(now time.Time) bool {
	if len(n.queues) >= n.maxQueues {
		n.freeUnused(now)
	}
	return len(n.queues) < n.maxQueues
}

// roomForGroup reports whether a group may get a label. If that is necessary, it frees unused labels, or takes the
// label of a group that only dead letters name.
func (n *names) roomForGroup(now time.Time) bool {
	if len(n.groups) >= n.maxGroups {
		n.freeUnused(now)
	}
	if len(n.groups) < n.maxGroups {
		return true
	}
	for p, g := range n.groups {
		if g.onlyLetters {
			delete(n.groups, p)
			return true
		}
	}
	return false
}

// refresh records a use of the labels under which something was counted. Queues and groups that lost their labels and
// were counted as other get labels again if some are free.
func (n *names) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refreshLocked(time.Now())
}

func (n *names) refreshLocked(now time.Time) {
	active, missed := n.events.active()
	for _, p := range active {
		n.use(now, p)
	}
	for _, p := range missed {
		if len(n.queues) < n.maxQueues && (p.group == "" || len(n.groups) < n.maxGroups) {
			n.assign(now, p.queue, p.group)
		}
	}
}

// freeUnused frees the labels that were not used for unusedAfter.
func (n *names) freeUnused(now time.Time) {
	if now.Sub(n.freedAt) < freeEvery {
		return
	}
	n.freedAt = now
	n.refreshLocked(now)
	isUnused := func(one *name) bool { return now.Unix()-one.lastUse.Load() > int64(unusedAfter.Seconds()) }
	for queue, one := range n.queues {
		if isUnused(one) {
			delete(n.queues, queue)
			n.events.hide(pair{queue, ""})
		}
	}
	for p, one := range n.groups {
		switch {
		case n.queues[p.queue] == nil:
			delete(n.groups, p) // hiding the queue has hidden its groups
		case !one.onlyLetters && isUnused(one):
			delete(n.groups, p)
			n.events.hide(p)
		}
	}
}

func (n *names) countOther(set map[uint64]bool, name string) {
	if len(set) < maxOthers {
		set[maphash.String(n.seed, name)] = true
	}
}

func (n *names) uncountOther(set map[uint64]bool, name string) {
	delete(set, maphash.String(n.seed, name))
}

// Describe implements prometheus.Collector.
func (n *names) Describe(out chan<- *prometheus.Desc) {
	out <- n.otherQueues
	out <- n.otherGroups
}

// Collect implements prometheus.Collector.
func (n *names) Collect(out chan<- prometheus.Metric) {
	n.mu.RLock()
	queues, groups := len(n.unlabelledQueues), len(n.unlabelledGroups)
	n.mu.RUnlock()
	out <- prometheus.MustNewConstMetric(n.otherQueues, prometheus.GaugeValue, float64(queues))
	out <- prometheus.MustNewConstMetric(n.otherGroups, prometheus.GaugeValue, float64(groups))
}
