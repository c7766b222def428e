package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/sizes"
)

// This file holds the calls for a live view of queues and of their server.

// Watcher reads the state of queues repeatedly, at little cost: see [sizes.Watcher].
type Watcher = sizes.Watcher

// QueueSample is the state of one queue at a Look, with its rates since the last one: see [sizes.QueueSample].
type QueueSample = sizes.QueueSample

// GroupSample is the state of one group at a Look: see [sizes.GroupSample].
type GroupSample = sizes.GroupSample

// QueueRates are the events per second of a queue or a group, between two Looks: see [sizes.QueueRates].
type QueueRates = sizes.QueueRates

// Millis is a duration that is whole milliseconds in JSON: see [view.Millis].
type Millis = view.Millis

// Watcher returns a watcher of the given queues; without any, of all queues that are registered at the time of each
// Look. Redis is not touched before the first Look.
func (a *Admin) Watcher(queues ...string) *Watcher {
	return sizes.NewWatcher(a.redis.Client, a.prefix, queues)
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

	masters []doctor.ServerState // of each master, for Advise
}

// Master is the state of one master, by its own INFO. A value that it does not report is zero.
type Master struct {
	Address         string
	Product         string // "redis" or "valkey"
	Version         string
	Up              time.Duration // since its start
	UsedMemory      int64
	MaxMemory       int64 // 0 = no limit
	MaxMemoryPolicy string
	Clients         int64
	OpsPerSecond    int64
	AOF             bool      // every write is appended to a file
	AOFFailed       bool      // the last write or rewrite of that file failed
	Saved           time.Time // last snapshot; zero = none since the start
	SaveFailed      bool      // the last snapshot failed
	Replicas        int
	ReplicaLag      int64 // bytes that the slowest connected replica has not confirmed
}

// KeepsNothing reports whether a restart of the server loses everything.
func (m Master) KeepsNothing() bool { return !m.AOF && m.Saved.IsZero() }

// Masters returns the state of each master that answered.
func (l ServerLoad) Masters() []Master {
	all := make([]Master, len(l.masters))
	for i, m := range l.masters {
		info := m.Info
		known := info.Server()
		all[i] = Master{
			Address: m.Address, Product: known.Product, Version: known.Version,
			Up:         time.Duration(info.Number("uptime_in_seconds")) * time.Second,
			UsedMemory: known.UsedMemory, MaxMemory: known.MaxMemory, MaxMemoryPolicy: known.MaxMemoryPolicy,
			Clients: info.Number("connected_clients"), OpsPerSecond: info.Number("instantaneous_ops_per_sec"),
			AOF: known.AOF, AOFFailed: isBad(info["aof_last_write_status"]) || isBad(info["aof_last_bgrewrite_status"]),
			SaveFailed: isBad(info["rdb_last_bgsave_status"]), Replicas: known.Replicas, ReplicaLag: replicaLag(info),
		}
		// Until its first snapshot, a server gives the time of its start.
		started := info.Number("server_time_usec")/1e6 - info.Number("uptime_in_seconds")
		if saved := info.Number("rdb_last_save_time"); saved > started+1 {
			all[i].Saved = time.Unix(saved, 0)
		}
	}
	return all
}

// isBad reports whether a status of INFO tells of a failure.
func isBad(status string) bool { return status != "" && status != "ok" }

// replicaLag returns how many bytes the slowest connected replica is behind.
func replicaLag(info view.Info) (lag int64) {
	offset := info.Number("master_repl_offset")
	for i := range info.Number("connected_slaves") {
		replica := info[fmt.Sprint("slave", i)] // ip=…,port=…,state=online,offset=…,lag=…
		for field := range strings.SplitSeq(replica, ",") {
			if text, ok := strings.CutPrefix(field, "offset="); ok {
				if at, err := strconv.ParseInt(text, 10, 64); err == nil {
					lag = max(lag, offset-at)
				}
			}
		}
	}
	return lag
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
		load.masters = append(load.masters, doctor.ServerState{Address: address, Info: info})
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
