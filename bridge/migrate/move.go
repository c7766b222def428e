package migrate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// Config configures Move.
type Config struct {
	From Source
	To   *admin.Admin // nil = dry run: jobs are only read and counted

	// Groups are created in each queue, in addition to those of dead letters and of a Preparer; may be empty.
	Groups []string
	Rename map[string]string // by the name that Source.Target returns: another name for the queue in duestream
	Window time.Duration     // how long each moved job is remembered, so that no repeated Move moves it again
	Remove bool              // delete each moved job from the Source, also if an earlier Move moved it

	Progress func(jobs int64)                  // called after each batch, with the jobs so far; may be nil
	Refused  func(queue, id string, err error) // for each refused job; id "" = all of the queue; may be nil
}

// Tally counts what happened to the jobs of a queue.
type Tally struct {
	Queue  string           `json:"queue"`           // name of the queue in duestream; "" = the name is not valid there
	Source string           `json:"source_queue"`    // name of the queue in the program
	States map[string]int64 `json:"moved_by_state"`  // moved jobs, by the program's words for their states
	Stay   map[string]int64 `json:"stayed_by_state"` // jobs that are left on purpose
	Unsaid map[string]int64 `json:"unsaid"`          // settings of moved jobs that duestream does not have

	Moved   int64 `json:"moved"`
	Stayed  int64 `json:"stayed"`
	Known   int64 `json:"known"`   // moved by an earlier run
	Refused int64 `json:"refused"` // invalid in duestream; they stay in the Source
	Removed int64 `json:"removed"` // deleted from the Source
}

const (
	// A job in no structure may be on its way from one to another. passPause gives the program the time to finish.
	passPause = 1100 * time.Millisecond
	// lastPass is the pass in which such a job is moved, and in which a job that changes again and again is left.
	lastPass = 3

	batchJobs  = 128
	batchBytes = 1 << 20 // of the payloads that are written together
)

// strayState is the state of a job that was in no structure in lastPass passes.
const strayState = "stray"

// mover is one run of Move.
type mover struct {
	cfg     Config
	handled map[string]map[string]bool // by queue: IDs of the jobs that are done with
	tries   map[string]map[string]int  // by queue: passes that read a job in vain
	counted map[string]map[string]bool // by queue: IDs of jobs that are counted, and read again to be removed
	imports map[string]*admin.Import
	tallies map[string]*Tally
	read    int64
}

// Move moves jobs until a pass through the Source finds no new job. It returns a Tally for each queue, sorted by the
// names in the Source, also with an error. A repeated Move within the window moves no job twice, so an interrupted one
// can be continued. While the program is in use, a job that it delivers may also be delivered by duestream (at least
// once). Move keeps the IDs of all jobs in memory, and a Source may keep more: with that of lmstfy, the process has
// about 1 KB for each job at its peak.
func Move(ctx context.Context, cfg Config) ([]Tally, error) {
	m := &mover{cfg: cfg, handled: map[string]map[string]bool{}, tries: map[string]map[string]int{},
		counted: map[string]map[string]bool{}, imports: map[string]*admin.Import{}, tallies: map[string]*Tally{}}
	err := m.run(ctx)
	var all []Tally
	for _, queue := range slices.Sorted(maps.Keys(m.tallies)) {
		all = append(all, *m.tallies[queue])
	}
	return all, err
}

func (m *mover) run(ctx context.Context) error {
	for {
		foundNew, again, err := m.pass(ctx)
		switch {
		case err != nil:
			return err
		case !foundNew && !again:
			return nil
		case again:
			select {
			case <-time.After(passPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// pass lists the jobs of the Source once, and moves those that are new. again means that some must be read again.
func (m *mover) pass(ctx context.Context) (foundNew, again bool, _ error) {
	wanted, listed := map[string][]string{}, map[string]map[string]bool{}
	err := m.cfg.From.Scan(ctx, func(queue, id string) {
		if m.handled[queue][id] || listed[queue][id] {
			return
		}
		if listed[queue] == nil {
			listed[queue] = map[string]bool{}
		}
		listed[queue][id] = true
		wanted[queue] = append(wanted[queue], id)
	})
	if err != nil {
		return false, false, err
	}
	for _, queue := range slices.Sorted(maps.Keys(wanted)) {
		if err := m.queue(ctx, queue, wanted[queue]); err != nil {
			return false, false, err
		}
		for _, id := range wanted[queue] {
			done := m.handled[queue][id]
			foundNew, again = foundNew || done, again || !done
		}
	}
	return foundNew, again, nil
}

// queue moves jobs of one queue, a batch at a time. Cancelling ctx does not interrupt a batch.
func (m *mover) queue(ctx context.Context, queue string, ids []string) error {
	if m.tallies[queue] == nil {
		m.handled[queue], m.tries[queue], m.counted[queue] = map[string]bool{}, map[string]int{}, map[string]bool{}
		m.tallies[queue] = &Tally{Source: queue,
			States: map[string]int64{}, Stay: map[string]int64{}, Unsaid: map[string]int64{}}
	}
	tally := m.tallies[queue]
	name, err := m.cfg.From.Target(queue)
	if other, renamed := m.cfg.Rename[name]; renamed {
		name = other
	}
	if err := cmp.Or(err, lua.CheckQueue(name)); err != nil {
		m.refuse(queue, "", err)
		for _, id := range ids {
			m.handled[queue][id] = true
			tally.Refused++
		}
		return nil
	}
	tally.Queue = name
	if err := m.prepare(ctx, queue, name); err != nil {
		return err
	}
	for batch := range slices.Chunk(ids, batchJobs) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.batch(context.WithoutCancel(ctx), queue, batch); err != nil {
			return fmt.Errorf("move %s of %s: %w", queue, m.cfg.From.Program(), err)
		}
		m.read += int64(len(batch))
		if m.cfg.Progress != nil {
			m.cfg.Progress(m.read)
		}
	}
	return nil
}

// prepare sets up the queue of duestream for a queue of the Source, once.
func (m *mover) prepare(ctx context.Context, queue, name string) error {
	if m.cfg.To == nil || m.imports[queue] != nil {
		return nil
	}
	to, err := m.cfg.To.Import(ctx, name, m.cfg.From.Program(), m.cfg.Window)
	groups := m.cfg.Groups
	if p, is := m.cfg.From.(Preparer); is && err == nil {
		var needed []string
		needed, err = p.Prepare(ctx, m.cfg.To, name)
		groups = slices.Concat(groups, needed)
	}
	if err == nil {
		err = to.Groups(ctx, groups)
	}
	if err == nil {
		m.imports[queue] = to
	}
	return err
}

func (m *mover) refuse(queue, id string, err error) {
	if m.cfg.Refused != nil {
		m.cfg.Refused(queue, id, err)
	}
}

// Names under which a job is remembered. Two queues of the Source may become one queue of duestream, so the name has
// both. A job is begun before it is stored, and moved after that. So a run that finds the ID of a job in the queue
// knows whether an interrupted run has stored the job, or whether the ID is that of another message. In the second case
// the job is refused, and that is remembered too, because the job was begun.
func begun(queue, id string) string   { return "begun/" + queue + "/" + id }
func moved(queue, id string) string   { return "moved/" + queue + "/" + id }
func refused(queue, id string) string { return "refused/" + queue + "/" + id }

// batch moves the jobs that no earlier run moved. With Remove it deletes from the Source the jobs that this or an
// earlier run moved.
func (m *mover) batch(ctx context.Context, queue string, ids []string) error {
	known := make([]bool, len(ids))
	var err error
	if m.cfg.To != nil {
		if known, err = m.imports[queue].Known(ctx, names(queue, ids, moved)); err != nil {
			return err
		}
	}
	jobs, err := m.cfg.From.Read(ctx, queue, ids)
	if err != nil {
		return err
	}
	if len(jobs) != len(ids) {
		return fmt.Errorf("read %d jobs of %d", len(jobs), len(ids))
	}
	tally := m.tallies[queue]
	var moving, held []Job
	for i, job := range jobs {
		if job.Fate == Unsettled {
			if m.tries[queue][job.ID]++; m.tries[queue][job.ID] < lastPass && !known[i] {
				continue
			}
			job.Fate, job.State = Moves, strayState
		}
		m.handled[queue][job.ID] = true
		switch {
		case job.Fate == Gone:
		case known[i] && job.Fate != Refused:
			if !m.counted[queue][job.ID] {
				tally.Known++
			}
			held = append(held, job)
		case job.Fate == Stays:
			tally.Stayed++
			tally.Stay[job.State]++
		case job.Fate == Refused:
			tally.Refused++
			m.refuse(queue, job.ID, job.Err)
		default:
			if err := job.Entry.Check(); err != nil {
				tally.Refused++
				m.refuse(queue, job.ID, err)
				continue
			}
			moving = append(moving, job)
		}
	}
	taken, err := m.write(ctx, queue, moving)
	if err != nil || m.cfg.To == nil || !m.cfg.Remove {
		return err
	}
	return m.remove(ctx, queue, append(held, taken...))
}

func (m *mover) remove(ctx context.Context, queue string, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	removed, err := m.cfg.From.Remove(ctx, queue, jobs)
	if err != nil {
		return err
	}
	for i, job := range jobs {
		switch {
		case removed[i]:
			m.tallies[queue].Removed++
		case m.tries[queue][job.ID] < lastPass: // it has changed: the next pass removes it
			m.tries[queue][job.ID]++
			m.counted[queue][job.ID] = true
			delete(m.handled[queue], job.ID)
		}
	}
	return nil
}

// write stores jobs in duestream and remembers them. It returns the jobs that duestream now holds, those of an earlier
// run included. In a dry run it only counts.
func (m *mover) write(ctx context.Context, queue string, jobs []Job) (taken []Job, _ error) {
	tally := m.tallies[queue]
	if m.cfg.To == nil {
		for _, job := range jobs {
			tally.add(job)
		}
		return nil, nil
	}
	for len(jobs) > 0 {
		n, size := 0, 0
		for n < len(jobs) && (n == 0 || size+len(jobs[n].Entry.Payload) <= batchBytes) {
			size += len(jobs[n].Entry.Payload)
			n++
		}
		stored, err := m.store(ctx, queue, jobs[:n])
		taken = append(taken, stored...)
		if err != nil {
			return taken, err
		}
		jobs = jobs[n:]
	}
	return taken, nil
}

// store stores jobs that fit into one batch, and remembers them.
func (m *mover) store(ctx context.Context, queue string, jobs []Job) (taken []Job, _ error) {
	to, tally := m.imports[queue], m.tallies[queue]
	ids, records := make([]string, len(jobs)), make([]admin.Record, len(jobs))
	for i, job := range jobs {
		ids[i], records[i] = job.ID, job.Entry
	}
	wasBegun, err := to.Known(ctx, names(queue, ids, begun))
	var wasRefused []bool
	if err == nil {
		wasRefused, err = to.Known(ctx, names(queue, ids, refused))
	}
	if err == nil {
		err = to.Remember(ctx, names(queue, ids, begun))
	}
	if err != nil {
		return nil, err
	}
	if err := to.Groups(ctx, groupsOfLetters(records)); err != nil {
		return nil, err
	}
	var takenIDs []string
	for i, err := range to.Write(ctx, records) {
		job := jobs[i]
		if errors.Is(err, admin.ErrKnown) {
			isStored := wasBegun[i] && !wasRefused[i]
			if err = m.compare(ctx, queue, job, isStored); errors.Is(err, lua.ErrInvalid) {
				err = cmp.Or(to.Remember(ctx, names(queue, ids[i:i+1], refused)), err)
			}
		}
		switch {
		case err == nil:
			tally.add(job)
		case errors.Is(err, admin.ErrKnown):
			tally.Known++
		case errors.Is(err, lua.ErrInvalid):
			tally.Refused++
			m.refuse(queue, job.ID, err)
			continue
		default:
			return taken, err
		}
		taken, takenIDs = append(taken, job), append(takenIDs, job.ID)
	}
	if len(takenIDs) == 0 {
		return nil, nil
	}
	return taken, to.Remember(ctx, names(queue, takenIDs, moved))
}

// groupsOfLetters returns the groups of the dead letters among records. A letter can only be redriven to a group that
// exists.
func groupsOfLetters(records []admin.Record) (groups []string) {
	for _, r := range records {
		if r.Kind == admin.RecordDead {
			groups = append(groups, r.Group)
		}
	}
	return groups
}

// compare looks at the message that has the ID of a job. ErrKnown: it is the job. ErrInvalid: it is another message, or
// a job with the same ID of another queue that becomes the same queue of duestream.
//
// isStored tells that an interrupted run has begun to move the job, and probably stored it. Then the job may have ended
// in duestream, and need not be there. Without isStored, the job is there only if a run moved it longer than the window
// ago.
func (m *mover) compare(ctx context.Context, queue string, job Job, isStored bool) error {
	name := m.tallies[queue].Queue
	for other, tally := range m.tallies {
		if other == queue || tally.Queue != name || isStored {
			continue
		}
		taken, err := m.imports[queue].Known(ctx, names(other, []string{job.ID}, begun))
		if err != nil {
			return err
		}
		if taken[0] {
			return lua.Invalid("id", job.Entry.ID, "must be new in queue %s, which has got a job with this ID from %s",
				name, other)
		}
	}
	if job.Entry.Kind == admin.RecordRecurrence {
		return m.compareRecurrence(ctx, name, job, isStored)
	}
	places, err := m.cfg.To.Locate(ctx, name, job.Entry.ID)
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		return err
	}
	for _, place := range places {
		if bytes.Equal(place.Payload, job.Entry.Payload) && maps.Equal(place.Headers, job.Entry.Headers) {
			return admin.ErrKnown
		}
	}
	if isStored && len(places) == 0 {
		return admin.ErrKnown
	}
	return lua.Invalid("id", job.Entry.ID, "must be new in queue %s, which has another message with this ID, or had one",
		name)
}

// compareRecurrence is compare for a recurrence. One that was removed has left a plan.
func (m *mover) compareRecurrence(ctx context.Context, name string, job Job, isStored bool) error {
	there, err := m.cfg.To.Recurrence(ctx, name, job.Entry.ID)
	switch {
	case errors.Is(err, bridge.ErrNoRecurrence) && isStored:
		return admin.ErrKnown
	case err != nil && !errors.Is(err, bridge.ErrNoRecurrence):
		return err
	case err == nil && there.Version == lua.SpecVersion(string(job.Entry.Payload)):
		return admin.ErrKnown
	}
	return lua.Invalid("id", job.Entry.ID, "must be new in queue %s, which has another recurrence of this name, or had "+
		"one", name)
}

func names(queue string, ids []string, name func(queue, id string) string) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = name(queue, id)
	}
	return all
}

// add counts a moved job.
func (t *Tally) add(job Job) {
	t.Moved++
	t.States[job.State]++
	for _, name := range job.Unsaid {
		t.Unsaid[name]++
	}
}
