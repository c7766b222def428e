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
	if late > 0 {
		d.head = time.Now().Add(-late)
	}
}

// late says whether the partition is not drained on time.
func (d *drainer) late(partition string, now time.Time) (Late, bool) {
	d.mu.Lock()
	head := d.head
	d.mu.Unlock()
	l := Late{Partition: partition, Failing: d.state.Trouble()}
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
// which it names.
func (s Status) Ready() error {
	errs := []error{s.Alive()}
	switch age := time.Since(s.LastHeartbeat); {
	case s.LastHeartbeat.IsZero():
		errs = append(errs, errors.New("no heartbeat has succeeded yet"))
	case age > GoneAfter:
		errs = append(errs, fmt.Errorf("the last heartbeat succeeded %s ago: is Redis there?", age.Round(time.Second)))
	}
	for i, l := range s.Late {
		if i == mostLate {
			errs = append(errs, fmt.Errorf("%d more partitions are late", len(s.Late)-i))
			break
		}
		errs = append(errs, errors.New(l.String()))
	}
	return errors.Join(errs...)
}
