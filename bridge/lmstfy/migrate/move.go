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
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/lua"
)

// Config configures Move.
type Config struct {
	From rueidis.Client // the Redis that holds the jobs of an lmstfy pool
	To   *admin.Admin   // nil = dry run: jobs are only read and counted

	Namespaces, Queues []string      // only the jobs in these are moved; empty = all
	Window             time.Duration // how long each moved job is remembered, so that no repeated Move moves it again
	Remove             bool          // delete each moved job from lmstfy, also if an earlier Move moved it

	Progress func(jobs int64)                             // called after each batch, with the jobs so far; may be nil
	Refused  func(namespace, queue, id string, err error) // for each refused job; id "" = all of the queue; may be nil
}

// Tally counts what happened to the jobs of a queue.
type Tally struct {
	Queue     string `json:"queue"` // name of the queue in duestream; "" = the name is not valid there
	Namespace string `json:"lmstfy_namespace"`
	Name      string `json:"lmstfy_queue"`

	// Moved jobs, by their state in lmstfy.
	Ready    int64 `json:"ready"`
	Delayed  int64 `json:"delayed"`
	InFlight int64 `json:"in_flight"`
	Dead     int64 `json:"dead"`
	Stray    int64 `json:"stray"`

	Known   int64 `json:"known"`   // moved by an earlier run
	Refused int64 `json:"refused"` // invalid in duestream; they stay in lmstfy
	Removed int64 `json:"removed"` // deleted from lmstfy
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
	// A structure of lmstfy is timer_set, a ready list, or a list of dead letters. A job in none of them may be on its
	// way from one to another. After a pass that found such a job, passPause gives lmstfy the time to finish: it is
	// longer than lmstfy's tick of a second.
	passPause   = 1100 * time.Millisecond
	strayPasses = 3 // a job counts as stray after so many passes in which it was in no structure

	batchJobs  = 64
	batchBytes = 1 << 20 // of the payloads that are written together
)

// mover is one run of Move.
type mover struct {
	cfg      Config
	from     *source
	handled  map[queueID]map[string]bool // IDs of the jobs that were moved, refused or found deleted
	unplaced map[queueID]map[string]int  // jobs in no structure → number of passes so far
	imports  map[queueID]*admin.Import
	tallies  map[queueID]*Tally
	jobsRead int64
}

// Move moves jobs until a pass through lmstfy's Redis finds no new job. It returns a Tally for each queue, also with
// an error. A job is first stored, then remembered, then, with Remove, deleted from lmstfy. A repeated Move within
// the window moves no job twice, so an interrupted one can be continued. While lmstfy is in use, a job that it
// delivers may also be delivered by duestream (at least once). Move keeps the IDs of all jobs in memory, about 200
// bytes each.
func Move(ctx context.Context, cfg Config) ([]Tally, error) {
	m := &mover{cfg: cfg, handled: map[queueID]map[string]bool{}, unplaced: map[queueID]map[string]int{},
		imports: map[queueID]*admin.Import{}, tallies: map[queueID]*Tally{}}
	m.from = &source{c: cfg.From, isWanted: func(queue queueID) bool {
		return (len(cfg.Namespaces) == 0 || slices.Contains(cfg.Namespaces, queue.namespace)) &&
			(len(cfg.Queues) == 0 || slices.Contains(cfg.Queues, queue.name))
	}}
	err := m.run(ctx)
	var all []Tally
	for _, queue := range slices.SortedFunc(maps.Keys(m.tallies), compareQueues) {
		all = append(all, *m.tallies[queue])
	}
	return all, err
}

func compareQueues(a, b queueID) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
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
			case <-time.After(passPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// pass reads lmstfy's Redis once and moves the jobs that it finds. foundNew means that it found new jobs. unplaced
// means that some jobs were in no structure, so that another pass must look for them.
func (m *mover) pass(ctx context.Context) (foundNew, unplaced bool, _ error) {
	wanted := map[queueID]map[string]bool{} // jobs that are still to be found in a structure
	err := m.from.jobs(ctx, func(queue queueID, id string) {
		if !m.handled[queue][id] {
			if wanted[queue] == nil {
				wanted[queue] = map[string]bool{}
			}
			wanted[queue][id] = true
		}
	})
	if err != nil || len(wanted) == 0 {
		return false, false, err
	}
	timer, err := m.from.timer(ctx)
	if err != nil {
		return false, false, err
	}
	for _, queue := range slices.SortedFunc(maps.Keys(wanted), compareQueues) {
		handledBefore := len(m.handled[queue])
		found, err := m.find(ctx, queue, timer[queue], wanted[queue])
		if err == nil {
			err = m.move(ctx, queue, found)
		}
		if err != nil {
			return false, false, err
		}
		foundNew = foundNew || len(m.handled[queue]) > handledBefore
		for id := range wanted[queue] {
			unplaced = unplaced || !m.handled[queue][id]
		}
	}
	return foundNew, unplaced, nil
}

// find returns the jobs of a queue in the order in which lmstfy would deliver them: ready jobs, jobs of timer_set, dead
// jobs, and last stray jobs. A job may move between two reads, and be read twice. Then the later reading counts.
func (m *mover) find(ctx context.Context, queue queueID, timer []entry, wanted map[string]bool) ([]entry, error) {
	ready, err := m.from.list(ctx, queue, readyKey, Ready)
	if err != nil {
		return nil, err
	}
	dead, err := m.from.list(ctx, queue, deadKey, Dead)
	if err != nil {
		return nil, err
	}
	latest := map[string]entry{}
	for _, e := range slices.Concat(timer, ready, dead) { // the structures were read in this order
		latest[e.id] = e
	}
	var strays []entry
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if _, found := latest[id]; found {
			continue
		}
		if m.unplaced[queue] == nil {
			m.unplaced[queue] = map[string]int{}
		}
		m.unplaced[queue][id]++
		if m.unplaced[queue][id] >= strayPasses {
			strays = append(strays, entry{queue: queue, id: id, state: Stray, tries: 1})
		}
	}
	var found []entry
	for _, e := range slices.Concat(ready, timer, dead) {
		if latest[e.id] != e || m.handled[queue][e.id] {
			continue
		}
		delete(latest, e.id) // so that an entry that was read twice unchanged is moved once
		e.state = stateOf(e)
		found = append(found, e)
	}
	return append(found, strays...), nil
}

// move moves jobs of one queue, a batch at a time. Cancelling ctx does not interrupt a batch.
func (m *mover) move(ctx context.Context, queue queueID, found []entry) error {
	if len(found) == 0 {
		return nil
	}
	if m.handled[queue] == nil {
		m.handled[queue] = map[string]bool{}
	}
	if m.tallies[queue] == nil {
		m.tallies[queue] = &Tally{Namespace: queue.namespace, Name: queue.name}
	}
	tally := m.tallies[queue]
	name, err := lmstfy.QueueName(queue.namespace, queue.name)
	if err != nil {
		m.refuse(queue, "", err)
		for _, e := range found {
			m.handled[queue][e.id] = true
			tally.Refused++
		}
		return nil
	}
	tally.Queue = name
	if err := m.prepare(ctx, queue, name); err != nil {
		return err
	}
	for batch := range slices.Chunk(found, batchJobs) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.batch(context.WithoutCancel(ctx), queue, batch); err != nil {
			return fmt.Errorf("move %s/%s: %w", queue.namespace, queue.name, err)
		}
		m.jobsRead += int64(len(batch))
		if m.cfg.Progress != nil {
			m.cfg.Progress(m.jobsRead)
		}
	}
	return nil
}

// prepare sets up the duestream queue for a queue of lmstfy, once: its import, its settings and its group.
func (m *mover) prepare(ctx context.Context, queue queueID, name string) error {
	if m.cfg.To == nil || m.imports[queue] != nil {
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
		m.imports[queue] = to
	}
	return err
}

func (m *mover) refuse(queue queueID, id string, err error) {
	if m.cfg.Refused != nil {
		m.cfg.Refused(queue.namespace, queue.name, id, err)
	}
}

// batch moves the jobs that no earlier run moved. With Remove it deletes from lmstfy the jobs that this or an earlier
// run moved.
func (m *mover) batch(ctx context.Context, queue queueID, batch []entry) error {
	ids := make([]string, len(batch))
	for i, e := range batch {
		ids[i] = e.id
	}
	known := make([]bool, len(batch))
	var err error
	if m.cfg.To != nil {
		if known, err = m.imports[queue].Known(ctx, ids); err != nil {
			return err
		}
	}
	bodies, now, err := m.from.bodies(ctx, batch)
	if err != nil {
		return err
	}
	var moving, moved []entry
	var records []admin.Record
	tally := m.tallies[queue]
	for i, e := range batch {
		m.handled[queue][e.id] = true
		if bodies[i].foreign {
			tally.Refused++
			m.refuse(queue, e.id, lua.Invalid("job", e.id, "is not as lmstfy stores it: its key holds no string"))
			continue
		}
		if !bodies[i].exists { // the job was acknowledged, or has expired
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
			m.refuse(queue, e.id, err)
			continue
		}
		moving, records = append(moving, e), append(records, r)
	}
	taken, err := m.write(ctx, queue, moving, records)
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

// write stores records in duestream and remembers their IDs. It returns the jobs that duestream now holds, those of an
// earlier run included. In a dry run it only counts.
func (m *mover) write(
	ctx context.Context, queue queueID, entries []entry, records []admin.Record,
) (taken []entry, _ error) {
	tally := m.tallies[queue]
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
		for i, err := range m.imports[queue].Write(ctx, records[:n]) {
			switch e := entries[i]; {
			case err == nil:
				tally.add(e.state)
			case errors.Is(err, admin.ErrKnown): // an earlier run stored the job, and stopped before it remembered it
				tally.Known++
			case errors.Is(err, lua.ErrInvalid):
				tally.Refused++
				m.refuse(queue, e.id, err)
				continue
			default:
				return taken, err
			}
			taken, ids = append(taken, entries[i]), append(ids, entries[i].id)
		}
		if len(ids) > 0 {
			if err := m.imports[queue].Remember(ctx, ids); err != nil {
				return taken, err
			}
		}
		entries, records = entries[n:], records[n:]
	}
	return taken, nil
}
