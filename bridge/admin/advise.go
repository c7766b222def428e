package admin

import (
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/internal/view"
)

// Seen is the state of queues, bridges and server that a program has read. A zero field is unknown, and Advise
// ignores it.
type Seen struct {
	Stats         []QueueStats
	Samples       []QueueSample // of a Watcher, in place of Stats
	Bridges       []Heartbeat
	BridgesFailed bool // the bridges could not be read
	Server        ServerLoad
}

// Advise returns the problems of the state in seen, each with its remedy, the worst first. It returns no finding if all
// is in order. It applies the rules of Doctor that need no further reads. It does not touch Redis. A program that looks
// repeatedly should use an Adviser, which also knows speeds and targets.
func (a *Admin) Advise(seen Seen) []doctor.Finding { return doctor.Advise(a.state(seen)) }

func (a *Admin) state(seen Seen) doctor.State {
	s := doctor.State{Prefix: a.prefix, NoBeats: seen.BridgesFailed, Servers: seen.Server.masters}
	for _, b := range seen.Bridges {
		s.Bridges = append(s.Bridges, view.Heartbeat(b))
	}
	for _, q := range seen.Stats {
		s.Queues = append(s.Queues, q.QueueSizes())
	}
	for _, q := range seen.Samples {
		if q.Err == nil { // a failed sample carries its own error
			s.Queues = append(s.Queues, q.QueueSizes())
		}
	}
	return s
}
