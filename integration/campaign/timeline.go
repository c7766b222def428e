package campaign

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is a fault that was made or observed, with its time.
type Fault struct {
	Kind     string
	From     time.Time
	Until    time.Time // its end: the process or server was back, or the network open again
	Hits     []string  // names of the hit processes; none = all
	Queue    string    // for a command of an operator: this queue may have lost messages
	Observed bool      // not made by us: the machine was too slow
}

// Kinds of faults. A burning kind keeps a worker from its messages for so long that others must take them over, so it
// may use up an attempt. A fault that keeps all processes from the server is an outage, and must use up no attempt.
const (
	faultKillProducer  = "kill -9 producer"
	faultKillBridge    = "kill -9 bridge"
	faultKillWorker    = "kill -9 worker"
	faultKillPlain     = "kill -9 plain worker"
	faultStopWorker    = "SIGSTOP worker (zombie)"
	faultPartition     = "worker cut off (zombie)"
	faultStopPlain     = "SIGSTOP plain worker"
	faultStopBridge    = "SIGSTOP bridge"
	faultTermWorker    = "SIGTERM worker"
	faultTermBridge    = "SIGTERM bridge"
	faultKillGateway   = "kill -9 gateway"
	faultTermGateway   = "SIGTERM gateway"
	faultStopGateway   = "SIGSTOP gateway"
	faultCutGateway    = "gateway cut off"
	faultTearHTTP      = "HTTP cut mid reply"
	faultKillHTTP      = "kill -9 HTTP worker"
	faultStopHTTP      = "SIGSTOP HTTP worker"
	faultKillServer    = "kill -9 server"
	faultStopServer    = "SIGSTOP server"
	faultCut           = "connections cut"
	faultDrop          = "cut before the server"
	faultLose          = "reply lost"
	faultTear          = "cut mid reply"
	faultStall         = "network stalled"
	faultSlow          = "network slow"
	faultClientKill    = "CLIENT KILL"
	faultClientPause   = "CLIENT PAUSE"
	faultScriptFlush   = "SCRIPT FLUSH"
	faultFull          = "maxmemory reached"
	faultStreamRefuses = "stream refuses entries"
	faultDeadRefuses   = "dead stream refuses"
	faultReadOnly      = "read-only server"
	faultKillMaster    = "kill -9 master, failover"
	faultFreezeMaster  = "SIGSTOP master, failover"
	faultSwitchMaster  = "planned failover"
	faultMoveSlot      = "slot moved"
	faultDestroyGroup  = "XGROUP DESTROY"
	faultDeleteStream  = "DEL stream"
	faultDeleteQueue   = "all keys of a queue deleted"
	faultSlowProcess   = "process not scheduled"    // observed
	faultSlowMachine   = "controller not scheduled" // observed; all connections go through it
	faultOverload      = "server slow"              // observed
	faultOwnFailover   = "failover by itself"       // observed
)

// undoing faults lose writes of the last master that were not replicated: a confirmed settlement, a delivery, a retry.
var undoing = map[string]bool{faultKillMaster: true, faultFreezeMaster: true, faultOwnFailover: true}

// burning has the burning kinds, described above.
var burning = map[string]bool{
	// A failover may make an acknowledged entry pending again, and nobody extends it then.
	faultKillMaster: true, faultFreezeMaster: true, faultOwnFailover: true,
	faultKillWorker: true, faultKillPlain: true, faultStopWorker: true, faultPartition: true, faultStopPlain: true,
	faultStall: true, faultSlow: true, faultKillHTTP: true, faultStopHTTP: true,
	faultSlowProcess: true, faultSlowMachine: true, faultOverload: true,
}

// leaves are the faults that stop a worker cleanly.
var leaves = map[string]bool{faultTermWorker: true, faultChangeWorker: true}

// hits reports whether a fault hits a process.
func (f Fault) hits(name string) bool { return len(f.Hits) == 0 || slices.Contains(f.Hits, name) }

func (f Fault) String() string {
	whom := "everything"
	switch {
	case f.Queue != "":
		whom = "queue " + f.Queue
	case len(f.Hits) > 6:
		whom = fmt.Sprintf("%s and %d more", strings.Join(f.Hits[:5], ", "), len(f.Hits)-5)
	case len(f.Hits) > 0:
		whom = strings.Join(f.Hits, ", ")
	}
	return fmt.Sprintf("%s  %6d ms  %-28s %s", f.From.UTC().Format("15:04:05.000"), f.Until.Sub(f.From).Milliseconds(), f.Kind,
		whom)
}

// timeline collects faults. It is safe for concurrent use.
type timeline struct {
	mu     sync.Mutex
	faults []Fault
}

func (t *timeline) add(f Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, f)
}

// all returns the faults sorted by time.
func (t *timeline) all() []Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	faults := slices.Clone(t.faults)
	slices.SortFunc(faults, func(a, b Fault) int { return a.From.Compare(b.From) })
	return faults
}

func (t *timeline) count() (faults, kinds int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]bool{}
	for _, f := range t.faults {
		if !f.Observed {
			faults++
			seen[f.Kind] = true
		}
	}
	return faults, len(seen)
}

func writeTimeline(w io.Writer, faults []Fault) error {
	for _, f := range faults {
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	return nil
}
