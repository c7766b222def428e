package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
)

// This file runs changes that take longer than a request.

// Limits of jobs.
const (
	maxJobs         = 16          // running in this process; hasRoom divides them among tokens
	maxEndedJobs    = 500         // whose results are kept
	maxEndedBytes   = 32 << 20    // of the texts of the results that are kept
	maxJobBytes     = 256 << 10   // of the texts of a job: its page has them, and each viewer gets the page
	keepJobFor      = time.Hour   // after its end
	checkTokenEvery = time.Second // whether the token of a running job is still valid
	tellEvery       = 250 * time.Millisecond
)

// Causes of the end of a job's context.
var (
	errJobStopped = errors.New("somebody stopped the job")
	errJobRefused = errors.New("the token of the job does not allow it any more, or cannot be checked")
)

// jobSpec describes a job.
type jobSpec struct {
	kind   string   // one word for the audit log, such as "cancel"
	title  string   // "Cancel what matches"
	about  string   // the messages in words; "" = none
	queues []string // all queues that the job looks at or changes
	verbs  []access.Verb
	dryRun bool     // the job changes nothing
	rate   float64  // at most so many changes per second; 0 = no limit
	back   string   // the page where the viewer came from
	notes  []string // sentences for the viewer about messages that the job leaves out

	// run does the work, and calls report with the counts so far. When ctx ends, it finishes its running step and
	// returns.
	run func(ctx context.Context, report func(jobCounts)) error

	// next is the form that follows: the change after a dry run, or the repetition of a change that failed or was stopped.
	next *jobNext
}

// jobCounts tell how far a job is.
type jobCounts struct {
	Looked, Total int64  // messages, for the bar
	Queue         string // that is being looked at
	Found         int64
	Changed       int64 // in a dry run: would be changed
	Unchanged     int64 // needed no change
	Gone          int64 // left their state, or did not match any more, before the change
	Refused       int64 // cannot be changed
	Unfit         int64 // are in a state to which the change does not apply
	To            time.Time
	Why           []string // sentences for the viewer, why some were not changed

	ChangedIn map[string]int64      // Changed, by queue; nil = not known
	UnfitIn   map[admin.State]int64 // Unfit, by state; nil = not known
}

// jobNext is a form.
type jobNext struct {
	Path    string // of an action
	Fields  []jobField
	Button  string // "Cancel"
	Rate    string // the default of the field rate
	NoRate  bool   // the change has no rate, and the form no field for it
	Danger  bool   // the change cannot be undone
	Confirm string // a text that the viewer must type into the field confirm; "" = none
}

// jobField is a hidden field of a form.
type jobField struct{ Name, Value string }

// job is a change that runs in this process, or its result.
type job struct {
	jobSpec
	id     string
	owner  string // name of the token
	began  time.Time
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	counts jobCounts
	told   time.Time // when the viewers were last told
	ended  time.Time // zero while it runs
	err    error     // of a job that ended before it was complete
}

// jobs are the jobs of this process.
type jobs struct {
	stopping  context.Context
	changed   func(j *job)       // tells the viewers of a job
	hasChange func(queue string) // tells that pages about a queue are outdated; "" = about any queue
	audit     func(g *access.Grant, action, queue string, attrs ...slog.Attr)
	log       *slog.Logger

	mu      sync.Mutex
	closed  bool
	all     map[string]*job
	running sync.WaitGroup
}

// close waits for the running steps of all jobs, after stopping was cancelled.
func (all *jobs) close() {
	all.mu.Lock()
	all.closed = true
	all.mu.Unlock()
	all.running.Wait()
}

// tooManyJobs: no further job may run now.
type tooManyJobs struct {
	n   int
	who string // "your token" or "this process"
}

func (e tooManyJobs) Error() string {
	return fmt.Sprintf("%s runs %d of at most %d jobs already: wait until one has ended, or stop one", e.who, e.n, maxJobs)
}

// jobElsewhere: this process does not know the job.
type jobElsewhere struct{ back string }

func (jobElsewhere) Error() string {
	return "This job ran in another process, or ended more than an hour ago. Repeat the search to see what is left: " +
		"what was done is not done again."
}

// startJob runs a job in the background, and returns its page. The viewer's token must allow one of the job's verbs on
// each of its queues until the end; the job stops within seconds after the token was revoked.
func (q *request) startJob(spec jobSpec) (page string, err error) {
	if err := q.mayRun(spec); err != nil {
		return "", err
	}
	secret, _, err := q.session(q.r)
	if err != nil {
		return "", err
	}
	spec.back = safeNext(spec.back)
	if size := spec.size(); size > maxJobBytes {
		return "", tooLarge("form", size,
			"must have at most %d bytes of texts: select fewer messages, or shorten the conditions", maxJobBytes)
	}
	j := &job{jobSpec: spec, id: rand.Text(), owner: q.grant.Name(), began: time.Now()}
	ctx, cancel := context.WithCancelCause(q.jobs.stopping)
	j.cancel = cancel
	if err := q.jobs.add(j); err != nil {
		cancel(nil)
		return "", err
	}
	viewer := &request{Dashboard: q.Dashboard, grant: q.grant, known: q.known}
	check := func() error { return viewer.recheck(ctx, secret, spec) }
	q.about(slog.String("job", j.id), slog.String("change", spec.kind))
	go q.jobs.run(ctx, j, q.grant, check)
	return href("job", "job", j.id, "back", spec.back)
}

// mayRun returns errForbidden unless the viewer's token allows a job.
func (q *request) mayRun(spec jobSpec) error {
	if len(spec.queues) == 0 {
		return errForbidden
	}
	for _, queue := range spec.queues {
		if !q.mayOneOf(spec.verbs, queue) {
			return errForbidden
		}
	}
	return nil
}

// recheck returns an error if the secret's token does not allow a job any more. While Redis does not answer, the token
// stays valid for access.Grace, and the job goes on for at most access.Grace more.
func (q *request) recheck(ctx context.Context, secret string, spec jobSpec) error {
	g, err := q.cfg.Access.Authenticate(ctx, secret)
	switch {
	case errors.Is(err, access.ErrRefused):
		return errJobRefused
	case err != nil:
		return q.checkGrace()
	}
	q.grant, q.known = g, time.Now()
	if q.mayRun(spec) != nil {
		return errJobRefused
	}
	return nil
}

// checkGrace returns errJobRefused if it has not been known for access.Grace whether the viewer's token is valid.
func (q *request) checkGrace() error {
	if time.Since(q.known) > access.Grace {
		return errJobRefused
	}
	return nil
}

// add adds a job, if another one may run. The caller starts it.
func (all *jobs) add(j *job) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.forget()
	running, own := 0, 0
	for _, other := range all.all {
		if !other.isRunning() {
			continue
		}
		running++
		if other.owner == j.owner {
			own++
		}
	}
	switch {
	case all.closed:
		return errStops
	case running >= maxJobs:
		return tooManyJobs{running, "this process"}
	case !hasRoom(own, running, maxJobs):
		return tooManyJobs{own, "your token"}
	}
	all.all[j.id] = j
	all.running.Add(1)
	return nil
}

// size returns the bytes of the texts that the viewer sent for the job.
func (s jobSpec) size() int {
	n := len(s.title) + len(s.about) + len(s.back)
	if s.next != nil {
		for _, f := range s.next.Fields {
			n += len(f.Name) + len(f.Value)
		}
	}
	return n
}

// forget removes jobs that ended long ago, and the oldest ones of too many, or of those with too much text. The caller
// holds the lock.
func (all *jobs) forget() {
	var ended []*job
	for id, j := range all.all {
		end := j.end()
		switch {
		case end.IsZero():
		case time.Since(end) > keepJobFor:
			delete(all.all, id)
		default:
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(a, b *job) int { return a.end().Compare(b.end()) })
	size := 0
	for kept, j := range slices.Backward(ended) {
		size += j.size()
		if len(ended)-kept > maxEndedJobs || size > maxEndedBytes {
			delete(all.all, j.id)
		}
	}
}

// run runs a job to its end, and checks its token meanwhile.
func (all *jobs) run(ctx context.Context, j *job, g *access.Grant, check func() error) {
	defer all.running.Done()
	defer j.cancel(nil)
	all.note(j, g, "begin")
	checked, stopChecking := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(checked)
		ticker := time.NewTicker(checkTokenEvery)
		defer ticker.Stop()
		for {
			select {
			case <-stopChecking:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := check(); err != nil {
				j.cancel(err)
			}
		}
	}()
	err := guarded(func() error { return j.run(ctx, func(c jobCounts) { all.report(j, c) }) })
	if broken := (*defect)(nil); errors.As(err, &broken) {
		all.log.Error("a job of the dashboard panicked", slog.String("job", j.id), slog.String("change", j.kind),
			slog.Any("error", err), slog.String("stack", broken.stack))
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	close(stopChecking)
	<-checked
	j.mu.Lock()
	j.ended, j.err = time.Now(), err
	j.jobSpec.run = nil // so that what it refers to can be freed
	j.mu.Unlock()
	if !j.dryRun {
		all.hasChange(oneOf(j.queues))
	}
	all.note(j, g, "end")
	all.changed(j)
}

// oneOf returns the only element of a list of queues; "" = there are several.
func oneOf(queues []string) string {
	if len(queues) != 1 {
		return ""
	}
	return queues[0]
}

// report keeps the counts of a job, and tells its viewers.
func (all *jobs) report(j *job, c jobCounts) {
	j.mu.Lock()
	j.counts = c
	tell := time.Since(j.told) > tellEvery
	if tell {
		j.told = time.Now()
	}
	j.mu.Unlock()
	if tell {
		all.changed(j)
	}
}

// note writes a line of the audit log about the begin or the end of a job.
func (all *jobs) note(j *job, g *access.Grant, moment string) {
	v := j.view()
	attrs := []slog.Attr{
		slog.String("job", j.id), slog.String("change", j.kind), slog.Bool("dry_run", j.dryRun),
		slog.String("queues", cut(strings.Join(j.queues, " "), 500)), slog.String("what", cut(j.what(), 500)),
	}
	if moment == "end" {
		attrs = append(attrs, slog.String("outcome", v.Outcome), slog.Int64("changed", v.Counts.Changed),
			slog.Int64("unchanged", v.Counts.Unchanged), slog.Int64("gone", v.Counts.Gone),
			slog.Int64("refused", v.Counts.Refused), slog.Int64("unfit", v.Counts.Unfit))
	}
	all.audit(g, "dashboard.job-"+moment, oneOf(j.queues), attrs...)
}

// what says in words what the job changes, for the audit log.
func (s jobSpec) what() string {
	if s.about == "" {
		return s.title
	}
	return s.title + ": " + s.about
}

// job returns a job that the viewer may see: a job of the viewer's token, or of queues that the viewer operates. The
// token of a job may have been removed, and another one added under its name. So it must still allow to see the queues.
func (q *request) job() (*job, error) {
	q.jobs.mu.Lock()
	defer q.jobs.mu.Unlock()
	q.jobs.forget()
	j := q.jobs.all[q.query.Get("job")]
	if j == nil {
		return nil, jobElsewhere{q.query.Get("back")}
	}
	if !q.maySeeJob(j) {
		return nil, errForbidden
	}
	return j, nil
}

func (q *request) maySeeJob(j *job) bool {
	verbs := []access.Verb{access.Operate}
	if j.owner == q.grant.Name() {
		verbs = append(verbs, access.Inspect, access.Publish)
	}
	return !slices.ContainsFunc(j.queues, func(queue string) bool { return !q.mayOneOf(verbs, queue) })
}

// jobView returns the state of a job for the viewer. What the job leaves out are queues that only its own token may
// know.
func (q *request) jobView(v jobView) jobView {
	v.Zone = q.zone().String()
	if v.Owner != q.grant.Name() && len(v.Notes) > 0 {
		v.Notes, v.Next = nil, nil
	}
	return v
}

// jobList returns the jobs that the viewer may see, the latest first.
func (q *request) jobList() (list []jobView) {
	q.jobs.mu.Lock()
	defer q.jobs.mu.Unlock()
	q.jobs.forget()
	for _, j := range slices.SortedFunc(maps.Values(q.jobs.all), func(a, b *job) int { return b.began.Compare(a.began) }) {
		if q.maySeeJob(j) {
			list = append(list, q.jobView(j.view()))
		}
	}
	return list
}

func (j *job) end() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended
}

func (j *job) isRunning() bool { return j.end().IsZero() }

// jobView is the state of a job, for its page.
type jobView struct {
	ID, Name, Owner, About string
	Queues, Notes          []string
	DryRun, Running        bool
	Limit                  float64 // changes per second; 0 = none
	Zone                   string  // of the viewer
	Began, Ended           time.Time
	Counts                 jobCounts
	Outcome                string // running, done, stopped, refused, ended or failed
	Problem, Hint          string // of a job that failed
	Page, Back             string
	Next                   *jobNext
}

// view returns the present state.
func (j *job) view() jobView {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := jobView{ID: j.id, Name: j.title, About: j.about, Owner: j.owner, Queues: j.queues, Notes: j.notes,
		DryRun: j.dryRun, Limit: j.rate,
		Running: j.ended.IsZero(), Began: j.began, Ended: j.ended, Counts: j.counts, Back: j.back,
		Next: j.next}
	v.Page, _ = href("job", "job", j.id, "back", j.back) // the number of arguments is even
	switch {
	case v.Running:
		v.Outcome = "running"
	case j.err == nil:
		v.Outcome = "done"
	case errors.Is(j.err, errJobStopped):
		v.Outcome = "stopped"
	case errors.Is(j.err, errJobRefused):
		v.Outcome = "refused"
	case errors.Is(j.err, context.Canceled):
		v.Outcome = "ended"
	default:
		v.Outcome, v.Problem, v.Hint = "failed", j.err.Error(), admin.Hint(j.err)
	}
	return v
}

// Title returns the title of the page.
func (v jobView) Title() string { return v.Name }

// Still reports whether the page does not change any more.
func (v jobView) Still() bool { return !v.Running }

// Took returns how long the job has run.
func (v jobView) Took() time.Duration {
	if v.Running {
		return time.Since(v.Began)
	}
	return v.Ended.Sub(v.Began)
}

// PerSecond returns the mean number of changes per second, but at most the limit. A job makes the changes of its first
// second at once, so at first the mean exceeds the limit.
func (v jobView) PerSecond() *float64 {
	rate := float64(v.Counts.Changed) / max(v.Took().Seconds(), 0.001)
	if v.Limit > 0 {
		rate = min(rate, v.Limit)
	}
	return &rate
}

// ShowNext reports whether to show the form that follows.
func (v jobView) ShowNext() bool {
	switch {
	case v.Next == nil || v.Running:
		return false
	case v.DryRun:
		return v.Outcome == "done" && v.Counts.Changed > 0
	}
	return v.Outcome != "done" && v.Outcome != "refused"
}

func jobsSection() section {
	return section{
		pages: []page{{path: "job", title: "Job", template: "job", show: showJob, live: liveJob}},
		actions: []action{
			{path: "do-stop-job", verbs: verbsOf(admin.ActCancel), manyQueues: true, do: stopJob},
		},
	}
}

func showJob(q *request) (any, error) {
	j, err := q.job()
	if err != nil {
		return nil, err
	}
	return q.jobView(j.view()), nil
}

// liveJob keeps the page of a job up to date. A look reads no Redis.
func liveJob(q *request) (*live, error) {
	j, err := q.job()
	if err != nil {
		return nil, err
	}
	return &live{topic: jobTopic(j), part: "job-live",
		look: func(context.Context) (sample, error) {
			v := j.view()
			return sample{value: v, mark: fmt.Sprint(v.Outcome, v.Counts)}, nil
		},
		data: func(value any) (any, error) { return q.jobView(value.(jobView)), nil },
	}, nil
}

func jobTopic(j *job) string { return "job " + j.id }

func stopJob(q *request) (done, error) {
	j, err := q.job()
	if err != nil {
		return done{}, err
	}
	q.about(slog.String("change", j.kind), slog.String("queues", cut(strings.Join(j.queues, " "), 500)))
	j.cancel(errJobStopped)
	return done{notice: "The job stops after its running step.", page: j.view().Page}, nil
}
