package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds what a live view of queues and of their server needs.

// Watcher looks at queues again and again, at little cost.
type Watcher = inspect.Watcher

// What a Watcher returns.
type (
	Glance      = inspect.Glance
	GroupGlance = inspect.GroupGlance
	QueueRates  = inspect.QueueRates
	Millis      = view.Millis
)

// Watcher returns a watcher of these queues; without any, of all that the bridges know.
func (a *Admin) Watcher(queues ...string) *Watcher {
	return inspect.NewWatcher(a.redis.Client, a.prefix, queues)
}

// ServerLoad is how busy the server is; of a cluster, all its masters together. Fields are empty or zero where it does not tell.
type ServerLoad struct {
	Product      string `json:"product"` // "redis" or "valkey"
	Version      string `json:"version"`
	Servers      int    `json:"servers"` // masters
	UsedMemory   int64  `json:"used_memory_bytes"`
	MaxMemory    int64  `json:"maxmemory_bytes"` // 0 = no limit, of one of them at least
	Clients      int64  `json:"clients"`
	OpsPerSecond int64  `json:"ops_per_second"`
}

// ServerLoad asks each server once. One that does not answer INFO (a missing permission, an in-process server) is left out.
func (a *Admin) ServerLoad(ctx context.Context) (load ServerLoad, err error) {
	unlimited := false
	for _, node := range a.redis.Client.Nodes() {
		text, failed := node.Do(ctx, node.B().Info().Section("server", "clients", "memory", "stats", "replication").Build()).ToString()
		if failed != nil {
			if _, ok := rueidis.IsRedisErr(failed); !ok {
				err = fmt.Errorf("read server load: %w", lua.Classify("INFO", failed))
			}
			continue
		}
		one, master := parseLoad(text)
		if !master {
			continue
		}
		load.Product, load.Version = one.Product, one.Version
		load.Servers++
		load.UsedMemory += one.UsedMemory
		load.MaxMemory += one.MaxMemory
		unlimited = unlimited || one.MaxMemory == 0
		load.Clients += one.Clients
		load.OpsPerSecond += one.OpsPerSecond
	}
	if unlimited {
		load.MaxMemory = 0
	}
	if load.Servers > 0 { // of a cluster, some may be away
		err = nil
	}
	return load, err
}

func parseLoad(text string) (load ServerLoad, master bool) {
	load.Product = "redis"
	for line := range strings.SplitSeq(text, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "redis_version":
			if load.Product == "redis" {
				load.Version = value
			}
		case "valkey_version":
			load.Product, load.Version = "valkey", value
		case "role":
			master = value == "master"
		case "used_memory":
			load.UsedMemory = n
		case "maxmemory":
			load.MaxMemory = n
		case "connected_clients":
			load.Clients = n
		case "instantaneous_ops_per_sec":
			load.OpsPerSecond = n
		}
	}
	return load, master
}
