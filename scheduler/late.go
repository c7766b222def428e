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
	// HungAfter is the longest time between two rounds of the heartbeat loop before the scheduler counts as hung. A
	// round ends within 6 s, whatever Redis does.
	HungAfter = 30 * time.Second
	// GoneAfter is the greatest age of the last good heartbeat.
	GoneAfter = 5 * time.Second
	// LateAfter is the greatest lateness of a partition's oldest message. Its loop, the survey and a takeover are all
	// quicker.
	LateAfter = 10 * time.Second
)

// Late is a partition that this scheduler owns but does not drain on time.
type Late struct {
	Partition string        `json:"partition"`
	By        time.Duration `json:"-"`                 // lateness of its oldest message; 0 = unknown
	Failing   string        `json:"failing,omitempty"` // why its drains fail; "" = they do not
	// WrongType: another program wrote one of its keys with another type. No bridge can serve it: see Status.Broken.
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

// sawHead notes how late the oldest message is now.
func (d *drainer) sawHead(late time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.head = time.Time{}
	if late > 0 && !d.held { // a message that the policy holds back is overdue on purpose
		d.head = time.Now().Add(-late)
	}
}

func (d *drainer) sawHeld(held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = held
	if held {
		d.head = time.Time{}
	}
}

// report takes the result of a drain. It sets wrongType and state under one lock, so that late never sees one without
// the other. The lock is not mu, because writing a log line may take long.
func (d *drainer) report(err error) {
	d.reported.Lock()
	defer d.reported.Unlock()
	d.wrongType = errors.Is(err, lua.ErrWrongType)
	d.state.Report(err)
}

// late reports whether the partition is not drained on time.
func (d *drainer) late(partition string, now time.Time) (Late, bool) {
	d.reported.Lock()
	l := Late{Partition: partition, Failing: d.state.Trouble(), WrongType: d.wrongType}
	d.reported.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if behind := now.Sub(d.head); !d.head.IsZero() && behind > LateAfter {
		l.By = behind
	}
	return l, l.By > 0 || l.Failing != ""
}

// lateOnes returns the owned partitions that are not drained on time, the most overdue first.
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

// Alive returns an error if the bridge hangs and must be restarted. An outage of Redis is no error: the bridge waits
// for its end.
func (s Status) Alive() error {
	if turned := time.Since(s.Turned); !s.Turned.IsZero() && turned > HungAfter {
		return fmt.Errorf("the heartbeat has not come round for %s: the bridge hangs", turned.Round(time.Second))
	}
	return nil
}

// mostLate is how many late partitions an error names.
const mostLate = 10

// Ready returns an error if the bridge cannot do its work now: it hangs, Redis does not answer its heartbeats, or
// partitions are late; the error names them. It leaves out partitions with a key of the wrong type: see Broken.
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

// Broken names the partitions that no bridge can serve because one of their keys has the wrong type. It is no reason
// for a restart: that would not mend these partitions, and would interrupt the others.
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
