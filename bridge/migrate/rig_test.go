package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// program is a Source in memory.
type program struct {
	jobs    map[string]map[string]Job // by queue and ID
	scanned func()                    // called at the end of each Scan
	changed map[string]int            // by ID: how often Remove finds that the job has changed
}

func newProgram() *program {
	return &program{jobs: map[string]map[string]Job{}, changed: map[string]int{}}
}

func (p *program) Program() string { return "program" }

func (p *program) Target(queue string) (string, error) { return strings.TrimPrefix(queue, "old:"), nil }

func (p *program) Scan(_ context.Context, visit func(queue, id string)) error {
	for _, queue := range slices.Sorted(maps.Keys(p.jobs)) {
		for _, id := range slices.Sorted(maps.Keys(p.jobs[queue])) {
			visit(queue, id)
			visit(queue, id)
		}
	}
	if p.scanned != nil {
		p.scanned()
	}
	return nil
}

func (p *program) Read(_ context.Context, queue string, ids []string) (found []Job, _ error) {
	for _, id := range ids {
		job, there := p.jobs[queue][id]
		if !there {
			job = Job{ID: id, Fate: Gone}
		}
		found = append(found, job)
	}
	return found, nil
}

func (p *program) Remove(_ context.Context, queue string, jobs []Job) (removed []bool, _ error) {
	for _, job := range jobs {
		p.changed[job.ID]--
		gone := p.changed[job.ID] < 0
		if gone {
			delete(p.jobs[queue], job.ID)
		}
		removed = append(removed, gone)
	}
	return removed, nil
}

// add adds a job that is due in an hour.
func (p *program) add(queue, id string, with ...func(*Job)) {
	job := Job{ID: id, State: "scheduled", Entry: admin.Record{Kind: admin.RecordScheduled, ID: id,
		Payload: []byte("payload of " + id), Due: time.Now().Add(time.Hour).UnixMilli()}}
	for _, set := range with {
		set(&job)
	}
	if p.jobs[queue] == nil {
		p.jobs[queue] = map[string]Job{}
	}
	p.jobs[queue][id] = job
}

// rig is a program and a duestream.
type rig struct {
	t     *testing.T
	p     *program
	redis rueidis.Client // of duestream
	op    *admin.Admin
	c     *bridge.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r, err := bridge.Dial(t.Context(), redistest.Own(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &rig{t: t, p: newProgram(), redis: r.Client, op: redistest.Must(admin.New(r, "")),
		c: redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r}))}
}

// move runs Move, and returns its tallies.
func (r *rig) move(with ...func(*Config)) []Tally {
	r.t.Helper()
	cfg := Config{From: r.p, To: r.op, Window: time.Hour}
	for _, set := range with {
		set(&cfg)
	}
	all, err := Move(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func removing(cfg *Config) { cfg.Remove = true }

// brief writes the numbers of a tally in one line.
func brief(all []Tally) string {
	var lines []string
	for _, t := range all {
		lines = append(lines, fmt.Sprintf("%s→%s %v moved %d stayed %d known %d refused %d removed %d",
			t.Source, t.Queue, t.States, t.Moved, t.Stayed, t.Known, t.Refused, t.Removed))
	}
	return strings.Join(lines, "\n")
}

// holds returns the messages and dead letters of a queue of duestream, by ID.
func (r *rig) holds(queue string) map[string]admin.Record {
	r.t.Helper()
	found := map[string]admin.Record{}
	for record, err := range r.op.Export(queue, admin.RecordReady, admin.RecordScheduled, admin.RecordDead).
		Records(r.t.Context()) {
		if err != nil {
			r.t.Fatal(err)
		}
		if _, twice := found[record.ID]; twice {
			r.t.Errorf("%s is there twice", record.ID)
		}
		found[record.ID] = record
	}
	return found
}
