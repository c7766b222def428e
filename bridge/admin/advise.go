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

// Advise returns what is wrong with the state that was read, and what to do about it, the worst finding first. If all
// is in order, it returns no finding. It applies those rules of Doctor that need no further reads. It does not touch
// Redis. A program that looks again and again uses an Adviser, which knows more.
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
