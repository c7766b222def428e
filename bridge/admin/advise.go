package admin

import (
	"time"

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

// Advise returns what is wrong with the state that was read, and what to do about it, the worst first. If all is in
// order it returns nothing. It applies those rules of Doctor that need no further reads. It does not touch Redis.
func (a *Admin) Advise(seen Seen) []doctor.Finding {
	s := doctor.State{Prefix: a.prefix, NoBeats: seen.BridgesFailed, Servers: seen.Server.masters}
	for _, b := range seen.Bridges {
		s.Bridges = append(s.Bridges, view.Heartbeat(b))
	}
	for _, q := range seen.Stats {
		s.Queues = append(s.Queues, stateOfStats(q))
	}
	for _, q := range seen.Samples {
		if q.Err == nil { // a failed sample carries its own error
			s.Queues = append(s.Queues, stateOfSample(q))
		}
	}
	return doctor.Advise(s)
}

func stateOfStats(q QueueStats) doctor.QueueState {
	s := doctor.QueueState{
		Queue: q.Queue, Partitions: q.Partitions, Held: q.Held, Flow: q.Flow, Overdue: q.Overdue,
		Behind:  time.Duration(q.OldestOverdue),
		Stalled: time.Duration(q.Stalled), InSeconds: q.LooksSeconds, Entries: q.Entries, Dead: q.Dead,
		NewestDead: (*time.Duration)(q.NewestDead),
	}
	for _, g := range q.Groups {
		one := doctor.GroupState{
			Name: g.Name, Consumers: g.Consumers, Lag: g.Lag, Waiting: known(g.Waiting), Unread: known(g.Unread),
			Pending:    g.Pending,
			Visibility: g.Policy.VisibilityTimeout, Usual: (*time.Duration)(g.Usual),
			Handler: g.Policy.HandlerTimeout,
		}
		if g.OldestHeld != nil {
			one.OldestHeld, one.Holder = time.Duration(g.OldestHeld.Held), g.OldestHeld.Consumer
		}
		if g.OldestPending != nil {
			one.OldestIdle = time.Duration(g.OldestPending.Idle)
		}
		s.Groups = append(s.Groups, one)
	}
	return s
}

func stateOfSample(q QueueSample) doctor.QueueState {
	s := doctor.QueueState{
		Queue: q.Queue, Partitions: q.Partitions, Held: q.Held, Flow: q.Flow, Overdue: q.Overdue,
		Behind:  time.Duration(q.Behind),
		Stalled: time.Duration(q.Stalled), Entries: q.Entries, Dead: q.Dead, NewestDead: (*time.Duration)(q.NewestDead),
		MoreGroups: q.MoreGroups,
	}
	for _, g := range q.Groups {
		s.Groups = append(s.Groups, doctor.GroupState{
			Name: g.Name, Consumers: g.Consumers, Lag: g.Lag, Waiting: known(g.Waiting), Unread: known(g.Unread),
			Pending:    g.Pending,
			OldestIdle: known(g.Oldest), Visibility: g.Visibility, OldestHeld: known(g.OldestHeld), Holder: g.Holder,
			Usual: (*time.Duration)(g.Usual), Handler: g.HandlerTimeout,
		})
	}
	return s
}

func known(d *Millis) time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(*d)
}
