package campaign

import (
	"slices"
	"sort"
	"strings"
	"time"
)

// How far a fault reaches: a connection is made again, a process is started and a backlog is worked off after it is over; and
// what a process held when it was hit, it may have been given some time before.
const (
	reachAfter  = 1500 * time.Millisecond
	reachBefore = 500 * time.Millisecond
)

// explainer finds the fault that explains what happened to one delivery.
type explainer struct {
	faults []Fault // by From
	most   time.Duration
	long   time.Duration     // what was only seen must have lasted for so long to use up an attempt
	group  map[string]string // name of a process → its group
	plain  map[string]bool   // names of plain workers
	role   map[string]string // name of a process → its role
}

func newExplainer(visibility time.Duration, faults []Fault, writers []*writer) *explainer {
	// A worker extends at a third of the visibility timeout, so it may be away for two thirds, at the worst.
	e := &explainer{faults: faults, long: visibility / 2, group: map[string]string{}, plain: map[string]bool{},
		role: map[string]string{}}
	for _, f := range faults {
		e.most = max(e.most, f.Until.Sub(f.From))
	}
	for _, w := range writers {
		e.group[w.name] = w.group
		e.role[w.name] = w.role
		// What a gateway was given, and could not pass on, nobody comes back for either.
		e.plain[w.name] = w.role == rolePlain || w.role == roleGateway
	}
	return e
}

// between returns the kind of the fault that explains best what happened between from and until (Unix µs): of those that reach
// into that time and that f accepts, one of ours before one that was only seen, one that hit few before one that hit all.
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

// again explains why what a process had was delivered once more: a fault that hit this process, or all; or every gateway, if it
// is behind them. Of two gateways that a worker may use, one alone explains nothing.
func (e *explainer) again(by string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool { return f.Queue == "" && (f.hits(by) || e.behind(by) && e.alone(f)) })
}

// untold explains why a process was not told what became of a call: as again, or by a fault of the gateway that it had asked.
func (e *explainer) untold(by string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool {
		return f.Queue == "" && (f.hits(by) || e.behind(by) && len(e.gatewaysOf(f)) > 0)
	})
}

// mayBeLate says whether a request that was repeated until somebody answered may still be waiting in a gateway: one that was held
// up executes what its caller has long given up, also after a cancel, which forgets the dedup window.
func (e *explainer) mayBeLate(first, heard int64) bool {
	_, ok := e.between(first, heard, func(f Fault) bool { return len(e.gatewaysOf(f)) > 0 })
	return ok && heard-first >= callWait.Microseconds()
}

// behind says whether a worker sees the server through gateways alone.
func (e *explainer) behind(name string) bool { return e.role[name] == roleHTTPWorker }

// gatewaysOf names the gateways that a fault hits, whichever of their starts.
func (e *explainer) gatewaysOf(f Fault) (slots []string) {
	for _, name := range f.Hits {
		if e.role[name] == roleGateway {
			slot, _, _ := strings.Cut(name, ".")
			slots = append(slots, slot)
		}
	}
	return slots
}

// alone says whether a fault leaves who is behind gateways without any: it hits two of them, or one while another fault has
// another one.
func (e *explainer) alone(f Fault) bool {
	own := e.gatewaysOf(f)
	return len(own) > 1 || len(own) == 1 && slices.ContainsFunc(e.faults, func(other Fault) bool {
		return !other.Until.Add(reachAfter).Before(f.From) && !other.From.After(f.Until.Add(reachAfter)) &&
			slices.ContainsFunc(e.gatewaysOf(other), func(slot string) bool { return slot != own[0] })
	})
}

// burnt explains why an attempt was used up that no handler failed: a fault that kept its worker, by name, from the delivery for
// long while others went on. An empty name stands for a worker of the group that cannot be told, because it never got to its
// handler. An outage does not explain it, except to a plain worker, which does not come back for what it was given.
func (e *explainer) burnt(by, group string, from, until int64) (string, bool) {
	return e.between(from, until, func(f Fault) bool {
		if f.Queue != "" {
			return false
		}
		if by != "" {
			return f.hits(by) && (e.burns(f) || e.plain[by]) || e.behind(by) && e.alone(f)
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

// undone says whether a failover in that time, or just before, may have undone what the old master did.
func (e *explainer) undone(from, until int64) bool {
	_, ok := e.between(from, until, func(f Fault) bool { return undoing[f.Kind] })
	return ok
}

// burns says whether a fault keeps a worker from what it holds while others go on. A stop does when the worker cannot reach the
// server to take its leave.
func (e *explainer) burns(f Fault) bool {
	if leaves[f.Kind] {
		return slices.ContainsFunc(e.faults, func(other Fault) bool {
			return !leaves[other.Kind] && other.Queue == "" && other.hits(f.Hits[0]) &&
				!other.Until.Add(reachAfter).Before(f.From) && !other.From.After(f.Until.Add(reachAfter))
		})
	}
	whatever := !f.Observed || f.Kind == faultOverload || f.Kind == faultOwnFailover
	return burning[f.Kind] && (whatever || f.Until.Sub(f.From) >= e.long)
}

// sortOut tells the times in which the server was slow by our doing, which are left out, from those in which the machine was
// overloaded: then a worker that holds much may not have all of it extended in time.
func sortOut(faults []Fault) []Fault {
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
