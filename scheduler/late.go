package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What makes a bridge unwell.
const (
	// HungAfter is after how long without a turn of its heartbeat a scheduler hangs: a turn ends within 6 s, whatever Redis does.
	HungAfter = 30 * time.Second
	// GoneAfter is how old the last good heartbeat may be.
	GoneAfter = 5 * time.Second
	// LateAfter is by how much the oldest message of a partition may be overdue: its loop, the survey and a takeover need less.
	LateAfter = 10 * time.Second
)

// Late is a partition that this scheduler owns, and does not drain on time.
type Late struct {
	Partition string        `json:"partition"`
	By        time.Duration `json:"-"`                 // how late its oldest message is; 0 = nobody has seen
	Failing   string        `json:"failing,omitempty"` // why its drains fail; "" = they do not
	// WrongType: a key of it holds what another program wrote there. No bridge can serve it: see Status.Broken.
	WrongType bool `json:"wrong_type,omitempty"`
}

func (l Late) String() string {
	var parts []string
	if l.By > 0 {
		parts = append(parts, "late by "+l.By.Round(time.Second).String())
	}
	if l.Failing != "" {
		parts = append(parts, "drain is failing: "+l.Failing)
	}
	return l.Partition + " (" + strings.Join(parts, "; ") + ")"
}

// sawHead notes how late the oldest message is by now.
func (d *drainer) sawHead(late time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.head = time.Time{}
	if late > 0 && !d.held { // what the policy holds back is overdue, and nobody's fault
		d.head = time.Now().Add(-late)
	}
}

func (d *drainer) sawHeld(held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held = held; held {
		d.head = time.Time{}
	}
}

func (d *drainer) sawType(wrong bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrongType = wrong
}

// late says whether the partition is not drained on time.
func (d *drainer) late(partition string, now time.Time) (Late, bool) {
	d.mu.Lock()
	head, wrongType := d.head, d.wrongType
	d.mu.Unlock()
	l := Late{Partition: partition, Failing: d.state.Trouble(), WrongType: wrongType}
	if behind := now.Sub(head); !head.IsZero() && behind > LateAfter {
		l.By = behind
	}
	return l, l.By > 0 || l.Failing != ""
}

// lateOnes returns the owned partitions that are not drained on time, the latest first.
func lateOnes(owned map[string]*drainer) (all []Late) {
	now := time.Now()
	for partition, d := range owned {
		if l, late := d.late(partition, now); late {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b Late) int {
		return cmp.Or(cmp.Compare(b.By, a.By), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

// Alive returns why the bridge must be started anew: it hangs. An outage of Redis, which it waits for, is no reason.
func (s Status) Alive() error {
	if turned := time.Since(s.Turned); !s.Turned.IsZero() && turned > HungAfter {
		return fmt.Errorf("the heartbeat has not come round for %s: the bridge hangs", turned.Round(time.Second))
	}
	return nil
}

// mostLate is how many late partitions an error names.
const mostLate = 10

// Ready returns why the bridge does not do its work now: it hangs, Redis does not answer its heartbeats, or partitions are late,
// which it names. One of which a key is of another type is none of these: see Broken.
func (s Status) Ready() error {
	errs := []error{s.Alive()}
	switch age := time.Since(s.LastHeartbeat); {
	case s.LastHeartbeat.IsZero():
		errs = append(errs, errors.New("no heartbeat has succeeded yet"))
	case age > GoneAfter:
		errs = append(errs, fmt.Errorf("the last heartbeat succeeded %s ago: is Redis there?", age.Round(time.Second)))
	}
	return errors.Join(append(errs, s.name(false))...)
}

// Broken names the partitions that no bridge can serve, because a key of theirs is of another type. That is no fault of the
// bridge: started anew, it serves this queue no better, and meanwhile no others.
func (s Status) Broken() error { return s.name(true) }

func (s Status) name(wrongType bool) error {
	var errs []error
	more := 0
	for _, l := range s.Late {
		switch {
		case l.WrongType != wrongType:
		case len(errs) < mostLate:
			errs = append(errs, errors.New(l.String()))
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("%d more partitions are late", more))
	}
	return errors.Join(errs...)
}
