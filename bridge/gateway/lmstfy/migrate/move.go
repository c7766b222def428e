package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
	"github.com/duestream/duestream/lua"
)

// Config configures Move.
type Config struct {
	From rueidis.Client // the Redis that holds the jobs of an lmstfy pool
	To   *admin.Admin   // nil = dry run: jobs are only read and counted

	Namespaces, Queues []string      // only these; empty = all
	Window             time.Duration // how long each moved job is remembered, so that it is not moved again
	Remove             bool          // delete from lmstfy each job that was moved, now or before; else all jobs stay

	Progress func(jobs int64)                             // after each batch, with the jobs read so far; may be nil
	Refused  func(namespace, queue, id string, err error) // for each refused job; id "" = all of the queue; may be nil
}

// Tally counts what happened to the jobs of a queue.
type Tally struct {
	Queue     string `json:"queue"` // its name in duestream; "" = duestream cannot have this name
	Namespace string `json:"lmstfy_namespace"`
	Name      string `json:"lmstfy_queue"`

	Ready    int64 `json:"ready"` // moved jobs, by their state in lmstfy: ready, delayed, …
	Delayed  int64 `json:"delayed"`
	InFlight int64 `json:"in_flight"`
	Dead     int64 `json:"dead"`
	Stray    int64 `json:"stray"`

	Known   int64 `json:"known"`   // moved by an earlier run
	Refused int64 `json:"refused"` // invalid in duestream; they stay in lmstfy
	Removed int64 `json:"removed"` // from lmstfy
}

// Moved returns how many jobs were moved or, in a dry run, would be.
func (t Tally) Moved() int64 { return t.Ready + t.Delayed + t.InFlight + t.Dead + t.Stray }

func (t *Tally) add(state State) {
	switch state {
	case Ready:
		t.Ready++
	case Delayed:
		t.Delayed++
	case InFlight:
		t.InFlight++
	case Dead:
		t.Dead++
	case Stray:
		t.Stray++
	}
}

const (
	between    = 1100 * time.Millisecond // pause after a pass with jobs in no structure; longer than lmstfy's tick
	sightings  = 3                       // passes in which a job must be in no structure to count as stray
	batchJobs  = 64
	batchBytes = 1 << 20
)

// mover is one run of Move.
type mover struct {
	cfg     Config
	from    *source
	done    map[place]map[string]bool // jobs that need no second look
	strays  map[place]map[string]int  // jobs in no structure → number of passes so far
	imports map[place]*admin.Import
	tallies map[place]*Tally
	looked  int64
}

// Move moves jobs until a pass through lmstfy's Redis finds no new job. It returns a Tally for each queue, also with
// an error. A job is first stored, then remembered, then, with Remove, deleted from lmstfy. A repeated Move within
// the window moves no job twice, so an interrupted one can be continued. While lmstfy is in use, a job that it
// delivers may also be delivered by duestream (at least once). Move keeps the IDs of all jobs in memory, about 200
// bytes each.
func Move(ctx context.Context, cfg Config) ([]Tally, error) {
	m := &mover{cfg: cfg, done: map[place]map[string]bool{}, strays: map[place]map[string]int{},
		imports: map[place]*admin.Import{}, tallies: map[place]*Tally{}}
	m.from = &source{c: cfg.From, only: func(p place) bool {
		return (len(cfg.Namespaces) == 0 || slices.Contains(cfg.Namespaces, p.namespace)) &&
			(len(cfg.Queues) == 0 || slices.Contains(cfg.Queues, p.queue))
	}}
	err := m.run(ctx)
	var all []Tally
	for _, at := range slices.SortedFunc(maps.Keys(m.tallies), comparePlaces) {
		all = append(all, *m.tallies[at])
	}
	return all, err
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.queue, b.queue))
}

func (m *mover) run(ctx context.Context) error {
	for {
		foundNew, unplaced, err := m.pass(ctx)
		switch {
		case err != nil:
			return err
		case !foundNew && !unplaced:
			return nil
		case unplaced:
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// pass reads lmstfy's Redis once and moves the jobs that it finds. foundNew means that it found new jobs. unplaced
// means that some jobs were in no structure, and have to be looked for again.
func (m *mover) pass(ctx context.Context) (foundNew, unplaced bool, _ error) {
	wanted := map[place]map[string]bool{} // jobs that are still to be found in a structure
	err := m.from.jobs(ctx, func(at place, id string) {
		if !m.done[at][id] {
			if wanted[at] == nil {
				wanted[at] = map[string]bool{}
			}
			wanted[at][id] = true
		}
	})
	if err != nil || len(wanted) == 0 {
		return false, false, err
	}
	timer, err := m.from.timer(ctx)
	if err != nil {
		return false, false, err
	}
	for _, at := range slices.SortedFunc(maps.Keys(wanted), comparePlaces) {
		before := len(m.done[at])
		found, err := m.find(ctx, at, timer[at], wanted[at])
		if err == nil {
			err = m.move(ctx, at, found)
		}
		if err != nil {
			return false, false, err
		}
		foundNew = foundNew || len(m.done[at]) > before
		for id := range wanted[at] {
			unplaced = unplaced || !m.done[at][id]
		}
	}
	return foundNew, unplaced, nil
}

// find returns the jobs of a queue in the order in which lmstfy would deliver them: ready ones, those of timer_set,
// dead ones, and last strays. For a job that was read twice, the later reading counts.
func (m *mover) find(ctx context.Context, at place, timer []entry, wanted map[string]bool) ([]entry, error) {
	ready, err := m.from.list(ctx, at, readyKey, Ready)
	if err != nil {
		return nil, err
	}
	dead, err := m.from.list(ctx, at, deadKey, Dead)
	if err != nil {
		return nil, err
	}
	seen := map[string]entry{}
	for _, e := range slices.Concat(timer, ready, dead) { // in the order in which they were read
		seen[e.id] = e
	}
	var strays []entry
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if _, is := seen[id]; is {
			continue
		}
		if m.strays[at] == nil {
			m.strays[at] = map[string]int{}
		}
		if m.strays[at][id]++; m.strays[at][id] >= sightings {
			strays = append(strays, entry{at: at, id: id, state: Stray, tries: 1})
		}
	}
	var found []entry
	for _, e := range slices.Concat(ready, timer, dead) {
		if last, is := seen[e.id]; !is || last != e || m.done[at][e.id] {
			continue
		}
		delete(seen, e.id)
		e.state = stateOf(e)
		found = append(found, e)
	}
	return append(found, strays...), nil
}

// move moves jobs of one queue, a batch at a time. Cancelling ctx does not interrupt a batch.
func (m *mover) move(ctx context.Context, at place, found []entry) error {
	if len(found) == 0 {
		return nil
	}
	if m.done[at] == nil {
		m.done[at] = map[string]bool{}
	}
	if m.tallies[at] == nil {
		m.tallies[at] = &Tally{Namespace: at.namespace, Name: at.queue}
	}
	tally := m.tallies[at]
	name, err := lmstfy.QueueName(at.namespace, at.queue)
	if err != nil {
		m.refuse(at, "", err)
		for _, e := range found {
			m.done[at][e.id] = true
			tally.Refused++
		}
		return nil
	}
	tally.Queue = name
	if err := m.prepare(ctx, at, name); err != nil {
		return err
	}
	for batch := range slices.Chunk(found, batchJobs) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.batch(context.WithoutCancel(ctx), at, batch); err != nil {
			return fmt.Errorf("move %s/%s: %w", at.namespace, at.queue, err)
		}
		m.looked += int64(len(batch))
		if m.cfg.Progress != nil {
			m.cfg.Progress(m.looked)
		}
	}
	return nil
}

// prepare sets up a queue of duestream once: its import, its settings and its group.
func (m *mover) prepare(ctx context.Context, at place, name string) error {
	if m.cfg.To == nil || m.imports[at] != nil {
		return nil
	}
	to, err := m.cfg.To.Import(ctx, name, "lmstfy", m.cfg.Window)
	if err == nil {
		err = lmstfy.EnsureQueue(ctx, m.cfg.To, name)
	}
	if err == nil {
		err = to.Groups(ctx, []string{lmstfy.Group})
	}
	if err == nil {
		m.imports[at] = to
	}
	return err
}

func (m *mover) refuse(at place, id string, err error) {
	if m.cfg.Refused != nil {
		m.cfg.Refused(at.namespace, at.queue, id, err)
	}
}

// batch moves the jobs that were not moved before. With Remove it deletes all of the batch's moved jobs from lmstfy.
func (m *mover) batch(ctx context.Context, at place, batch []entry) error {
	ids := make([]string, len(batch))
	for i, e := range batch {
		ids[i] = e.id
	}
	known := make([]bool, len(batch))
	var err error
	if m.cfg.To != nil {
		if known, err = m.imports[at].Known(ctx, ids); err != nil {
			return err
		}
	}
	bodies, now, err := m.from.bodies(ctx, batch)
	if err != nil {
		return err
	}
	var moving, moved []entry
	var records []admin.Record
	tally := m.tallies[at]
	for i, e := range batch {
		m.done[at][e.id] = true
		if bodies[i].foreign {
			tally.Refused++
			m.refuse(at, e.id, lua.Invalid("job", e.id, "is not as lmstfy stores it: its key holds no string"))
			continue
		}
		if !bodies[i].there { // it was acknowledged, or has expired
			continue
		}
		if known[i] {
			tally.Known++
			moved = append(moved, e)
			continue
		}
		r, err := record(e, bodies[i], now)
		if err != nil {
			tally.Refused++
			m.refuse(at, e.id, err)
			continue
		}
		moving, records = append(moving, e), append(records, r)
	}
	taken, err := m.write(ctx, at, moving, records)
	if err != nil || m.cfg.To == nil || !m.cfg.Remove {
		return err
	}
	moved = append(moved, taken...)
	if len(moved) == 0 {
		return nil
	}
	tally.Removed += int64(len(moved))
	return m.from.drop(ctx, moved)
}

// write stores records in duestream and remembers their IDs. It returns the jobs that are stored there, now or before.
func (m *mover) write(ctx context.Context, at place, entries []entry, records []admin.Record) (taken []entry, _ error) {
	tally := m.tallies[at]
	if m.cfg.To == nil {
		for _, e := range entries {
			tally.add(e.state)
		}
		return nil, nil
	}
	for len(records) > 0 {
		n, bytes := 0, 0
		for n < len(records) && (n == 0 || bytes+len(records[n].Payload) <= batchBytes) {
			bytes += len(records[n].Payload)
			n++
		}
		var ids []string
		for i, err := range m.imports[at].Write(ctx, records[:n]) {
			switch e := entries[i]; {
			case err == nil:
				tally.add(e.state)
			case errors.Is(err, admin.ErrKnown): // stored by an earlier run that stopped before it remembered the job
				tally.Known++
			case errors.Is(err, lua.ErrInvalid):
				tally.Refused++
				m.refuse(at, e.id, err)
				continue
			default:
				return taken, err
			}
			taken, ids = append(taken, entries[i]), append(ids, entries[i].id)
		}
		if len(ids) > 0 {
			if err := m.imports[at].Remember(ctx, ids); err != nil {
				return taken, err
			}
		}
		entries, records = entries[n:], records[n:]
	}
	return taken, nil
}
