package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/written"
	"github.com/duestream/duestream/lua"
)

// This file changes what a search found: chosen hits, or all that matches.

// loadOfJob is the share of the server's time that the search of a job may use, besides its changes.
const loadOfJob = 0.05

// leastChangeRate is the least number of changes per second, so that a job does not hold its place for ever.
const leastChangeRate = 0.01

// confirmation returns the word that a viewer types before a change that cannot be undone: before each purge, and
// before all that match are cancelled or expire; "" = none.
func (f foundForm) confirmation() string {
	switch kind := f.what.Kind; {
	case kind == admin.ActPurge, f.which == whichAll && (kind == admin.ActCancel || kind == admin.ActExpire):
		return string(kind)
	}
	return ""
}

// Values of the field "which".
const (
	whichChosen = "chosen"
	whichAll    = "all"
)

// foundForm is the form of a change of what was found.
type foundForm struct {
	query query
	which string
	phase string      // all: the meaning of the text of the box
	hits  []admin.Hit // chosen
	what  admin.Action
	rate  float64
	run   bool // make the change; else only count where a count comes first
}

// readFoundForm reads the form of a change or an export.
func (q *request) readFoundForm() (f foundForm, err error) {
	values, err := url.ParseQuery(q.query.Get("query"))
	if err != nil {
		return f, lua.Invalid("query", "", "must be the parameters of a search")
	}
	if f.query, err = q.readQuery(q.ctx, values); err != nil {
		return f, err
	}
	f.which, f.phase, f.run = q.query.Get("which"), q.query.Get("phase"), q.query.Get("run") != ""
	switch f.which {
	case whichAll:
		if !slices.Contains(f.query.phases(), f.phase) {
			return f, lua.Invalid("phase", f.phase, "must be one of %q", f.query.phases())
		}
	case whichChosen:
		if n := len(q.query["hit"]); n == 0 || n > maxShown {
			return f, lua.Invalid("selected messages", strconv.Itoa(n), "must be 1 to %d", maxShown)
		}
		for _, text := range q.query["hit"] {
			h, err := readPlace(text)
			if err != nil {
				return f, err
			}
			if !q.may(access.Inspect, h.Queue) {
				return f, errForbidden
			}
			f.hits = append(f.hits, h)
		}
	default:
		return f, lua.Invalid("which", f.which, "must be %s or %s", whichChosen, whichAll)
	}
	return f, nil
}

// readAction reads the fields of the change.
func (q *request) readAction(f *foundForm) error {
	f.what.Kind = admin.ActionKind(q.query.Get("kind"))
	var errs []error
	add := func(field string, err error) { errs = append(errs, inField(field, err)) }
	var err error
	switch f.what.Kind {
	case admin.ActReschedule:
		f.what.Delay, err = q.formDuration("after")
		errs = append(errs, err)
		if q.query.Get("after") == "" {
			f.what.At, err = q.formTime(q.query, "at", q.query.Get("at"))
			errs = append(errs, err)
			if err == nil && f.what.At.IsZero() {
				add("at", lua.Invalid("at", "", "must be a date and time, unless a delay is given"))
			}
		}
		f.what.Spread, err = q.formDuration("spread")
		errs = append(errs, err)
	case admin.ActRedrive:
		f.what.Delay, err = q.formDuration("delay")
		errs = append(errs, err)
		f.what.Spread, err = q.formDuration("spread")
		errs = append(errs, err)
		if f.what.To = q.query.Get("to"); f.what.To != "" {
			add("to", lua.CheckGroup(f.what.To))
		}
	case admin.ActCancel, admin.ActExpire, admin.ActPurge:
	default:
		add("kind", lua.Invalid("kind", string(f.what.Kind), "must be a change"))
	}
	if text := q.query.Get("rate"); text != "" {
		f.rate, err = strconv.ParseFloat(text, 64)
		if err != nil || f.rate != 0 && !(f.rate >= leastChangeRate) || math.IsInf(f.rate, 0) {
			add("rate", lua.Invalid("rate", text, "must be a number of messages per second, at least %g; empty = no limit",
				leastChangeRate))
		}
	}
	if want := f.confirmation(); f.run && want != "" && q.query.Get("confirm") != want {
		add("confirm", lua.Invalid("confirm", q.query.Get("confirm"), "must be %q", want))
	}
	return errors.Join(errs...)
}

// countsFirst reports whether a change is counted first. All that matches may be more than the page shows, and a purge
// cannot be undone.
func (f foundForm) countsFirst() bool { return f.which == whichAll || f.what.Kind == admin.ActPurge }

// actOnFound starts the job that counts or makes a change.
func actOnFound(q *request) (done, error) {
	f, err := q.readFoundForm()
	if err == nil {
		err = q.readAction(&f)
	}
	if err != nil {
		return done{}, err
	}
	verbs := verbsOf(f.what.Kind)
	spec := jobSpec{kind: string(f.what.Kind), verbs: verbs, rate: f.rate, dryRun: f.countsFirst() && !f.run,
		back: "search?" + f.query.values.Encode(), next: q.nextForm(f)}
	words := actionWords(f.what)
	options := admin.ActOptions{Rate: f.rate, DryRun: spec.dryRun, Load: loadOfJob}
	op := q.op
	label := kindLabel(f.what.Kind)
	if f.which == whichChosen {
		spec.title = label + " " + plural(len(f.hits), "chosen message", "chosen messages")
		spec.about = strings.Join(words, ", ")
		for _, h := range f.hits {
			spec.queues = append(spec.queues, h.Queue)
		}
		slices.Sort(spec.queues)
		spec.queues = slices.Compact(spec.queues)
		spec.run = func(ctx context.Context, report func(jobCounts)) error {
			options.Progress = func(r admin.ActResult) { report(countsOf(r)) }
			_, err := op.ActOn(ctx, f.hits, f.what, options)
			return err
		}
	} else {
		spec.title = label + " all that match"
		spec.about = strings.Join(append([]string{f.query.about(f.phase)}, words...), ", ")
		filter := f.query.filterAs(f.phase)
		var leftOut []string
		filter.Queues, leftOut = q.splitByVerb(filter.Queues, verbs)
		if len(leftOut) > 0 {
			spec.notes = append(spec.notes, fmt.Sprintf("Your token does not allow this change in %s, which %s left out: %s",
				plural(len(leftOut), "queue", "queues"), isOrAre(len(leftOut)), cut(strings.Join(leftOut, ", "), 300)))
		}
		spec.queues = filter.Queues
		spec.run = func(ctx context.Context, report func(jobCounts)) error {
			options.Progress = func(r admin.ActResult) { report(countsOf(r)) }
			_, err := op.Act(ctx, filter, f.what, options)
			return err
		}
	}
	page, err := q.startJob(spec)
	return done{page: page}, err
}

// actionWords returns the fields of a change in words. The page of a job shows the due time by itself.
func actionWords(a admin.Action) (words []string) {
	if a.Delay > 0 {
		words = append(words, "due after "+written.Duration(a.Delay))
	}
	if a.Spread > 0 {
		words = append(words, "spread over "+written.Duration(a.Spread))
	}
	if a.To != "" {
		words = append(words, "to the group "+a.To)
	}
	return words
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// splitByVerb returns the queues in which the viewer may use one of the verbs, and the others.
func (q *request) splitByVerb(queues []string, verbs []access.Verb) (allowed, others []string) {
	for _, queue := range queues {
		if q.mayOneOf(verbs, queue) {
			allowed = append(allowed, queue)
		} else {
			others = append(others, queue)
		}
	}
	return allowed, others
}

func kindLabel(kind admin.ActionKind) string {
	return strings.ToUpper(string(kind[:1])) + string(kind[1:])
}

// nextForm returns the form that makes the change, after its count, or again.
func (q *request) nextForm(f foundForm) *jobNext {
	n := &jobNext{Path: "do-search", Button: kindLabel(f.what.Kind), Rate: q.query.Get("rate"),
		Danger: f.what.Kind == admin.ActCancel || f.what.Kind == admin.ActExpire || f.what.Kind == admin.ActPurge}
	for _, name := range []string{"query", "which", "phase", "kind", "at", "after", "delay", "spread", "to"} {
		value := q.query.Get(name)
		switch {
		case name == "query":
			value = f.query.values.Encode() // with exact times
		case name == "at" && !f.what.At.IsZero():
			value = f.what.At.UTC().Format(time.RFC3339Nano)
		}
		if value != "" {
			n.Fields = append(n.Fields, jobField{name, value})
		}
	}
	if f.which == whichChosen {
		for _, h := range f.hits {
			n.Fields = append(n.Fields, jobField{"hit", foundRow{h}.Place()})
		}
	}
	n.Fields = append(n.Fields, jobField{"run", "1"})
	n.Confirm = f.confirmation()
	return n
}

// countsOf returns the counts of a job from those of a change.
func countsOf(r admin.ActResult) jobCounts {
	return jobCounts{Looked: r.Looked, Total: r.Total, Queue: r.Queue, Found: r.Found, Changed: r.Changed,
		Unchanged: r.Unchanged, Gone: r.Gone, Refused: r.Refused, Unfit: r.Unfit, To: r.To,
		ChangedIn: r.ChangedIn, UnfitIn: r.UnfitIn}
}

// mostListed is the greatest number of queues that the page of a job names.
const mostListed = 12

// queueCount is how many messages of a queue a job has changed.
type queueCount struct {
	Queue string
	N     int64
}

// ByQueue returns the queues with the most changes, the most first.
func (c jobCounts) ByQueue() (list []queueCount) {
	for queue, n := range c.ChangedIn {
		list = append(list, queueCount{queue, n})
	}
	slices.SortFunc(list, func(a, b queueCount) int {
		return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Queue, b.Queue))
	})
	return list[:min(len(list), mostListed)]
}

// MoreQueues returns in how many further queues the job has changed messages.
func (c jobCounts) MoreQueues() int { return max(0, len(c.ChangedIn)-mostListed) }

// UnfitWords tells the states that the change does not apply to: "180 ready, 15 dead".
func (c jobCounts) UnfitWords() string {
	var words []string
	for _, state := range allStates {
		if n := c.UnfitIn[state]; n > 0 {
			words = append(words, number(n)+" "+string(state))
		}
	}
	return strings.Join(words, ", ")
}

// exportFound sends what matches, or the chosen hits, as a file of one JSON object a line. It changes nothing.
func (q *request) exportFound() error {
	giveBack, err := q.takeFormBytes()
	if err != nil {
		return err
	}
	defer giveBack()
	if err := q.readForm(maxActionBytes); err != nil {
		return err
	}
	if err := q.checkQueue(); err != nil {
		return err
	}
	f, err := q.readFoundForm()
	if err != nil {
		return err
	}
	t, err := q.searches.join(q.grant.Name())
	if err != nil {
		return err
	}
	defer q.searches.leave(t)
	ctx, end := context.WithCancel(q.r.Context())
	defer end()
	defer context.AfterFunc(q.stopping, end)()
	if err := q.searches.wait(ctx, t, func(int) {}); err != nil {
		return err
	}
	q.cfg.Access.Audit(q.grant, "dashboard.search-export", "", slog.String("which", f.which))
	h := q.w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Content-Disposition", `attachment; filename="duestream-search.ndjson"`)
	if err := q.exportLines(ctx, end, f); err != nil {
		if !errors.Is(err, context.Canceled) {
			q.log.Error("an export of a search failed", slog.Any("error", err))
		}
		panic(http.ErrAbortHandler) // so that the browser reports an incomplete file
	}
	return nil
}

// exportLines writes the lines of an export. It stops within seconds after the token was revoked.
func (q *request) exportLines(ctx context.Context, end context.CancelFunc, f foundForm) error {
	encoder := json.NewEncoder(newPacedWriter(q.w))
	line := func(h admin.Hit) error { return encoder.Encode(h) }
	filter := f.query.filterAs(f.phase)
	if f.which == whichChosen {
		filter, line = filterOf(f.hits), onlyPlaces(f.hits, line)
	}
	if len(filter.Queues) == 0 {
		return nil
	}
	checked := time.Now()
	o := admin.SearchOptions{Progress: func(admin.SearchProgress) {
		if time.Since(checked) < checkTokenEvery {
			return
		}
		checked = time.Now()
		if q.refusesSearch(filter) {
			end()
		}
	}}
	_, err := q.op.Search(ctx, filter, o, line)
	return err
}

// filterOf returns a filter that the hits pass, as long as they exist.
func filterOf(hits []admin.Hit) (f admin.SearchFilter) {
	for _, h := range hits {
		f.Queues, f.States, f.IDs = append(f.Queues, h.Queue), append(f.States, h.State), append(f.IDs, h.ID)
	}
	slices.Sort(f.Queues)
	slices.Sort(f.States)
	slices.Sort(f.IDs)
	f.Queues, f.States, f.IDs = slices.Compact(f.Queues), slices.Compact(f.States), slices.Compact(f.IDs)
	return f
}

// onlyPlaces returns a function that gives next only those hits that are in one of the places.
func onlyPlaces(places []admin.Hit, next func(admin.Hit) error) func(admin.Hit) error {
	chosen := map[string]bool{}
	for _, h := range places {
		chosen[foundRow{h}.Place()] = true
	}
	return func(h admin.Hit) error {
		if !chosen[foundRow{h}.Place()] {
			return nil
		}
		return next(h)
	}
}
