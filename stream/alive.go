package stream

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
)

// HungAfter is the longest time in one step before a loop of a worker counts as hung. Each step ends within seconds,
// whatever Redis does.
const HungAfter = 30 * time.Second

// pulse lets others see that a loop is alive. It is a count that is odd during a step that must end soon, and even
// while the loop waits.
type pulse struct {
	n atomic.Uint64

	// Used by Alive only.
	seen  uint64
	since time.Time
}

func (u *pulse) begin() { u.n.Add(1) }
func (u *pulse) end()   { u.n.Add(1) }
func (u *pulse) step()  { u.n.Add(2) } // another try

// hangs returns how long the loop has been in the current step, since the first call of hangs that saw it.
func (u *pulse) hangs(now time.Time) time.Duration {
	n := u.n.Load()
	if n%2 == 0 || n != u.seen || u.since.IsZero() {
		u.seen, u.since = n, now
	}
	return now.Sub(u.since)
}

// Alive returns an error if the worker hangs and must be restarted: a loop has been in a call to Redis, or in Settled,
// for 30 s; or more than MaxAbandoned handlers ignore their contexts, and the excess ones keep their slots. Call it
// every few seconds: it compares each loop with the last call. A slow handler is no error. An outage of Redis is no
// error either: the worker waits for its end. It does not touch Redis.
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
