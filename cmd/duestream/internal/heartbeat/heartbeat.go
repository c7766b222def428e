// Package heartbeat says in words, tables and JSON which bridges live.
package heartbeat

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Fresh is how old the last heartbeat of a live bridge may be; bridges send one every second.
const Fresh = 5 * time.Second

// Health is a bridge in JSON. Fields that an older bridge does not send are left out.
type Health struct {
	ID      string `json:"id"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Version string `json:"version,omitempty"`
	Started int64  `json:"started_ms,omitempty"`
	Age     int64  `json:"age_ms"`
	Fresh   bool   `json:"fresh"`
	Foreign bool   `json:"foreign,omitempty"` // no bridge wrote it: id is the beginning of what stands there
}

func HealthOf(bridges []admin.Heartbeat) []Health {
	all := make([]Health, len(bridges))
	for i, b := range bridges {
		all[i] = Health{
			ID: b.Identity.ID, Host: b.Identity.Host, PID: b.Identity.PID, Version: b.Identity.Version,
			Age: b.Age.Milliseconds(), Fresh: isAlive(b), Foreign: b.Foreign,
		}
		if b.Foreign {
			all[i].ID = human.OneLine(b.Bridge, 64)
		} else {
			all[i].Started = b.Identity.Started().UnixMilli()
		}
	}
	return all
}

func isAlive(b admin.Heartbeat) bool { return !b.Foreign && b.Age <= Fresh }

// bridgeName returns a short name of a bridge for lists: host, process and version.
func bridgeName(b admin.Heartbeat) string {
	i := b.Identity
	if b.Foreign || i.Host == "" && i.PID == 0 && i.Version == "" {
		return human.OneLine(b.Bridge, 12)
	}
	return human.OneLine(i.Host, 24) + "/" + strconv.Itoa(i.PID) + " " + human.OneLine(i.Version, 24)
}

// mostBridges is how many bridges a list names.
const mostBridges = 20

// List names bridges, and returns how many of them live.
func List(bridges []admin.Heartbeat, ages bool) (text string, alive int) {
	var names []string
	foreign, unnamed := 0, 0
	for _, b := range bridges {
		if isAlive(b) {
			alive++
		}
		switch {
		case b.Foreign:
			foreign++
		case len(names) == mostBridges:
			unnamed++
		case ages || !isAlive(b):
			names = append(names, bridgeName(b)+" "+human.Short(b.Age.Round(100*time.Millisecond))+" ago")
		default:
			names = append(names, bridgeName(b))
		}
	}
	if unnamed > 0 {
		names = append(names, fmt.Sprintf("%d more", unnamed))
	}
	if foreign > 0 {
		names = append(names, human.Counted(foreign, "name")+" that no bridge wrote")
	}
	return strings.Join(names, ", "), alive
}

// Line is the line about bridges of stats.
func Line(bridges []admin.Heartbeat, err error) string {
	if err != nil {
		return "bridges: not known, their heartbeats cannot be read"
	}
	text, _ := Alive(bridges, false)
	return text
}

// Alive says how many bridges live, and which; ages adds when each was heard of.
func Alive(bridges []admin.Heartbeat, ages bool) (text string, alive bool) {
	names, n := List(bridges, ages)
	switch {
	case n > 0:
		return fmt.Sprintf("bridges alive %d: %s", n, names), true
	case names == "":
		return "no bridge is alive: nothing becomes ready", false
	}
	return "no bridge is alive: nothing becomes ready; last heartbeats: " + names, false
}

// Rows is the table of health.
func Rows(bridges []admin.Heartbeat) [][]string {
	rows := [][]string{{"HOST", "PID", "VERSION", "STARTED", "HEARTBEAT", "BRIDGE"}}
	for _, b := range bridges {
		i, pid, started, id := b.Identity, "-", "-", human.OneLine(b.Identity.ID, 26)
		if i.PID != 0 {
			pid = strconv.Itoa(i.PID)
		}
		if b.Foreign {
			id = human.OneLine(b.Bridge, 26) + " (no bridge wrote this)"
		} else {
			started = i.Started().Format(time.DateTime)
		}
		age := human.Short(b.Age.Round(100*time.Millisecond)) + " ago"
		rows = append(rows, []string{human.OrDash(i.Host), pid, human.OrDash(i.Version), started, age, id})
	}
	return rows
}
