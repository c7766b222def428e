package stream

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
)

// HungAfter is the longest time in one step before a loop of a worker counts as hung. Each step ends within seconds,
// whatever Redis does.
const HungAfter = 30 * time.Second

// pulse shows whether a loop is alive. Its count is odd during a step that must end soon, and even while the loop
// waits.
type pulse struct {
	count atomic.Uint64

	// Alive alone uses these fields.
	lastCount uint64
	since     time.Time // when Alive first saw lastCount
}

func (p *pulse) begin() { p.count.Add(1) }
func (p *pulse) end()   { p.count.Add(1) }

// step ends a step and begins the next.
func (p *pulse) step() { p.count.Add(2) }

// inStepFor returns how long the loop has been in the current step, since the first call that saw this step.
func (p *pulse) inStepFor(now time.Time) time.Duration {
	count := p.count.Load()
	isWaiting := count%2 == 0
	if isWaiting || count != p.lastCount || p.since.IsZero() {
		p.lastCount, p.since = count, now
	}
	return now.Sub(p.since)
}

// Alive returns an error if the worker hangs and must be restarted: a loop has been in a call to Redis, or in Settled,
// for 30 s; or more than MaxAbandoned handlers ignore their contexts, and the excess handlers keep their slots. Call
// Alive every few seconds, because it compares each loop with the last call. A slow handler is no error. An outage of
// Redis is no error either: the worker waits for the end of the outage. Alive does not touch Redis.
func (w *Worker) Alive() error { return w.aliveAt(time.Now()) }

func (w *Worker) aliveAt(now time.Time) error {
	w.asked.Lock()
	defer w.asked.Unlock()
	errs := []error{w.pool.abandoned.trouble()}
	for _, q := range w.queues {
		errs = append(errs, q.hungLoops(now)...)
	}
	return errors.Join(errs...)
}

// hungLoops returns an error for each loop of the queue that hangs.
func (q *queueWorker) hungLoops(now time.Time) (errs []error) {
	add := func(partition int, loopName string, p *pulse) {
		if d := p.inStepFor(now); d > HungAfter {
			errs = append(errs, fmt.Errorf("%s: %s has not come round for %s: the worker hangs",
				lua.PartitionName(q.cfg.Queue, partition), loopName, d.Round(time.Second)))
		}
	}
	add(0, "the look at the registry", &q.registry.pulse)
	for _, p := range q.opened() {
		add(p.partition, "the read", &p.reads)
		add(p.partition, "the settlement", &p.settles)
		add(p.partition, "the extension", &p.extends)
		add(p.partition, "the look at the policy", &p.refreshes)
	}
	return errs
}
