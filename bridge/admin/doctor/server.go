package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Server is the state of a server by its own INFO and settings. A value that the server does not report is zero.
type Server struct {
	Address   string `json:"address"`
	Product   string `json:"product,omitempty"`
	Version   string `json:"version,omitempty"`
	Role      string `json:"role,omitempty"`
	AOF       bool   `json:"aof"`
	Fsync     string `json:"appendfsync,omitempty"`
	MaxMemory int64  `json:"maxmemory_bytes"`
	Used      int64  `json:"used_memory_bytes"`
	Replicas  int    `json:"replicas"`
	ClockMS   int64  `json:"clock_ahead_ms"` // how far the clock of the server is ahead of the clock of this machine
}

const (
	clockSlack = 2 * time.Second
	replicaLag = 10 // seconds
)

// servers checks the settings of all masters.
func (l *look) servers() {
	nodes := l.c.Nodes()
	l.masters = map[string]rueidis.Client{}
	names := slices.Sorted(maps.Keys(nodes))
	for i, address := range names {
		l.Progress("servers", i, len(names))
		info, told, err := l.info(nodes[address], address)
		if err != nil && len(names) > 1 && lua.Temporary(err) && l.ctx.Err() == nil {
			l.leftOut("server %s: %v", address, err)
			continue
		}
		if l.fail(err); l.err != nil {
			return
		}
		if len(names) > 1 && info["role"] == "slave" { // its master reports it
			continue
		}
		l.masters[address] = nodes[address]
		l.server(nodes[address], address, info, told)
	}
}

// info reads INFO. told is false if the server refuses INFO, or if the answer lacks the version.
func (l *look) info(c rueidis.Client, address string) (info view.Info, told bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	info, err = view.ReadInfo(ctx, c)
	switch {
	case errors.Is(err, lua.ErrDenied):
		l.add(l.serverFinding(notChecked, 1, address+": "+short(err)))
		return nil, false, nil
	case err != nil && view.Refused(err):
		l.leftOut("settings of the server %s: it does not answer INFO (%v)", address, short(err))
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	if _, told = info["redis_version"]; !told {
		l.leftOut("settings of the server %s: it does not tell them", address)
	}
	return info, told, nil
}

// settings reads settings that are not in INFO. If the user may not read them, the report says so and the examination
// goes on.
func (l *look) settings(c rueidis.Client, names ...string) map[string]string {
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	values, err := c.Do(ctx, c.B().ConfigGet().Parameter(names...).Build()).AsStrMap()
	if err != nil {
		l.missing("appendfsync and min-replicas-to-write", lua.Classify("CONFIG GET", err))
		return nil
	}
	return values
}

// server checks the clock, the settings and the state of one server.
func (l *look) server(c rueidis.Client, address string, info view.Info, told bool) {
	sent := time.Now()
	now := ask(l, func(ctx context.Context) (time.Time, error) { return view.ServerTime(ctx, c) })
	if l.err != nil {
		return
	}
	oneWay := time.Since(sent) / 2 // about how long a message takes between this machine and the server
	ahead := now.Sub(sent.Add(oneWay))
	s := Server{Address: address, ClockMS: ahead.Milliseconds()}
	say := func(c *Check, count int64, found string, args ...any) {
		l.add(l.serverFinding(c, count, address+": "+fmt.Sprintf(found, args...)))
	}
	if ahead.Abs() > clockSlack+oneWay {
		say(clockApart, ahead.Milliseconds(), "its clock is %s ahead of this machine's", ahead.Round(time.Millisecond))
	}
	if told {
		started := now.Add(-time.Duration(info.Number("uptime_in_seconds")) * time.Second)
		if started.After(l.lastStart) {
			l.lastStart = started
		}
		judge(&s, info, l.settings(c, "appendfsync", "min-replicas-to-write"), say)
	}
	l.report.Servers = append(l.report.Servers, s)
}

// judge checks the settings and the state of a server, and calls say for each defect.
func judge(s *Server, info view.Info, settings map[string]string, say func(c *Check, count int64, found string,
	args ...any)) {
	told := info.Server()
	s.Product, s.Version, s.Role, s.AOF, s.Fsync = told.Product, told.Version, told.Role, told.AOF, settings["appendfsync"]
	s.MaxMemory, s.Used, s.Replicas = told.MaxMemory, told.UsedMemory, told.Replicas

	if major, minor := versionOf(s.Version); major < 7 || s.Product == "valkey" && major == 7 && minor < 2 {
		say(oldServer, 1, "%s %s", s.Product, s.Version)
	}
	if p := told.MaxMemoryPolicy; p != "noeviction" && p != "" {
		say(evicts, info.Number("evicted_keys"), "maxmemory-policy is %s; %s evicted since its start", p,
			plural(info.Number("evicted_keys"), "key was", "keys were"))
	}
	// A server does not count the buffers of its replicas and of the append-only file against maxmemory.
	counted := s.Used - info.Number("mem_not_counted_for_evict")
	switch machine := info.Number("total_system_memory"); {
	case s.MaxMemory == 0:
		say(noLimit, 1, "maxmemory is not set")
	case machine > 0 && s.MaxMemory > machine:
		say(noLimit, 1, "maxmemory is %d bytes, the machine has %d", s.MaxMemory, machine)
	case counted >= s.MaxMemory && told.MaxMemoryPolicy == "noeviction":
		say(full, counted, "%s", memoryText(counted, s.MaxMemory))
	case counted >= s.MaxMemory/10*9:
		say(nearlyFull, counted, "%s", memoryText(counted, s.MaxMemory))
	}
	switch {
	case !s.AOF:
		say(noAOF, 1, "appendonly is no")
	case s.Fsync == "no":
		say(noFsync, 1, "appendfsync is no")
	}
	for _, field := range []string{"aof_last_write_status", "rdb_last_bgsave_status", "aof_last_bgrewrite_status"} {
		if v := info[field]; v != "" && v != "ok" {
			say(persistence, 1, "%s is %s", field, v)
		}
	}
	if s.Role == "slave" {
		say(isReplica, 1, "it is a replica of %s:%s", info["master_host"], info["master_port"])
	}
	replicas(info, settings, say)
}

// replicas checks the replicas of a master.
func replicas(info view.Info, settings map[string]string, say func(c *Check, count int64, found string, args ...any)) {
	for i := 0; ; i++ {
		line, ok := info["slave"+strconv.Itoa(i)] // ip=…,port=…,state=online,offset=…,lag=0
		if !ok {
			break
		}
		fields := map[string]string{}
		for one := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(one, "=")
			fields[name] = value
		}
		if lag, _ := strconv.Atoi(fields["lag"]); fields["state"] != "online" || lag > replicaLag {
			say(replicaBehind, 1, "replica %s:%s is %s, heard of %d s ago", fields["ip"], fields["port"], fields["state"], lag)
		}
	}
	need, _ := strconv.Atoi(settings["min-replicas-to-write"])
	text, counted := info["min_slaves_good_slaves"] // present only while the server counts its good replicas
	good, _ := strconv.Atoi(text)
	switch {
	case counted && good < max(1, need):
		say(tooFewReplicas, int64(good), "%s good, %d needed", plural(int64(good), "replica is", "replicas are"),
			max(1, need))
	case need > 0:
		say(needsReplicas, int64(need), "min-replicas-to-write is %d", need)
	}
}

func versionOf(text string) (major, minor int) {
	parts := append(strings.Split(text, "."), "0", "0")
	major, _ = strconv.Atoi(parts[0])
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}

// fresh is how far the last heartbeat of a live bridge may be from the server's clock. Bridges send one every second.
const fresh = 5 * time.Second

// bridges checks that a bridge is alive, and that all live bridges have the same protocol level.
func (l *look) bridges() {
	l.probeEachTwice(func(l *look) *Finding {
		return l.noBridge(l.heartbeats())
	}, func(l *look) *Finding { return l.mixedLevels(l.heartbeats()) })
}

func (l *look) heartbeats() []view.Heartbeat {
	return ask(l, func(ctx context.Context) ([]view.Heartbeat, error) { return view.ReadHeartbeats(ctx, l.c, l.Prefix) })
}

// live returns the heartbeats of the live bridges.
func (l *look) live() []view.Heartbeat { return living(l.heartbeats()) }

func living(beats []view.Heartbeat) []view.Heartbeat {
	return slices.DeleteFunc(slices.Clone(beats), func(b view.Heartbeat) bool { return b.Foreign || b.Age.Abs() > fresh })
}

// mixedLevels finds live bridges with a lower protocol level than other live bridges.
func (e *examination) mixedLevels(beats []view.Heartbeat) *Finding {
	live := living(beats)
	highest := 0
	for _, b := range live {
		highest = max(highest, b.Identity.Level)
	}
	var older []string
	for _, b := range live {
		if b.Identity.Level < highest {
			older = append(older, fmt.Sprintf("%s: level %d", b.Identity, b.Identity.Level))
		}
	}
	if len(older) == 0 {
		return nil
	}
	n := int64(len(older))
	found := fmt.Sprintf("%s below level %d, which others have", plural(n, "bridge is", "bridges are"), highest)
	return e.finding(mixedLevels, place{}, e.globals.Bridges, "", n, found, older...)
}

// noBridge returns a finding if no bridge is alive. Otherwise it sets lastStart to the start of the oldest live bridge,
// if that is later.
func (e *examination) noBridge(beats []view.Heartbeat) *Finding {
	var some []string
	var oldest time.Time
	for _, b := range beats {
		switch name := b.Identity.String(); {
		case b.Foreign:
			some = append(some, fmt.Sprintf("%.40q: no bridge wrote this", b.Bridge))
		case b.Age.Abs() <= fresh:
			if start := b.Identity.Started(); oldest.IsZero() || start.Before(oldest) {
				oldest = start
			}
		case b.Age < 0:
			some = append(some, fmt.Sprintf("%s: %s ahead of the server's clock, which was stepped back", name,
				(-b.Age).Round(time.Second)))
		default:
			some = append(some, fmt.Sprintf("%s: %s ago", name, b.Age.Round(time.Second)))
		}
	}
	found := "no bridge is alive: none ever ran under this prefix, or all were stopped"
	switch {
	case len(some) < len(beats): // the other bridges are alive
		if oldest.After(e.lastStart) {
			e.lastStart = oldest
		}
		return nil
	case len(some) > 0:
		found = "no bridge is alive: the last heartbeats are too old, or too far ahead"
	}
	return e.finding(noBridge, place{}, e.globals.Bridges, "", int64(len(beats)), found, some...)
}

// memoryText says how much of the memory is used.
func memoryText(used, most int64) string {
	return fmt.Sprintf("%.1f of %.1f MiB are used (%.0f %%)", float64(used)/(1<<20), float64(most)/(1<<20),
		100*float64(used)/float64(most))
}
