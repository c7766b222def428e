package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// Thresholds at which a bridge reports itself unwell.
const (
	// HungAfter is the time without a round of the heartbeat loop after which the scheduler counts as hung. A round
	// ends within 6 s, even if Redis does not answer.
	HungAfter = 30 * time.Second
	// GoneAfter is the age of the last heartbeat that succeeded after which Redis counts as unreachable.
	GoneAfter = 5 * time.Second
	// LateAfter is the lateness of a partition's oldest message after which the partition counts as late. The loop of
	// the partition, the survey, and a takeover by another scheduler all react sooner.
	LateAfter = 10 * time.Second
)

// Late is a partition that this scheduler owns but does not drain on time.
type Late struct {
	Partition string        `json:"partition"`
	By        time.Duration `json:"-"`                 // lateness of the oldest message; 0 = unknown
	Failing   string        `json:"failing,omitempty"` // why the drains fail; "" = they do not fail
	// WrongType: another program wrote a key of the partition with another type. No bridge can serve the partition: see
	// Status.Broken.
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

// noteOldestDue notes how late the oldest message is now.
func (d *drainer) noteOldestDue(late time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.oldestDue = time.Time{}
	if late > 0 && !d.heldBack { // a message that the policy holds back does not make the partition late
		d.oldestDue = time.Now().Add(-late)
	}
}

// noteHeldBack notes whether the policy holds due messages back.
func (d *drainer) noteHeldBack(heldBack bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heldBack = heldBack
	if heldBack {
		d.oldestDue = time.Time{}
	}
}

// report notes and logs the result of a drain. It sets wrongType and state under one lock, so that late never reads one
// without the other. The lock is not mu, because writing a log line may take long.
func (d *drainer) report(err error) {
	d.reportMu.Lock()
	defer d.reportMu.Unlock()
	d.wrongType = errors.Is(err, lua.ErrWrongType)
	d.state.Report(err)
}

// late reports whether the partition is not drained on time, and describes that.
func (d *drainer) late(partition string, now time.Time) (Late, bool) {
	d.reportMu.Lock()
	l := Late{Partition: partition, Failing: d.state.Trouble(), WrongType: d.wrongType}
	d.reportMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if behind := now.Sub(d.oldestDue); !d.oldestDue.IsZero() && behind > LateAfter {
		l.By = behind
	}
	return l, l.By > 0 || l.Failing != ""
}

// latePartitions returns the owned partitions that are not drained on time, the most overdue first.
func latePartitions(owned map[string]*drainer) (all []Late) {
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

// Alive returns an error if the bridge hangs and must be restarted. An outage of Redis is no error: the bridge waits
// for its end.
func (s Status) Alive() error {
	if turned := time.Since(s.Turned); !s.Turned.IsZero() && turned > HungAfter {
		return fmt.Errorf("the heartbeat has not come round for %s: the bridge hangs", turned.Round(time.Second))
	}
	return nil
}

// maxNamedLate is the greatest number of late partitions that an error names.
const maxNamedLate = 10

// Ready returns an error if the bridge cannot do its work now: it hangs, Redis does not answer its heartbeats, or
// partitions are late. The error names the late partitions. Ready ignores partitions with a key of the wrong type: see
// Broken.
func (s Status) Ready() error {
	errs := []error{s.Alive()}
	switch age := time.Since(s.LastHeartbeat); {
	case s.LastHeartbeat.IsZero():
		errs = append(errs, errors.New("no heartbeat has succeeded yet"))
	case age > GoneAfter:
		errs = append(errs, fmt.Errorf("the last heartbeat succeeded %s ago: is Redis there?",
			age.Round(time.Second)))
	}
	return errors.Join(append(errs, s.latePartitionsError(false))...)
}

// Broken returns an error that names the partitions that no bridge can serve, because one of their keys has the wrong
// type. It is no reason to restart the bridge: a restart does not mend these partitions, and interrupts the others.
func (s Status) Broken() error { return s.latePartitionsError(true) }

// latePartitionsError returns an error that names the late partitions, either those with a key of the wrong type or the
// others.
func (s Status) latePartitionsError(wrongType bool) error {
	var errs []error
	more := 0
	for _, l := range s.Late {
		switch {
		case l.WrongType != wrongType:
		case len(errs) < maxNamedLate:
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
