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

// Watcher reads the state of queues repeatedly, at little cost: see [inspect.Watcher].
type Watcher = inspect.Watcher

// QueueSample is the state of one queue at a Look, with its rates since the last one: see [inspect.QueueSample].
type QueueSample = inspect.QueueSample

// GroupSample is the state of one group at a Look: see [inspect.GroupSample].
type GroupSample = inspect.GroupSample

// QueueRates are the events per second of a queue or a group, between two Looks: see [inspect.QueueRates].
type QueueRates = inspect.QueueRates

// Millis is a duration that is whole milliseconds in JSON: see [view.Millis].
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

	masters []doctor.ServerState // of each master, for Advise
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
