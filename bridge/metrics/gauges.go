package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/inspect"
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

var gaugeDescs = map[gauge]*prometheus.Desc{
	gaugeUp:            gaugeDesc("up", "Whether this bridge could read the state of its queues for this scrape."),
	gaugeUnreadable:    gaugeDesc("unreadable_partitions", "Partitions of which a key holds something else; nothing else is said of them."),
	gaugeScheduled:     gaugeDesc("scheduled", "Messages that are scheduled, with retries, and with what is overdue.", byQueue...),
	gaugeOverdue:       gaugeDesc("overdue", "Messages that are scheduled and due already.", byQueue...),
	gaugeBehind:        gaugeDesc("overdue_seconds", "How late the oldest overdue message is by now.", byQueue...),
	gaugeNextDue:       gaugeDesc("next_due_timestamp_seconds", "Earliest due time that is still to come.", byQueue...),
	gaugeReady:         gaugeDesc("ready", "Entries that at least one group has not been given yet.", byQueue...),
	gaugeEntries:       gaugeDesc("entries", "Entries of the stream.", byQueue...),
	gaugeLag:           gaugeDesc("lag", "Entries that the group has not been given yet.", byGroup...),
	gaugePending:       gaugeDesc("pending", "Entries that the group's consumers hold.", byGroup...),
	gaugeOldest:        gaugeDesc("oldest_pending_seconds", "Since the oldest pending entry became ready.", byGroup...),
	gaugeOldestIdle:    gaugeDesc("oldest_pending_idle_seconds", "Since the oldest pending entry was delivered or extended.", byGroup...),
	gaugeOldestHeld:    gaugeDesc("oldest_held_seconds", "Since the oldest pending entry was delivered to its consumer, at least.", byGroup...),
	gaugeOldestUnread:  gaugeDesc("oldest_unread_seconds", "For how long the oldest entry has waited that the group was not given.", byGroup...),
	gaugeUsual:         gaugeDesc("usual_held_seconds", "How long deliveries that ended were held lately, as bridges saw it.", byGroup...),
	gaugeRetrying:      gaugeDesc("retrying", "Scheduled retries for the group.", byGroup...),
	gaugeDead:          gaugeDesc("dead", "Dead letters there are.", byReason...),
	gaugeHeld:          gaugeDesc("held", "1 while the queue is paused: nothing becomes ready.", byQueue...),
	gaugeRate:          gaugeDesc("release_rate", "Messages that may become ready each second, where the policy limits that.", byQueue...),
	gaugeReadyLimit:    gaugeDesc("ready_limit", "Entries that may wait for the slowest group, if limited.", byQueue...),
	gaugeMemory:        gaugeDesc("memory_bytes", "Size of the queue's keys, as the server estimates it.", byQueue...),
	gaugeConsumers:     gaugeDesc("consumers", "Consumers of the group.", byGroup...),
	gaugeConsumersIdle: gaugeDesc("consumers_idle", "Consumers that have not asked for entries for a minute.", byGroup...),
	gaugeInfoUp:        gaugeDesc("redis_info_up", "Whether the server answered INFO for this scrape."),
	gaugeUsed:          gaugeDesc("redis_used_memory_bytes", "Memory that this server of Redis uses.", "node"),
	gaugeMax:           gaugeDesc("redis_maxmemory_bytes", "Limit of the memory of this server of Redis; 0 = none.", "node"),
	gaugeUnsafe:        gaugeDesc("redis_unsafe", "1 where this server of Redis may lose messages, for a reason.", "node", "reason"),
	gaugeClock:         gaugeDesc("redis_clock_offset_seconds", "By how much the clock of this server of Redis is ahead of this machine's.", "node"),
	gaugeBridges:       gaugeDesc("bridges", "Bridges that live, as this one sees it."),
	gaugeHeartbeat:     gaugeDesc("last_heartbeat_timestamp_seconds", "Local time of the last good heartbeat; 0 = none yet."),
	gaugeQueues:        gaugeDesc("queues", "Queues that this bridge knows."),
	gaugePartitions:    gaugeDesc("partitions", "Partitions of all queues that this bridge knows."),
	gaugeOwned:         gaugeDesc("owned_partitions", "Partitions that this bridge owns."),
	gaugeScrape:        gaugeDesc("scrape_duration_seconds", "What the last read of the state took."),
}

func gaugeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("duestream_"+name, help, labels, nil)
}

// gauges are the values of one read. Several queues may share the label "other", so values are added or compared.
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

func (g *gauges) set(of gauge, v float64, labels ...string) { g.values[key(of, labels)] = v }
func (g *gauges) add(of gauge, v float64, labels ...string) { g.values[key(of, labels)] += v }
func (g *gauges) setMax(of gauge, v float64, labels ...string) {
	k := key(of, labels)
	g.values[k] = max(g.values[k], v)
}
func (g *gauges) setMin(of gauge, v float64, labels ...string) {
	k := key(of, labels)
	if old, there := g.values[k]; !there || v < old {
		g.values[k] = v
	}
}

// metrics returns the values as metrics, each with the labels of its gauge.
func (g *gauges) metrics() []prometheus.Metric {
	all := make([]prometheus.Metric, 0, len(g.values))
	for k, v := range g.values {
		all = append(all, prometheus.MustNewConstMetric(gaugeDescs[k.gauge], prometheus.GaugeValue, v,
			k.labels[:labelCount[k.gauge]]...))
	}
	return all
}

var labelCount = map[gauge]int{
	gaugeScheduled: 1, gaugeOverdue: 1, gaugeBehind: 1, gaugeNextDue: 1, gaugeReady: 1, gaugeEntries: 1, gaugeLag: 2,
	gaugePending: 2, gaugeOldest: 2, gaugeOldestIdle: 2, gaugeOldestHeld: 2,
	gaugeOldestUnread: 2, gaugeUsual: 2, gaugeRetrying: 2, gaugeDead: 3, gaugeHeld: 1, gaugeMemory: 1,
	gaugeRate: 1, gaugeReadyLimit: 1,
	gaugeConsumers: 2, gaugeConsumersIdle: 2, gaugeUsed: 1, gaugeMax: 1, gaugeUnsafe: 2, gaugeClock: 1,
}

// addStatus records the values that the bridges have without asking Redis.
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
func (g *gauges) addPartitions(states []inspect.PartitionState) {
	g.set(gaugeUnreadable, 0)
	for _, s := range states {
		if s.Err != nil {
			g.add(gaugeUnreadable, 1)
			continue
		}
		queue, _ := g.names.labels(s.Queue, "")
		g.add(gaugeScheduled, float64(s.Scheduled), queue)
		g.add(gaugeOverdue, float64(s.Overdue), queue)
		g.setMax(gaugeBehind, s.Behind.Seconds(), queue)
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
		if s.Memory >= 0 {
			g.add(gaugeMemory, float64(s.Memory), queue)
		}
		for _, one := range s.Groups {
			g.addGroup(s, one)
		}
	}
	for _, s := range states { // after all existing groups, which get labels first
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

func (g *gauges) addGroup(s inspect.PartitionState, of inspect.GroupState) {
	queue, group := g.names.labels(s.Queue, of.Name)
	if group == "" { // "" is the label for dead letters of no group
		group = other
	}
	g.add(gaugeLag, float64(of.Lag), queue, group)
	g.add(gaugePending, float64(of.Pending), queue, group)
	if of.Brief {
		return
	}
	g.setMax(gaugeOldest, of.OldestAge.Seconds(), queue, group)
	g.setMax(gaugeOldestIdle, of.OldestIdle.Seconds(), queue, group)
	g.setMax(gaugeOldestHeld, of.OldestHeld.Seconds(), queue, group)
	g.setMax(gaugeOldestUnread, of.OldestUnread.Seconds(), queue, group)
	if of.Usual >= 0 {
		g.setMax(gaugeUsual, of.Usual.Seconds(), queue, group)
	}
	if of.Retrying >= 0 {
		g.add(gaugeRetrying, float64(of.Retrying), queue, group)
	}
	if s.Partition == 0 { // a consumer reads all partitions, but counts once
		g.add(gaugeConsumers, float64(of.Consumers), queue, group)
		g.add(gaugeConsumersIdle, float64(of.IdleConsumers), queue, group)
	}
}

// mostNodes bounds the number of a cluster's servers that have labels.
const mostNodes = 100

// readRedis asks the servers for INFO, and records memory, safety and clock.
func (g *gauges) readRedis(ctx context.Context, bridges []*servedBridge) {
	up, asked := 1.0, map[string]bool{}
	for _, b := range bridges {
		for node, c := range b.Client.Nodes() {
			if asked[node] || len(asked) == mostNodes {
				continue
			}
			asked[node] = true
			asking := time.Now()
			info, err := view.ReadInfo(ctx, c, "server", "memory", "persistence")
			if err != nil {
				up = 0
				continue
			}
			g.redis(node, info)
			if us := info.Number("server_time_usec"); us > 0 {
				here := asking.Add(time.Since(asking) / 2) // the server read its clock between request and answer
				g.set(gaugeClock, time.UnixMicro(us).Sub(here).Seconds(), node)
			}
		}
	}
	g.set(gaugeInfoUp, up)
}

func (g *gauges) redis(node string, info view.Info) {
	g.set(gaugeUsed, float64(info.Number("used_memory")), node)
	g.set(gaugeMax, float64(info.Number("maxmemory")), node)
	unsafe := func(reason string, told string, is bool) {
		v := 0.0
		if is {
			v = 1
		}
		if told != "" {
			g.set(gaugeUnsafe, v, node, reason)
		}
	}
	policy, aof := info["maxmemory_policy"], info["aof_enabled"]
	unsafe("eviction", policy, policy != "noeviction")
	unsafe("persistence", aof, aof != "1")
	unsafe("persistence_failing", aof, info["aof_last_write_status"] == "err" || info["rdb_last_bgsave_status"] == "err")
}
