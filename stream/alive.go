package stream

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
)

// HungAfter is after how long within one step a loop of a worker hangs: each ends within seconds, whatever Redis does.
const HungAfter = 30 * time.Second

// pulse is how a loop shows that it lives: a count that is odd while the loop does what must end soon, and even while it waits.
type pulse struct {
	n atomic.Uint64

	// Of Alive.
	seen  uint64
	since time.Time
}

func (u *pulse) begin() { u.n.Add(1) }
func (u *pulse) end()   { u.n.Add(1) }
func (u *pulse) step()  { u.n.Add(2) } // another try

// hangs returns for how long the loop has been in one step, as far as it was asked.
func (u *pulse) hangs(now time.Time) time.Duration {
	n := u.n.Load()
	if n%2 == 0 || n != u.seen || u.since.IsZero() {
		u.seen, u.since = n, now
	}
	return now.Sub(u.since)
}

// Alive returns why the worker must be started anew: a loop of it hangs, in a call to Redis or in Settled, for 30 s; or more
// handlers than MaxAbandoned ignore their contexts, and the others keep their slots. It is to be asked every few seconds: what it
// saw is compared with what it saw before. A handler that takes its time is no reason, nor an outage of Redis, which the worker
// waits for. It does not touch Redis.
func (w *Worker) Alive() error { return w.aliveAt(time.Now()) }

func (w *Worker) aliveAt(now time.Time) error {
	errs := []error{w.abandoned.trouble()}
	for _, one := range w.all() {
		errs = append(errs, one.hangsAt(now))
	}
	return errors.Join(errs...)
}

// hangsAt names the loops of one queue that hang.
func (w *Worker) hangsAt(now time.Time) error {
	w.mu.Lock()
	served := slices.Clone(w.served)
	w.mu.Unlock()
	w.asked.Lock()
	defer w.asked.Unlock()
	var errs []error
	add := func(partition int, what string, u *pulse) {
		if hangs := u.hangs(now); hangs > HungAfter {
			errs = append(errs, fmt.Errorf("%s: %s has not come round for %s: the worker hangs",
				lua.PartitionName(w.cfg.Queue, partition), what, hangs.Round(time.Second)))
		}
	}
	add(0, "the look at the registry", &w.watches)
	for _, p := range served {
		add(p.partition, "the read", &p.reads)
		add(p.partition, "the settlement", &p.settle.passes)
		add(p.partition, "the extension", &p.extends)
		add(p.partition, "the look at the policy", &p.looks)
	}
	return errors.Join(errs...)
}
