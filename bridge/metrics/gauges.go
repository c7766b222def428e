package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/sizes"
)

// gauge is a metric of the state that a scrape reads.
type gauge int

const (
	gaugeUp gauge = iota
	gaugeUnreadable
	gaugeScheduled
	gaugeOverdue
	gaugeBehind
	gaugeNextDue
	gaugeReady
	gaugeEntries
	gaugeLag
	gaugePending
	gaugeOldest
	gaugeOldestIdle
	gaugeOldestHeld
	gaugeOldestUnread
	gaugeUsual
	gaugeRetrying
	gaugeDead
	gaugeHeld
	gaugeRate
	gaugeReadyLimit
	gaugeMemory
	gaugeConsumers
	gaugeConsumersIdle
	gaugeInfoUp
	gaugeUsed
	gaugeMax
	gaugeUnsafe
	gaugeClock
	gaugeBridges
	gaugeHeartbeat
	gaugeQueues
	gaugePartitions
	gaugeOwned
	gaugeScrape
)

var gaugeDescs = map[gauge]description{
	gaugeUp: gaugeDesc("up", "Whether this bridge could read the state of its queues for this scrape."),
	gaugeUnreadable: gaugeDesc("unreadable_partitions",
		"Partitions with a key of another Redis type; no state of a queue or group includes them."),
	gaugeScheduled: gaugeDesc("scheduled",
		"Scheduled messages, including retries and overdue messages.", byQueue...),
	gaugeOverdue: gaugeDesc("overdue", "Scheduled messages whose due time has passed.", byQueue...),
	gaugeBehind: gaugeDesc("overdue_seconds",
		"Time since the due time of the oldest overdue message.", byQueue...),
	gaugeNextDue: gaugeDesc("next_due_timestamp_seconds", "Earliest due time in the future.", byQueue...),
	gaugeReady:   gaugeDesc("ready", "Entries that at least one group has not read yet.", byQueue...),
	gaugeEntries: gaugeDesc("entries", "Entries in the stream.", byQueue...),
	gaugeLag:     gaugeDesc("lag", "Entries that the group has not read yet.", byGroup...),
	gaugePending: gaugeDesc("pending", "Entries that the group's consumers hold.", byGroup...),
	gaugeOldest: gaugeDesc("oldest_pending_seconds",
		"Time since the oldest pending entry became ready.", byGroup...),
	gaugeOldestIdle: gaugeDesc("oldest_pending_idle_seconds",
		"Time since the oldest pending entry was delivered or extended.", byGroup...),
	gaugeOldestHeld: gaugeDesc("oldest_held_seconds",
		"Lower bound of the time since the oldest pending entry was delivered to its consumer.", byGroup...),
	gaugeOldestUnread: gaugeDesc("oldest_unread_seconds",
		"Waiting time of the oldest entry that the group has not read.", byGroup...),
	gaugeUsual: gaugeDesc("usual_held_seconds",
		"Usual time from delivery to settlement, as bridges observed it lately.", byGroup...),
	gaugeRetrying: gaugeDesc("retrying", "Scheduled retries for the group.", byGroup...),
	gaugeDead:     gaugeDesc("dead", "Dead letters.", byReason...),
	gaugeHeld:     gaugeDesc("held", "1 while the queue is paused: nothing becomes ready.", byQueue...),
	gaugeRate: gaugeDesc("release_rate",
		"Messages that may become ready each second, if the policy limits the rate.", byQueue...),
	gaugeReadyLimit: gaugeDesc("ready_limit",
		"Entries that may wait for the slowest group, if the policy limits them.", byQueue...),
	gaugeMemory:    gaugeDesc("memory_bytes", "Size of the queue's keys, as the server estimates it.", byQueue...),
	gaugeConsumers: gaugeDesc("consumers", "Consumers of the group.", byGroup...),
	gaugeConsumersIdle: gaugeDesc("consumers_idle",
		"Consumers that have not asked for entries for a minute.", byGroup...),
	gaugeInfoUp: gaugeDesc("redis_info_up", "Whether the server answered INFO for this scrape."),
	gaugeUsed:   gaugeDesc("redis_used_memory_bytes", "Memory that this server of Redis uses.", "node"),
	gaugeMax: gaugeDesc("redis_maxmemory_bytes",
		"Limit of the memory of this server of Redis; 0 = none.", "node"),
	gaugeUnsafe: gaugeDesc("redis_unsafe",
		"1 if this server of Redis may lose messages, for the reason in the label.", "node", "reason"),
	gaugeClock: gaugeDesc("redis_clock_offset_seconds",
		"By how much the clock of this server of Redis is ahead of this machine's.", "node"),
	gaugeBridges: gaugeDesc("bridges", "Live bridges, as this bridge sees them."),
	gaugeHeartbeat: gaugeDesc("last_heartbeat_timestamp_seconds",
		"Local time of the last good heartbeat; 0 = none yet."),
	gaugeQueues:     gaugeDesc("queues", "Queues that this bridge knows."),
	gaugePartitions: gaugeDesc("partitions", "Partitions of all queues that this bridge knows."),
	gaugeOwned:      gaugeDesc("owned_partitions", "Partitions that this bridge owns."),
	gaugeScrape:     gaugeDesc("scrape_duration_seconds", "Duration of the last read of the state."),
}

// description is the description of a gauge, with the number of its labels.
type description struct {
	*prometheus.Desc
	labels int
}

func gaugeDesc(name, help string, labels ...string) description {
	return description{prometheus.NewDesc("duestream_"+name, help, labels, nil), len(labels)}
}

// gauges are the values of one read. Several queues may share the label "other". So a second value for the same labels
// is added to the first, or the larger or smaller of the two is kept.
type gauges struct {
	names  *names
	values map[gaugeKey]float64
}

type gaugeKey struct {
	gauge  gauge
	labels [3]string
}

func newGauges(n *names) *gauges { return &gauges{n, map[gaugeKey]float64{}} }

func key(g gauge, labels []string) (k gaugeKey) {
	k.gauge = g
	copy(k.labels[:], labels)
	return k
}

func (g *gauges) set(which gauge, v float64, labels ...string) { g.values[key(which, labels)] = v }
func (g *gauges) add(which gauge, v float64, labels ...string) { g.values[key(which, labels)] += v }
func (g *gauges) setMax(which gauge, v float64, labels ...string) {
	k := key(which, labels)
	g.values[k] = max(g.values[k], v)
}
func (g *gauges) setMin(which gauge, v float64, labels ...string) {
	k := key(which, labels)
	if old, there := g.values[k]; !there || v < old {
		g.values[k] = v
	}
}

// metrics returns the values as metrics, each with the labels of its gauge.
func (g *gauges) metrics() []prometheus.Metric {
	all := make([]prometheus.Metric, 0, len(g.values))
	for k, v := range g.values {
		d := gaugeDescs[k.gauge]
		all = append(all, prometheus.MustNewConstMetric(d.Desc, prometheus.GaugeValue, v, k.labels[:d.labels]...))
	}
	return all
}

// addStatus records the values that the bridges know without a call to Redis.
func (g *gauges) addStatus(bridges []*servedBridge) {
	for _, b := range bridges {
		s := b.Status()
		beat := 0.0
		if !s.LastHeartbeat.IsZero() {
			beat = seconds(s.LastHeartbeat)
		}
		g.setMin(gaugeHeartbeat, beat)
		g.setMax(gaugeBridges, float64(s.Live))
		g.setMax(gaugeQueues, float64(s.Queues))
		g.setMax(gaugePartitions, float64(s.Partitions))
		g.add(gaugeOwned, float64(s.Owned))
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// addPartitions records the state of the bridges' partitions.
func (g *gauges) addPartitions(states []sizes.PartitionState) {
	g.set(gaugeUnreadable, 0)
	for _, s := range states {
		if s.Err != nil {
			g.add(gaugeUnreadable, 1)
			continue
		}
		queue, _ := g.names.labels(s.Queue, "")
		g.add(gaugeScheduled, float64(s.Scheduled), queue)
		g.add(gaugeOverdue, float64(s.Overdue), queue)
		g.setMax(gaugeBehind, time.Duration(s.Behind).Seconds(), queue)
		if !s.NextDue.IsZero() {
			g.setMin(gaugeNextDue, seconds(s.NextDue), queue)
		}
		g.add(gaugeReady, float64(s.Ready), queue)
		g.add(gaugeEntries, float64(s.Entries), queue)
		held := 0.0
		if s.Held {
			held = 1
		}
		g.setMax(gaugeHeld, held, queue)
		if s.Rate != "" {
			g.add(gaugeRate, s.Rate.PerSecond(), queue)
		}
		if s.ReadyLimit > 0 {
			g.add(gaugeReadyLimit, float64(s.ReadyLimit), queue)
		}
		if bytes := s.MemoryBytes(); bytes >= 0 {
			g.add(gaugeMemory, float64(bytes), queue)
		}
		for _, one := range s.Groups {
			g.addGroup(s, one)
		}
	}
	// Record the dead letters after all groups, because existing groups get labels before groups of dead letters.
	for _, s := range states {
		if s.Err != nil {
			continue
		}
		queue, _ := g.names.labels(s.Queue, "")
		for kind, n := range s.Letters {
			g.add(gaugeDead, float64(n), queue, g.names.ofLetters(s.Queue, kind.Group), kind.Reason)
		}
		if s.Unread > 0 {
			g.add(gaugeDead, float64(s.Unread), queue, "", "unread")
		}
	}
}

// addGroup records the state of a group in one partition.
func (g *gauges) addGroup(s sizes.PartitionState, state sizes.GroupState) {
	queue, group := g.names.labels(s.Queue, state.Name)
	if group == "" { // "" is the label for dead letters of no group
		group = other
	}
	g.add(gaugeLag, float64(state.Lag), queue, group)
	g.add(gaugePending, float64(state.Pending), queue, group)
	if state.Brief {
		return
	}
	g.setMax(gaugeOldest, state.OldestAge.Seconds(), queue, group)
	idle, held, unread := view.Millis(0), view.Millis(0), view.Millis(0)
	if state.OldestEntry != nil {
		idle, held = state.OldestEntry.Idle, state.OldestEntry.Held
	}
	if state.Waiting != nil {
		unread = *state.Waiting
	}
	g.setMax(gaugeOldestIdle, time.Duration(idle).Seconds(), queue, group)
	g.setMax(gaugeOldestHeld, time.Duration(held).Seconds(), queue, group)
	g.setMax(gaugeOldestUnread, time.Duration(unread).Seconds(), queue, group)
	if state.Usual != nil {
		g.setMax(gaugeUsual, time.Duration(*state.Usual).Seconds(), queue, group)
	}
	if state.Retrying >= 0 {
		g.add(gaugeRetrying, float64(state.Retrying), queue, group)
	}
	if s.Partition == 0 { // a consumer reads all partitions, but must count once
		g.add(gaugeConsumers, float64(state.Consumers), queue, group)
		g.add(gaugeConsumersIdle, float64(state.IdleConsumers), queue, group)
	}
}

// maxNodes bounds the number of a cluster's servers that have labels.
const maxNodes = 100

// readRedis asks the servers for INFO, and records memory, safety and clock.
func (g *gauges) readRedis(ctx context.Context, bridges []*servedBridge) {
	up, asked := 1.0, map[string]bool{}
	for _, b := range bridges {
		for node, c := range b.Client.Nodes() {
			if asked[node] || len(asked) == maxNodes {
				continue
			}
			asked[node] = true
			began := time.Now()
			info, err := view.ReadInfo(ctx, c, "server", "memory", "persistence")
			if err != nil {
				up = 0
				continue
			}
			g.addInfo(node, info)
			if us := info.Number("server_time_usec"); us > 0 {
				localTime := began.Add(time.Since(began) / 2) // the server read its clock between request and answer
				g.set(gaugeClock, time.UnixMicro(us).Sub(localTime).Seconds(), node)
			}
		}
	}
	g.set(gaugeInfoUp, up)
}

// addInfo records a server's memory, and each reason why it may lose messages.
func (g *gauges) addInfo(node string, info view.Info) {
	g.set(gaugeUsed, float64(info.Number("used_memory")), node)
	g.set(gaugeMax, float64(info.Number("maxmemory")), node)
	// setUnsafe records a reason unless the server left out its setting.
	setUnsafe := func(reason string, setting string, isUnsafe bool) {
		if setting == "" {
			return
		}
		v := 0.0
		if isUnsafe {
			v = 1
		}
		g.set(gaugeUnsafe, v, node, reason)
	}
	policy, aof := info["maxmemory_policy"], info["aof_enabled"]
	setUnsafe("eviction", policy, policy != "noeviction")
	setUnsafe("persistence", aof, aof != "1")
	isFailing := info["aof_last_write_status"] == "err" || info["rdb_last_bgsave_status"] == "err"
	setUnsafe("persistence_failing", aof, isFailing)
}
