package view

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// ServerInfo is what a server tells about itself. Fields are empty or zero where it does not tell.
type ServerInfo struct {
	Product         string `json:"product"` // "redis" or "valkey"
	Version         string `json:"version"`
	Role            string `json:"role"`
	MaxMemory       int64  `json:"maxmemory_bytes"`
	MaxMemoryPolicy string `json:"maxmemory_policy"`
	UsedMemory      int64  `json:"used_memory_bytes"`
	AOF             bool   `json:"aof"`
	Replicas        int    `json:"replicas"`

	// Untold is why the server did not answer INFO: the rest is empty then, and nobody knows whether messages are safe there.
	Untold error `json:"-"`
}

// CheckServer asks the server for what matters to duestream. ErrUnsupported: it is older than Redis 7.0, or evicts keys when it is
// full, which would delete whole queues at once. A server that does not answer INFO (a missing permission, an in-process server) is
// taken as it is; info holds only Untold then.
func CheckServer(ctx context.Context, c rueidis.Client) (info ServerInfo, err error) {
	text, err := c.Do(ctx, c.B().Info().Build()).ToString()
	if err != nil {
		if _, ok := rueidis.IsRedisErr(err); ok {
			info.Untold = lua.Classify("INFO", err)
			return info, nil
		}
		return info, fmt.Errorf("check server: %w", lua.Classify("INFO", err))
	}
	info = parseInfo(text)
	if major, _ := strconv.Atoi(strings.SplitN(info.Version, ".", 2)[0]); major > 0 && major < 7 {
		return info, fmt.Errorf("check server: %w: %s %s, needs Redis 7.0 or Valkey 7.2 at least", lua.ErrUnsupported, info.Product, info.Version)
	}
	if p := info.MaxMemoryPolicy; p != "" && p != "noeviction" {
		return info, fmt.Errorf("check server: %w: maxmemory-policy is %s: when memory is full it deletes whole queues; set it to noeviction", lua.ErrUnsupported, p)
	}
	return info, nil
}

func parseInfo(text string) ServerInfo {
	fields := map[string]string{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = value
		}
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	info := ServerInfo{
		Product: "redis", Version: fields["redis_version"], Role: fields["role"],
		MaxMemory: number("maxmemory"), MaxMemoryPolicy: fields["maxmemory_policy"], UsedMemory: number("used_memory"),
		AOF: fields["aof_enabled"] == "1", Replicas: int(number("connected_slaves")),
	}
	if v := fields["valkey_version"]; v != "" {
		info.Product, info.Version = "valkey", v
	}
	return info
}
