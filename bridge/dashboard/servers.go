package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
)

// This file holds the page about bridges, workers and Redis servers, and the examination by the doctor.

func serversSection() section {
	return section{
		nav: []navItem{{Path: "servers", Title: "System", Key: "y"}},
		pages: []page{
			{path: "servers", title: "System", template: "servers", show: showServers, live: liveServers},
		},
		actions: []action{
			{path: "do-examine", verbs: []access.Verb{access.Inspect}, allQueues: true, do: startExamination},
			{path: "do-mend", verbs: []access.Verb{access.Operate}, allQueues: true, do: startRepair},
		},
	}
}

// serversView is the data of the page.
type serversView struct {
	Bridges []admin.Heartbeat
	Workers []workerRow
	Masters []admin.Master
	Health  examinationView
	Memory  *memoryView // nil = it was not asked for
	All     bool        // the viewer may inspect all queues, so bridges and servers are shown
}

// workerRow tells about the workers of a group.
type workerRow struct {
	Queue string
	admin.GroupSample
	Place string // ID of the row: a group may have any name
}

func liveServers(q *request) (*live, error) {
	l := q.liveSystem("servers-live", func(s systemSample) (any, error) { return q.servers(s), nil })
	l.pieces = func(view any) []piece { return view.(serversView).pieces() }
	return l, nil
}

// pieces returns the elements of the page that change.
func (v serversView) pieces() (all []piece) {
	if v.All {
		all = append(all, piece{"servers-redis", "servers-redis", v}, piece{"servers-bridges", "servers-bridges", v},
			piece{"servers-doctor", "examination", v})
	}
	for _, row := range v.Workers {
		all = append(all, piece{row.Place, "servers-worker", row})
	}
	return all
}

func showServers(q *request) (any, error) {
	l, err := liveServers(q)
	if err != nil {
		return nil, err
	}
	value, err := q.sample(l)
	if err != nil {
		return nil, fmt.Errorf("read the system: %w", err)
	}
	v := q.servers(value.(systemSample))
	v.Memory = q.queueMemory()
	return v, nil
}

func (q *request) servers(s systemSample) serversView {
	v := serversView{All: q.may(access.Inspect, "")}
	if v.All {
		v.Bridges, v.Masters, v.Health = s.bridges, s.server.Masters(), q.examiner.view()
	}
	for _, one := range s.queues {
		if !q.may(access.Inspect, one.Queue) {
			continue
		}
		for _, g := range one.Groups {
			v.Workers = append(v.Workers, workerRow{one.Queue, g, fmt.Sprint("worker-", len(v.Workers))})
		}
	}
	return v
}

// An examination or a repair that takes longer is stopped.
const (
	examineLimit = 10 * time.Minute
	repairLimit  = 10 * time.Minute
)

// examiner runs one examination at a time, for all viewers, and keeps the last report.
type examiner struct {
	work sync.WaitGroup

	mu      sync.Mutex
	running bool
	step    string // of the running examination or repair
	done    int
	of      int // 0 = unknown
	at      time.Time
	report  *doctor.Report
	repairs []doctor.Repair
	err     error
}

// examinationView is the state of the examiner.
type examinationView struct {
	Running  bool
	Step     string
	Done, Of int
	At       time.Time // end of the last examination
	Report   *doctor.Report
	Findings []doctor.Finding // of the report, the worst first
	Plan     []doctor.Repair  // what a repair would do
	Repairs  []doctor.Repair  // what the last repair did
	Err      error
}

func (e *examiner) view() examinationView {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := examinationView{Running: e.running, Step: e.step, Done: e.done, Of: e.of, At: e.at, Report: e.report,
		Repairs: e.repairs, Err: e.err}
	if e.report != nil {
		v.Plan = e.report.Plan()
		v.Findings = slices.SortedStableFunc(slices.Values(e.report.Findings), func(a, b doctor.Finding) int {
			return cmp.Compare(b.Severity, a.Severity)
		})
	}
	return v
}

// mark returns a text that changes with the view.
func (e *examiner) mark() string {
	v := e.view()
	return fmt.Sprint(v.Running, v.Step, v.Done, v.At, len(v.Repairs))
}

// errExamines: an examination or a repair runs already.
var errExamines = conflict("an examination or a repair is running already. Wait for its end")

// begin starts work in the background. view shows how far the work is, and its end. check, if not nil, may refuse the
// work; it is called with mu held.
func (e *examiner) begin(
	stopping context.Context, limit time.Duration, check func() error, work func(context.Context),
) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case stopping.Err() != nil:
		return errStops
	case e.running:
		return errExamines
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	e.running, e.step, e.done, e.of, e.err, e.repairs = true, "begins", 0, 0, nil, nil
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(stopping, limit)
		defer cancel()
		work(ctx)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running = false
	})
	return nil
}

// progress records how far the work is.
func (e *examiner) progress(step string, done, of int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.step, e.done, e.of = step, done, of
}

// startExamination is the action that examines the servers and all queues.
func startExamination(q *request) (done, error) {
	e, op := q.examiner, q.shared()
	cfg := doctor.Config{Release: q.cfg.Version, Progress: e.progress}
	err := e.begin(q.stopping, examineLimit, nil, func(ctx context.Context) {
		report, err := op.Doctor(ctx, cfg)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.err = err; err == nil {
			e.report, e.at = &report, time.Now()
		}
	})
	return done{notice: "The examination has begun.", page: "servers#doctor"}, err
}

// startRepair is the action that makes the repairs of the report that the viewer has read. It makes none if another
// examination has ended since then.
func startRepair(q *request) (done, error) {
	e := q.examiner
	var report *doctor.Report
	isRead := func() error {
		switch {
		case e.report == nil:
			return conflict("there is no report to repair. Examine the system first")
		case q.query.Get("examined") != versionOfReport(e.at):
			return conflict("the report on your page is not the last one. Read the last report, then repair")
		}
		report = e.report
		return nil
	}
	audit, grant := q.cfg.Access.Audit, q.grant
	err := e.begin(q.stopping, repairLimit, isRead, func(ctx context.Context) {
		plan := len(report.Plan())
		err := report.Mend(ctx, func(r doctor.Repair) {
			audit(grant, "dashboard.repair", r.Queue, slog.String("check", r.Code), slog.String("plan", r.Plan),
				slog.Bool("done", r.Error == ""))
			e.mu.Lock()
			defer e.mu.Unlock()
			e.repairs = append(e.repairs, r)
			e.step, e.done, e.of = "repairs", len(e.repairs), plan
		})
		e.mu.Lock()
		defer e.mu.Unlock()
		e.err, e.report = err, nil // the report tells of the state before the repairs
	})
	return done{notice: "The repair has begun.", page: "servers#doctor"}, err
}

// versionOfReport returns a text that differs for different reports.
func versionOfReport(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// Examined returns a text that differs for different reports.
func (v examinationView) Examined() string { return versionOfReport(v.At) }
