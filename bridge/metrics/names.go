package metrics

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/lua"
)

// other is the label of all queues, and of all groups, beyond those that have labels of their own.
const other = "other"

// mostOthers is how many names beyond the bound are told apart, only to say how many they are.
const mostOthers = 100_000

// Labels go back when there are none left for others.
const (
	goneAfter  = time.Hour // without a sign of the queue or group
	triesEvery = 10 * time.Second
)

// names gives queues and groups their labels, so that there are never more than a process was told to have, and none that
// Prometheus cannot hold: client_golang fails a whole scrape for one label that is not UTF-8.
type names struct {
	seed                 maphash.Seed
	maxQueues, maxGroups int
	otherQueues          *prometheus.Desc
	otherGroups          *prometheus.Desc
	events               *events

	mu             sync.RWMutex // before that of events
	queues         map[string]*name
	groups         map[pair]*name
	beyond, others map[uint64]bool // queues and groups, by hash
	tried          time.Time       // to give labels back
}

// name is a queue or group that has a label.
type name struct {
	seen    atomic.Int64 // when there was a sign of it: Unix seconds
	letters bool         // it is the group of dead letters, and nothing else is known of it
}

type pair struct{ queue, group string }

// holds says whether a queue and a group belong to it: without a group, all of the queue do.
func (p pair) holds(queue, group string) bool {
	return queue == p.queue && (p.group == "" || group == p.group)
}

func newNames(maxQueues, maxGroups int) *names {
	return &names{
		seed: maphash.MakeSeed(), maxQueues: maxQueues, maxGroups: maxGroups,
		queues: map[string]*name{}, groups: map[pair]*name{}, beyond: map[uint64]bool{}, others: map[uint64]bool{},
		otherQueues: prometheus.NewDesc("duestream_other_queues", "Queues that are counted together as other.", nil, nil),
		otherGroups: prometheus.NewDesc("duestream_other_groups", "Pairs of queue and group that are counted together as other.",
			nil, nil),
	}
}

// labels returns the labels of a queue and a group, which may be "". Both are there: that keeps them from going to others.
func (n *names) labels(queue, group string) (queueLabel, groupLabel string) {
	now := time.Now()
	n.mu.RLock()
	q, g := n.queues[queue], n.groups[pair{queue, group}]
	known := q != nil && (group == "" || g != nil && !g.letters)
	if known {
		n.see(now, pair{queue, group})
	}
	n.mu.RUnlock()
	if known {
		return queue, group
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.assign(now, queue, group)
}

// see notes a sign of a queue and a group.
func (n *names) see(now time.Time, p pair) {
	if q := n.queues[p.queue]; q != nil {
		q.seen.Store(now.Unix())
	}
	if g := n.groups[p]; g != nil {
		g.seen.Store(now.Unix())
	}
}

func (n *names) assign(now time.Time, queue, group string) (queueLabel, groupLabel string) {
	p := pair{queue, group}
	if n.queues[queue] == nil {
		if queue == other || lua.CheckQueue(queue) != nil || !n.roomForQueue(now) {
			n.note(n.beyond, queue)
			queue = other
		} else {
			n.queues[queue] = &name{}
			n.unnote(n.beyond, queue)
			n.events.bringBack(pair{queue, ""})
		}
	}
	if group != "" && queue == other {
		group = other
		n.note(n.others, p.queue+"\x00"+p.group)
	} else if known := n.groups[p]; group != "" && (known == nil || known.letters) {
		if group == other || known == nil && (lua.CheckGroup(group) != nil || !n.roomForGroup(now)) {
			n.note(n.others, p.queue+"\x00"+group)
			group = other
		} else {
			n.groups[p] = &name{}
			n.unnote(n.others, p.queue+"\x00"+group)
			n.events.bringBack(p)
		}
	}
	n.see(now, pair{queue, group})
	return queue, group
}

// ofLetters returns the label of a group that dead letters name. It gets one of its own where one is free, until a group needs it
// that is there.
func (n *names) ofLetters(queue, group string) string {
	p := pair{queue, group}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case group == "" || n.groups[p] != nil:
		return group
	case n.queues[queue] == nil || group == other || len(n.groups) >= n.maxGroups || lua.CheckGroup(group) != nil:
		n.note(n.others, queue+"\x00"+group)
		return other
	}
	n.groups[p] = &name{letters: true}
	n.unnote(n.others, queue+"\x00"+group)
	return group
}

func (n *names) roomForQueue(now time.Time) bool {
	if len(n.queues) >= n.maxQueues {
		n.giveBack(now)
	}
	return len(n.queues) < n.maxQueues
}

func (n *names) roomForGroup(now time.Time) bool {
	if len(n.groups) >= n.maxGroups {
		n.giveBack(now)
	}
	if len(n.groups) < n.maxGroups {
		return true
	}
	for p, g := range n.groups {
		if g.letters {
			delete(n.groups, p)
			return true
		}
	}
	return false
}

// refresh sees for which queues and groups something was counted. Those that lost their labels get them again if there are any.
func (n *names) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.look(time.Now())
}

func (n *names) look(now time.Time) {
	active, missed := n.events.active()
	for _, p := range active {
		n.see(now, p)
	}
	for _, p := range missed {
		if len(n.queues) < n.maxQueues && (p.group == "" || len(n.groups) < n.maxGroups) {
			n.assign(now, p.queue, p.group)
		}
	}
}

// giveBack takes the labels of queues and groups of which nothing was seen for long.
func (n *names) giveBack(now time.Time) {
	if now.Sub(n.tried) < triesEvery {
		return
	}
	n.tried = now
	n.look(now)
	gone := func(one *name) bool { return now.Unix()-one.seen.Load() > int64(goneAfter.Seconds()) }
	for queue, one := range n.queues {
		if gone(one) {
			delete(n.queues, queue)
			n.events.putAway(pair{queue, ""})
		}
	}
	for p, one := range n.groups {
		switch {
		case n.queues[p.queue] == nil:
			delete(n.groups, p)
		case !one.letters && gone(one):
			delete(n.groups, p)
			n.events.putAway(p)
		}
	}
}

func (n *names) note(set map[uint64]bool, name string) {
	if len(set) < mostOthers {
		set[maphash.String(n.seed, name)] = true
	}
}

func (n *names) unnote(set map[uint64]bool, name string) { delete(set, maphash.String(n.seed, name)) }

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
