package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/lua"
)

// This file holds the page that lists recurrences, and the changes of one.

func recurrencesSection() section {
	operate := []access.Verb{access.Operate}
	return section{
		nav: []navItem{{Path: "recurrences", Title: "Recurrences", Key: "r"}},
		pages: []page{
			{path: "recurrences", title: "Recurrences", template: "recurrences", show: showRecurrences},
			{path: "recurrence", title: "Recurrence", template: "recurrences_one", show: showRecurrence},
			{path: "recurrence-edit", title: "Recurrence", template: "recurrences_edit", show: showRecurrenceForm},
		},
		routes: []route{{http.MethodGet, "recurrence-payload", serveRecurrencePayload}},
		actions: []action{
			{path: "do-recurrence-pause", verbs: operate, do: pauseRecurrence},
			{path: "do-recurrence-resume", verbs: operate, do: resumeRecurrence},
			{path: "do-recurrence-run", verbs: operate, do: runRecurrence},
			{path: "do-recurrence-remove", verbs: operate, form: "recurrence", do: removeRecurrence},
			{path: "do-recurrence-save", verbs: operate, form: "recurrence-edit", payload: true, do: saveRecurrence},
		},
	}
}

// shownRecurrences is the greatest number of rows of the page.
const shownRecurrences = 500

// recurrencesView is the data of the page that lists recurrences.
type recurrencesView struct {
	Queue    string // "" = all queues
	Filter   string // a part of the name, the queue or the owner
	Rows     []recurrenceRow
	More     int // rows that are not shown
	Hidden   int // recurrences that the filter hides
	MayAdd   bool
	Problems int // rows with a problem
	Unread   []unreadQueue
}

// recurrenceRow is a recurrence for the pages.
type recurrenceRow struct{ bridge.RecurrenceState }

// Words says when the recurrence recurs: in words, or as it was written.
func (r recurrenceRow) Words() string { return cmp.Or(r.Spec.Words(), r.Spec.Cron) }

// State says in a word whether the recurrence runs.
func (r recurrenceRow) State() string {
	switch {
	case r.Problem != "":
		return "wrong"
	case r.Spec.Paused:
		return "paused"
	case !r.Unplanned.IsZero():
		return "not planned"
	case len(r.Next) == 0:
		return "ended"
	}
	return "active"
}

// mostPassed limits the occurrences that Passed counts.
const mostPassed = 100

// Passed returns the occurrences since the last message, the oldest first, at most mostPassed. They got no message,
// because that message was not finished, or because the recurrence was paused. It is only for recurrences with the
// overlap policy skip. Other recurrences miss occurrences for reasons that State returns.
func (r recurrenceRow) Passed() (passed []time.Time) {
	if r.State() != "active" || r.Spec.Overlap != bridge.OverlapSkip || r.Last.IsZero() {
		return nil
	}
	schedule, err := r.Spec.Compile()
	if err != nil {
		return nil
	}
	for at := r.Last; len(passed) < mostPassed; {
		next, ok := schedule.Next(at)
		if !ok || !next.Before(r.Next[0]) {
			break
		}
		passed, at = append(passed, next), next
	}
	return passed
}

// PassedMore reports whether Passed has left some out.
func (r recurrenceRow) PassedMore() bool { return len(r.Passed()) == mostPassed }

// Address returns the address of a page about the recurrence.
func (r recurrenceRow) Address(page string) string {
	return recurrenceAddress(page, r.Spec.Queue, r.Spec.Name)
}

func recurrenceAddress(page, queue, name string) string {
	return page + "?" + url.Values{"queue": {queue}, "name": {name}}.Encode()
}

// recurrencesOf returns the recurrences of queues, without their payloads. Viewers share what was read.
func (q *request) recurrencesOf(queues []string) ([]recurrenceRow, []unreadQueue, error) {
	return readQueues(q, &q.recurring, queues, func(queue string) (rows []recurrenceRow, err error) {
		states, err := q.op.Recurrences(q.ctx, queue)
		for _, s := range states {
			s.Spec.Payload = nil
			rows = append(rows, recurrenceRow{s})
		}
		return rows, err
	})
}

func showRecurrences(q *request) (any, error) {
	v := recurrencesView{Queue: q.queue(), Filter: q.query.Get("filter")}
	queues := []string{v.Queue}
	if v.Queue == "" {
		var err error
		if queues, err = q.queues(); err != nil {
			return nil, err
		}
		v.MayAdd = slices.ContainsFunc(queues, func(queue string) bool { return q.may(access.Operate, queue) })
	} else if err := q.op.CheckKnown(q.ctx, v.Queue); err != nil {
		return nil, err
	}
	v.MayAdd = v.MayAdd || q.may(access.Operate, v.Queue) // also while there is no queue yet
	rows, unread, err := q.recurrencesOf(queues)
	if err != nil {
		return nil, err
	}
	v.Unread = unread
	for _, r := range rows {
		text := strings.ToLower(r.Spec.Name + "\n" + r.Spec.Queue + "\n" + r.Spec.Owner)
		if !strings.Contains(text, strings.ToLower(v.Filter)) {
			v.Hidden++
			continue
		}
		if r.State() == "wrong" || r.State() == "not planned" {
			v.Problems++
		}
		v.Rows = append(v.Rows, r)
	}
	slices.SortStableFunc(v.Rows, func(a, b recurrenceRow) int {
		return cmp.Or(a.firstNext().Compare(b.firstNext()), cmp.Compare(a.Spec.Queue, b.Spec.Queue),
			cmp.Compare(a.Spec.Name, b.Spec.Name))
	})
	if len(v.Rows) > shownRecurrences {
		v.Rows, v.More = v.Rows[:shownRecurrences], len(v.Rows)-shownRecurrences
	}
	return v, nil
}

// firstNext returns the next occurrence, for the order of the page: problems come first, and what does not run last.
func (r recurrenceRow) firstNext() time.Time {
	switch r.State() {
	case "wrong", "not planned":
		return time.Time{}
	case "active":
		return r.Next[0]
	}
	return time.Unix(1<<40, 0)
}

// named returns the queue and the name of the recurrence that the form or the address names.
func (q *request) named() (queue, name string, err error) {
	queue, name = q.queue(), q.query.Get("name")
	if err := lua.CheckQueue(queue); err != nil {
		return "", "", err
	}
	return queue, name, lua.CheckRecurrence(name)
}

func pauseRecurrence(q *request) (done, error) { return q.holdRecurrence(true) }

func resumeRecurrence(q *request) (done, error) { return q.holdRecurrence(false) }

func (q *request) holdRecurrence(paused bool) (done, error) {
	queue, name, err := q.named()
	if err != nil {
		return done{}, err
	}
	changed, err := q.op.PauseRecurrence(q.ctx, queue, name, paused)
	if err != nil {
		return done{}, err
	}
	notice := "%s is resumed from now on. Occurrences during the pause are not made up for."
	switch {
	case !changed:
		notice = "%s was already in this state. Nothing was changed."
	case paused:
		notice = "%s is paused. Its planned messages were cancelled."
	}
	return done{notice: fmt.Sprintf(notice, name), page: recurrenceAddress("recurrence", queue, name)}, nil
}

func runRecurrence(q *request) (done, error) {
	queue, name, err := q.named()
	if err != nil {
		return done{}, err
	}
	receipt, err := q.op.RunRecurrence(q.ctx, queue, name)
	if err != nil {
		return done{}, err
	}
	return done{notice: fmt.Sprintf("The message %s was scheduled for now.", receipt.ID),
		page: recurrenceAddress("recurrence", queue, name)}, nil
}

func removeRecurrence(q *request) (done, error) {
	queue, name, err := q.named()
	if err != nil {
		return done{}, err
	}
	if err := q.confirmed(name); err != nil && q.confirmed(visible(name)) != nil {
		return done{}, err
	}
	cancelled, err := q.op.RemoveRecurrence(q.ctx, queue, name)
	if err != nil {
		return done{}, err
	}
	return done{notice: fmt.Sprintf("%s was removed. %s.", name,
		plural(cancelled, "planned message was cancelled", "planned messages were cancelled")),
		page: "recurrences?queue=" + url.QueryEscape(queue)}, nil
}

// nextRuns returns the next n occurrences after a time, in the zone of the spec.
func nextRuns(spec bridge.Recurrence, after time.Time, n int) (next []time.Time) {
	schedule, err := spec.Compile()
	if err != nil {
		return nil
	}
	for len(next) < n {
		at, ok := schedule.Next(after)
		if !ok {
			break
		}
		next, after = append(next, at), at
	}
	return next
}

// pastRuns returns the last n occurrences that the spec had until a time, the newest first. Whether a message was
// planned for each, only the queue tells.
func pastRuns(ctx context.Context, spec bridge.Recurrence, until time.Time, n int) (past []time.Time) {
	schedule, err := spec.Compile()
	if err != nil {
		return nil
	}
	const farthest = 400 * 24 * time.Hour
	for from := until.Add(-farthest); len(past) < n && ctx.Err() == nil; {
		at, ok := schedule.LastUntil(from, until)
		if !ok {
			break
		}
		past, until = append(past, at), at.Add(-time.Millisecond)
	}
	return past
}
