package view

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// ServerInfo is what a server tells about itself. Fields that it does not tell are empty or zero.
type ServerInfo struct {
	Product         string `json:"product"` // "redis" or "valkey"
	Version         string `json:"version"`
	Role            string `json:"role"`
	MaxMemory       int64  `json:"maxmemory_bytes"`
	MaxMemoryPolicy string `json:"maxmemory_policy"`
	UsedMemory      int64  `json:"used_memory_bytes"`
	AOF             bool   `json:"aof"`
	Replicas        int    `json:"replicas"`

	// Untold is why the server did not answer INFO. If it is set, the other fields are empty, and it is unknown whether
	// messages are safe on the server.
	Untold error `json:"-"`
}

// CheckServer checks the server's version and settings. ErrUnsupported: the server is older than Redis 7.0, or it
// evicts keys when it is full, which would delete whole queues. A server that does not answer INFO is accepted, and
// info then has only Untold: the user lacks the permission, or it is the in-process server.
func CheckServer(ctx context.Context, c rueidis.Client) (info ServerInfo, err error) {
	fields, err := ReadInfo(ctx, c)
	if err != nil {
		if Refused(err) {
			info.Untold = err
			return info, nil
		}
		return info, fmt.Errorf("check server: %w", err)
	}
	info = fields.Server()
	if major, _ := strconv.Atoi(strings.SplitN(info.Version, ".", 2)[0]); major > 0 && major < 7 {
		return info, fmt.Errorf("check server: %w: %s %s, needs Redis 7.0 or Valkey 7.2 at least", lua.ErrUnsupported,
			info.Product, info.Version)
	}
	if p := info.MaxMemoryPolicy; p != "" && p != "noeviction" {
		return info, fmt.Errorf("check server: %w: maxmemory-policy is %s: when memory is full it deletes whole queues; set it "+
			"to noeviction", lua.ErrUnsupported, p)
	}
	return info, nil
}

// Info holds the reply of INFO, by field.
type Info map[string]string

// ReadInfo asks a server for sections of INFO; without any, for the default ones.
func ReadInfo(ctx context.Context, c rueidis.Client, sections ...string) (Info, error) {
	var text string
	if err := Ask(ctx, c, Into(c.B().Info().Section(sections...).Build(), &text, rueidis.RedisResult.ToString)); err != nil {
		return nil, err
	}
	info := Info{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

// Refused reports whether an error is an answer of the server, which therefore could be reached.
func Refused(err error) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer)
}

// Number returns a numeric field; 0 if it is missing.
func (i Info) Number(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64)
	return n
}

// Product returns the server's product, "redis" or "valkey", and its version; the version is "" if the server does not
// tell it.
func (i Info) Product() (name, version string) {
	if v := i["valkey_version"]; v != "" {
		return "valkey", v
	}
	return "redis", i["redis_version"]
}

// Server returns what a server tells about itself.
func (i Info) Server() ServerInfo {
	info := ServerInfo{
		Role: i["role"], MaxMemory: i.Number("maxmemory"), MaxMemoryPolicy: i["maxmemory_policy"],
		UsedMemory: i.Number("used_memory"),
		AOF:        i["aof_enabled"] == "1", Replicas: int(i.Number("connected_slaves")),
	}
	info.Product, info.Version = i.Product()
	return info
}
