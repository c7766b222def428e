// Package heartbeat shows which bridges are alive, in words, tables and JSON.
package heartbeat

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Fresh is the greatest age of the last heartbeat of a live bridge. Bridges send one every second.
const Fresh = 5 * time.Second

// Health is the JSON of a bridge. Fields that an older bridge does not send are omitted.
type Health struct {
	ID      string `json:"id"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Version string `json:"version,omitempty"`
	Started int64  `json:"started_ms,omitempty"`
	Age     int64  `json:"age_ms"`
	Fresh   bool   `json:"fresh"`
	Foreign bool   `json:"foreign,omitempty"` // no bridge wrote this heartbeat; ID is the beginning of its text
}

// HealthOf returns the JSON of bridges.
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

// maxNames is the largest number of bridges that a list names.
const maxNames = 20

// List names the bridges, and returns how many are alive. ages adds the age of each heartbeat.
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
		case len(names) == maxNames:
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

// Line returns the line about bridges that stats prints.
func Line(bridges []admin.Heartbeat, err error) string {
	if err != nil {
		return "bridges: not known, their heartbeats cannot be read"
	}
	text, _ := Alive(bridges, false)
	return text
}

// Alive describes how many bridges are alive, and names them. ages adds the age of each heartbeat.
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

// Rows returns the table that health prints.
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
