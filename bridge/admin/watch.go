package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds the calls for a live view of queues and of their server.

// Watcher reads the state of queues repeatedly, at little cost. Look returns the state, and the rates since the last
// Look.
//
//	type Watcher struct {
//		// contains no exported fields
//	}
//
//	func (*Watcher) Look(ctx context.Context) ([]QueueSample, error)
//	func (*Watcher) LookAt(ctx context.Context, wanted func(queue string) bool) ([]QueueSample, error)
type Watcher = inspect.Watcher

// QueueSample is the state of one queue at a Look, with its rates since the last one.
//
//	type QueueSample struct {
//		Queue      string
//		Partitions int
//		Held       bool
//		Flow
//		Err       error // the queue could not be looked at; the rest is of the last time that it could
//		Scheduled int64 // with retries, and with what is overdue
//		Overdue   int64
//		Behind    Millis // how late the oldest overdue message is by now
//		Stalled   Millis // for how long messages have been overdue while nothing became ready
//		// Late is the greatest lateness of the newest entries: when each became ready − when it was due. Nil: none was
//		// seen within a minute. Entries that a worker was quicker to acknowledge are not seen.
//		Late        *Millis
//		Ready       int64 // see QueueStats
//		ReadyApprox bool
//		Entries     int64
//		Dead        int64
//		NewestDead  *Millis     // how old the newest dead letter is; nil: more than 5 minutes
//		PerSecond   *QueueRates // since the look before; nil at the first
//		Groups      []GroupSample
//		MoreGroups  int // that were not looked at
//	}
type QueueSample = inspect.QueueSample

// GroupSample is the state of one group at a Look.
//
//	type GroupSample struct {
//		Name      string
//		Lag       int64
//		LagApprox bool // Lag is an upper bound: the server does not say
//		Pending   int64
//		Oldest    *Millis // how long the oldest pending entry has been without a sign of life
//		// OldestHeld is for how long the entry is held that is held for longest, of the oldest ones of each partition,
//		// and Holder the consumer. Usual: see GroupStats.
//		OldestHeld *Millis
//		Holder     string
//		Usual      *Millis
//		// Waiting is for how long the oldest of those entries has waited, at least: the Watcher sees the newest entries
//		// only, and whether the group moves on between looks. Unread: see GroupStats.
//		Waiting    *Millis
//		Unread     *Millis
//		Visibility time.Duration // the group's visibility timeout; 0: it holds nothing
//		// how long a handler may take by the policy; 0: no limit, or it holds nothing
//		HandlerTimeout time.Duration
//		// Alive is how many consumers asked for entries within the last minute, of Consumers. AliveApprox: before Redis
//		// 7.2 a consumer without work cannot be told from one that is gone, and all count.
//		Alive       int64
//		AliveApprox bool
//		Consumers   int64
//		// Retrying is how many retries for the group are among the 100 members of each partition that are due next.
//		// RetryingMore: the schedule is longer than that.
//		Retrying     int64
//		RetryingMore bool
//		// Done is how many deliveries ended per second: acknowledged, failed, or skipped because they are for another
//		// group.
//		Done *float64
//	}
type GroupSample = inspect.GroupSample

// QueueRates are the events per second of a queue or a group, between two Looks of a Watcher.
//
//	type QueueRates struct {
//		In   *float64 // became scheduled, retries included, less what was cancelled
//		Out  *float64 // became ready
//		Done *float64 // were freed, because every group was done with them
//	}
type QueueRates = inspect.QueueRates

// Millis is a duration that is written in JSON as whole milliseconds.
//
//	type Millis time.Duration
//
//	func (Millis) String() string
type Millis = view.Millis

// Watcher returns a watcher of the given queues; without any, of all queues that are registered at the time of each
// Look. Redis is not touched before the first Look.
func (a *Admin) Watcher(queues ...string) *Watcher {
	return inspect.NewWatcher(a.redis.Client, a.prefix, queues)
}

// ServerLoad is the load of the server, or of all masters of a cluster together. A value that the server does not
// report is zero.
type ServerLoad struct {
	Product      string `json:"product"` // "redis" or "valkey"
	Version      string `json:"version"`
	Servers      int    `json:"servers"` // masters
	UsedMemory   int64  `json:"used_memory_bytes"`
	MaxMemory    int64  `json:"maxmemory_bytes"` // 0 = at least one master has no limit
	Clients      int64  `json:"clients"`
	OpsPerSecond int64  `json:"ops_per_second"`

	told []doctor.ServerSight // of each master, for Advise
}

// ServerLoad reads the load of each server once. A server that refuses INFO (a missing permission, an in-process
// server) is left out.
func (a *Admin) ServerLoad(ctx context.Context) (load ServerLoad, err error) {
	unlimited := false
	nodes := a.redis.Client.Nodes()
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		info, failed := view.ReadInfo(ctx, nodes[address], "server", "clients", "memory", "persistence", "stats", "replication")
		if failed != nil {
			if !view.Refused(failed) {
				err = fmt.Errorf("read server load: %w", failed)
			}
			continue
		}
		if info["role"] != "master" {
			continue
		}
		load.told = append(load.told, doctor.ServerSight{Address: address, Info: info})
		load.Product, load.Version = info.Product()
		load.Servers++
		load.UsedMemory += info.Number("used_memory")
		load.MaxMemory += info.Number("maxmemory")
		unlimited = unlimited || info.Number("maxmemory") == 0
		load.Clients += info.Number("connected_clients")
		load.OpsPerSecond += info.Number("instantaneous_ops_per_sec")
	}
	if unlimited {
		load.MaxMemory = 0
	}
	if load.Servers > 0 { // some servers of a cluster may be unavailable
		err = nil
	}
	return load, err
}
