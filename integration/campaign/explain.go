package campaign

import (
	"slices"
	"sort"
	"strings"
	"time"
)

// How long a fault may have effects. After its end, connections are made again, processes start and a backlog is
// worked off. Before its begin, a process may have received messages that it still held.
const (
	reachAfter  = 1500 * time.Millisecond
	reachBefore = 500 * time.Millisecond
)

// explainer finds the fault that explains what happened to a delivery.
type explainer struct {
	faults []Fault           // sorted by From
	most   time.Duration     // length of the longest fault
	long   time.Duration     // shortest observed fault that may use up an attempt
	group  map[string]string // process → its group
	plain  map[string]bool   // processes that are plain workers
	role   map[string]string // process → its role
}

func newExplainer(visibility time.Duration, faults []Fault, writers []*writer) *explainer {
	// A worker extends each third of the visibility timeout, so in the worst case it may be away for two thirds of
	// it.
	e := &explainer{faults: faults, long: visibility / 2, group: map[string]string{}, plain: map[string]bool{},
		role: map[string]string{}}
	for _, f := range faults {
		e.most = max(e.most, f.Until.Sub(f.From))
	}
	for _, w := range writers {
		e.group[w.name] = w.group
		e.role[w.name] = w.role
		// Like a plain worker, nobody comes back for a delivery that a gateway received and could not pass on.
		e.plain[w.name] = w.role == rolePlain || w.role == roleGateway
	}
	return e
}

// between returns the kind of the fault that best explains an event between from and until (Unix µs). Only faults
// count that reach into this time and that f accepts. A fault of ours wins over an observed one (rank below 0), and a
// fault that hit few processes over a fault that hit all.
func (e *explainer) between(from, until int64, f func(Fault) bool) (kind string, ok bool) {
	begin, end := time.UnixMicro(from).Add(-reachAfter), time.UnixMicro(until).Add(reachBefore)
	first := sort.Search(len(e.faults), func(i int) bool { return !e.faults[i].From.Before(begin.Add(-e.most)) })
	best := 0
	for _, fault := range e.faults[first:] {
		if fault.From.After(end) {
			break
		}
		if fault.Until.Before(begin) || !f(fault) {
			continue
		}
		rank := 1000 - min(len(fault.Hits), 100)
		if len(fault.Hits) == 0 {
			rank = 500
		}
		if e.burns(fault) {
			rank += 50
		}
		if fault.Observed {
			rank -= 1000
		}
		if !ok || rank > best {
			kind, best, ok = fault.Kind, rank, true
		}
	}
	return kind, ok
}

// again explains why a message of a process was delivered again: by a fault that hit this process, or all processes,
// or the gateways between the process and the server.
func (e *explainer) again(by string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool { return f.Queue == "" && (f.hits(by) || e.throughGateways(by, f)) })
}

// throughGateways reports whether a fault of gateways keeps a process from its messages: it leaves the process without
// any gateway, or it stops a gateway for long. The server hands messages to a stopped gateway that waits for them, and
// the process gets these messages when their visibility timeout is nearly over. Another fault of one gateway explains
// nothing, because the process uses the other gateway.
func (e *explainer) throughGateways(by string, f Fault) bool {
	stopsLong := f.Kind == faultStopGateway && f.Until.Sub(f.From) >= e.long
	return e.behind(by) && (stopsLong || e.alone(f))
}

// untold explains why a process did not get the result of a call: as again does, or by a fault of any gateway.
func (e *explainer) untold(by string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool {
		return f.Queue == "" && (f.hits(by) || e.behind(by) && len(e.gatewaysOf(f)) > 0)
	})
}

// mayBeLate reports whether a repeated request may still wait in a gateway. A gateway that was held up executes
// requests whose caller gave up long ago, even after a cancel, which deletes the dedup window.
func (e *explainer) mayBeLate(first, heard int64) bool {
	_, ok := e.between(first, heard, func(f Fault) bool { return len(e.gatewaysOf(f)) > 0 })
	return ok && heard-first >= callWait.Microseconds()
}

// behind reports whether a process reaches the server only through gateways.
func (e *explainer) behind(name string) bool { return e.role[name] == roleHTTPWorker }

// gatewaysOf returns the slots of the gateways that a fault hits.
func (e *explainer) gatewaysOf(f Fault) (slots []string) {
	for _, name := range f.Hits {
		if e.role[name] == roleGateway {
			slot, _, _ := strings.Cut(name, ".")
			slots = append(slots, slot)
		}
	}
	return slots
}

// alone reports whether a fault leaves the clients of gateways without any gateway: it hits both gateways, or it hits
// one while another fault hits the other one.
func (e *explainer) alone(f Fault) bool {
	own := e.gatewaysOf(f)
	return len(own) > 1 || len(own) == 1 && slices.ContainsFunc(e.faults, func(other Fault) bool {
		return !other.Until.Add(reachAfter).Before(f.From) && !other.From.After(f.Until.Add(reachAfter)) &&
			slices.ContainsFunc(e.gatewaysOf(other), func(slot string) bool { return slot != own[0] })
	})
}

// burnt explains why an attempt was used up that no handler failed: by a fault that kept the worker, named by, away
// for long while others went on. If by is "", the delivery never reached a handler, and any worker of the group
// counts. An outage explains it only for a plain worker, which does not come back for its messages.
func (e *explainer) burnt(by, group string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool {
		if f.Queue != "" {
			return false
		}
		if by != "" {
			return f.hits(by) && (e.burns(f) || e.plain[by]) || e.throughGateways(by, f)
		}
		if len(f.Hits) == 0 {
			return e.burns(f) || e.hasPlain(group)
		}
		for _, name := range f.Hits {
			if e.group[name] == group && (e.burns(f) || e.plain[name]) {
				return true
			}
		}
		return false
	})
}

// undone reports whether a failover in that time, or just before it, may have undone writes of the old master.
func (e *explainer) undone(from, until int64) bool {
	_, ok := e.between(from, until, func(f Fault) bool { return undoing[f.Kind] })
	return ok
}

// burns reports whether a fault keeps a worker from its messages while others go on. A clean stop does so only if the
// worker cannot reach the server to release its messages.
func (e *explainer) burns(f Fault) bool {
	if leaves[f.Kind] {
		return slices.ContainsFunc(e.faults, func(other Fault) bool {
			return !leaves[other.Kind] && other.Queue == "" && other.hits(f.Hits[0]) &&
				!other.Until.Add(reachAfter).Before(f.From) && !other.From.After(f.Until.Add(reachAfter))
		})
	}
	ofAnyLength := !f.Observed || f.Kind == faultOverload || f.Kind == faultOwnFailover
	return burning[f.Kind] && (ofAnyLength || f.Until.Sub(f.From) >= e.long)
}

// withoutOurSlowness returns the faults without the times in which the server was slow because of our faults. The times
// that remain are overloads of the machine, in which a worker with many messages may not extend all of them in time.
func withoutOurSlowness(faults []Fault) []Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
		return f.Kind == faultOverload && slices.ContainsFunc(faults, func(other Fault) bool {
			return !other.Observed && len(other.Hits) == 0 && other.Queue == "" &&
				!other.Until.Add(reachAfter).Before(f.From) && !other.From.After(f.Until)
		})
	})
}

func (e *explainer) hasPlain(group string) bool {
	for name, plain := range e.plain {
		if plain && e.group[name] == group {
			return true
		}
	}
	return false
}
