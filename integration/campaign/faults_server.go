package campaign

import (
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/lua"
)

// maxEntryID is the last ID of a stream. After it, the stream refuses every XADD.
const maxEntryID = "18446744073709551615-18446744073709551615"

// standaloneCards are the faults of a server without a replica.
func standaloneCards(visibility time.Duration) []card {
	return []card{
		{faultKillServer, func(a *attacker) ([]string, string, error) {
			a.c.server.Kill()
			a.wait(0, 1500*time.Millisecond)
			a.c.server.Start()
			return nil, "", nil
		}},
		{faultStopServer, func(a *attacker) ([]string, string, error) {
			a.c.server.Pause()
			<-time.After(a.away(visibility))
			a.c.server.Resume()
			return nil, "", nil
		}},
		{faultReadOnly, func(a *attacker) ([]string, string, error) {
			if _, err := a.c.all("REPLICAOF", "127.0.0.1", "1"); err != nil {
				return nil, "", err
			}
			a.wait(300*time.Millisecond, time.Second)
			_, err := a.c.all("REPLICAOF", "NO", "ONE")
			return nil, "", err
		}},
	}
}

// serverCards are the faults of the server, or of all servers at once, and commands of operators on them.
func serverCards(visibility time.Duration) []card {
	return []card{
		{faultClientKill, func(a *attacker) ([]string, string, error) {
			_, err := a.c.all("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			return nil, "", err
		}},
		{faultClientPause, func(a *attacker) ([]string, string, error) {
			d := a.away(visibility)
			mode := []string{"ALL", "WRITE"}[a.random.IntN(2)]
			if _, err := a.c.all("CLIENT", "PAUSE", number(d.Milliseconds()), mode); err != nil {
				return nil, "", err
			}
			<-time.After(d) // the server ends the pause itself
			return nil, "", nil
		}},
		{faultScriptFlush, func(a *attacker) ([]string, string, error) {
			_, err := a.c.all("SCRIPT", "FLUSH")
			return nil, "", err
		}},
		{faultFull, func(a *attacker) ([]string, string, error) {
			if _, err := a.c.all("CONFIG", "SET", "maxmemory", "1mb"); err != nil {
				return nil, "", err
			}
			a.wait(500*time.Millisecond, 2*time.Second)
			_, err := a.c.all("CONFIG", "SET", "maxmemory", "0")
			return nil, "", err
		}},
		{faultStreamRefuses, func(a *attacker) ([]string, string, error) { return nil, "", a.refuse(a.place().Stream) }},
		{faultDeadRefuses, func(a *attacker) ([]string, string, error) { return nil, "", a.refuse(a.place().Dead) }},
	}
}

// place picks a partition of the main queue.
func (a *attacker) place() lua.Keys { return a.c.keys[a.c.places[a.random.IntN(len(a.c.places)-1)]] }

// away picks how long a server does not answer without a restart: well below the visibility timeout, or beyond it. A
// bridge cannot notice a time in between: it counts a gap of two seconds in its heartbeats as an outage, while
// workers have two thirds of a visibility timeout to spare.
func (a *attacker) away(visibility time.Duration) time.Duration {
	if a.random.IntN(2) == 0 {
		return a.between(visibility/10, visibility/3)
	}
	return a.between(visibility, 2*visibility)
}

// refuse makes a stream refuse entries for a while: it sets the last ID to the greatest one, and then back to the
// current time, which is later than every entry.
func (a *attacker) refuse(stream string) error {
	if info, err := a.streamInfo(stream); err != nil || info == nil {
		return err // there is no stream yet
	}
	if _, err := a.c.do("XSETID", stream, maxEntryID); err != nil {
		return err
	}
	a.wait(500*time.Millisecond, 1500*time.Millisecond)
	info, err := a.streamInfo(stream)
	if err != nil {
		return err
	}
	_, err = a.c.do("XSETID", stream, number(time.Now().UnixMilli()),
		"ENTRIESADDED", info["entries-added"], "MAXDELETEDID", info["max-deleted-entry-id"])
	return err
}

// streamInfo returns XINFO STREAM as text, or nil if there is no stream.
func (a *attacker) streamInfo(stream string) (map[string]string, error) {
	reply, err := a.c.do("XINFO", "STREAM", stream)
	if err != nil {
		if n, e := a.c.do("EXISTS", stream); e == nil {
			if there, _ := n.AsInt64(); there == 0 {
				return nil, nil
			}
		}
		return nil, err
	}
	fields, err := reply.AsMap()
	if err != nil {
		return nil, err
	}
	info := map[string]string{}
	for _, name := range []string{"max-deleted-entry-id", "entries-added"} {
		value := fields[name]
		if n, err := value.AsInt64(); err == nil {
			info[name] = fmt.Sprint(n)
		} else if info[name], err = value.ToString(); err != nil {
			return nil, fmt.Errorf("XINFO STREAM %s: %s: %w", stream, name, err)
		}
	}
	return info, nil
}

// operatorCards destroy data of the sacrificial queue. They end when its groups exist again.
func operatorCards() []card {
	return []card{
		{faultDestroyGroup, func(a *attacker) ([]string, string, error) {
			_, err := a.c.do("XGROUP", "DESTROY", a.c.keys[queueSide].Stream, groups[a.random.IntN(len(groups))])
			return nil, queueSide, errors.Join(err, a.awaitGroups())
		}},
		{faultDeleteStream, func(a *attacker) ([]string, string, error) {
			_, err := a.c.do("DEL", a.c.keys[queueSide].Stream)
			return nil, queueSide, errors.Join(err, a.awaitGroups())
		}},
		{faultDeleteQueue, func(a *attacker) ([]string, string, error) {
			_, err := a.c.do(append([]string{"DEL"}, keysOf(a.c.keys[queueSide])...)...)
			return nil, queueSide, errors.Join(err, a.awaitGroups())
		}},
	}
}

func keysOf(k lua.Keys) []string {
	return k.All()
}

// awaitGroups returns when the workers have created every group of the sacrificial queue again. Messages that become
// ready before that are not owed to a group that did not exist.
func (a *attacker) awaitGroups() error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		state, err := a.c.stream(a.c.keys[queueSide].Stream)
		if err == nil && len(state.groups) == len(groups) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the groups of %s are not back: %v, %v", queueSide, state.groups, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}
