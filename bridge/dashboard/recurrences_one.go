package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// This file holds the page of a recurrence.

// Bounds of the page.
const (
	nextShown    = 5
	pastShown    = 5
	outcomesTime = 1500 * time.Millisecond // of finding out what became of the last messages
)

// recurrenceView is the data of the page.
type recurrenceView struct {
	recurrenceRow
	Next    []time.Time
	Past    []pastRun
	Payload payloadView
	Page    string // address of this page
	File    string // address of the payload
	Headers map[string]string
}

// Title returns the title of the page.
func (v recurrenceView) Title() string { return "Recurrence " + visible(cut(v.Spec.Name, 60)) }

// pastRun is a past occurrence, or a message that was run by hand, with what became of it.
type pastRun struct {
	ID       string
	At       time.Time
	ByHand   bool
	Planned  bool // the plan names it, so there was a message
	IsOpen   bool // a group has not finished the message
	Outcomes []runOutcome
}

// Blocker returns the last message if it is not finished, so that occurrences after it are left out; nil otherwise.
func (v recurrenceView) Blocker() *pastRun {
	for i, run := range v.Past {
		if run.ID == v.LastID && run.IsOpen {
			return &v.Past[i]
		}
	}
	return nil
}

// runOutcome is the outcome of a message, for one group or for all.
type runOutcome struct{ Text, Class string }

func showRecurrence(q *request) (any, error) {
	queue, name, err := q.named()
	if err != nil {
		return nil, err
	}
	s, payload, err := q.recurrence(queue, name)
	if err != nil {
		return nil, err
	}
	v := recurrenceView{recurrenceRow: recurrenceRow{s}, Next: s.Next, Headers: s.Spec.Headers, Payload: payload,
		Page: recurrenceAddress("recurrence", queue, name), File: recurrenceAddress("recurrence-payload", queue, name)}
	if left := nextShown - len(s.Next); left > 0 && len(s.Next) > 0 && s.Spec.Count == 0 {
		v.Next = append(slices.Clone(s.Next), nextRuns(s.Spec, s.Next[len(s.Next)-1], left)...)
	}
	key := queue + "\x00" + name
	v.Past, err = q.pastOf.get(q.ctx, key, q.changedAt(queue), func() ([]pastRun, error) {
		past := q.readPast(s)
		return past, q.ctx.Err() // a viewer who has left stores no reading for others
	})
	return v, err
}

// recurrence returns a recurrence without its payload, and a view of the payload. A page that waits to be rendered must
// hold little memory, so it does not hold the payload.
func (q *request) recurrence(queue, name string) (s bridge.RecurrenceState, payload payloadView, err error) {
	leave, err := q.takePayload()
	if err != nil {
		return s, payload, err
	}
	defer leave()
	if s, err = q.op.Recurrence(q.ctx, queue, name); err != nil {
		return s, payload, err
	}
	err = q.work(len(s.Spec.Payload), func() { payload = viewPayload(s.Spec.Payload, q.query.Get("view")) })
	s.Spec.Payload = nil
	return s, payload, err
}

// serveRecurrencePayload answers with the payload of a recurrence.
func serveRecurrencePayload(q *request) error {
	defer q.limit()()
	queue, name, err := q.named()
	if err != nil {
		return err
	}
	var s bridge.RecurrenceState
	err = q.readPayloads(func() (err error) {
		s, err = q.op.Recurrence(q.ctx, queue, name)
		return err
	})
	if err != nil {
		return err
	}
	return q.writePayload(s.Spec.Payload, name+".payload")
}

// readPast returns the last messages of a recurrence. Within the time of the page it finds out what became of them.
func (q *request) readPast(s bridge.RecurrenceState) []pastRun {
	ctx, end := context.WithTimeout(q.ctx, outcomesTime)
	defer end()
	runs := lastRuns(ctx, s, time.Now())
	for i := range runs {
		q.addOutcomes(ctx, s.Spec.Queue, &runs[i])
	}
	return runs
}

// lastRuns returns the messages that the plan still names and the occurrences that the spec had, the newest first.
func lastRuns(ctx context.Context, s bridge.RecurrenceState, now time.Time) (runs []pastRun) {
	planned := map[string]bool{}
	for _, id := range s.Past {
		planned[id] = true
		part, byHand := strings.CutSuffix(strings.TrimPrefix(id, s.Spec.Name+"@"), "-run")
		if ms, err := strconv.ParseInt(part, 10, 64); err == nil {
			runs = append(runs, pastRun{ID: id, At: time.UnixMilli(ms), ByHand: byHand, Planned: true})
		}
	}
	passed := s.Used // occurrences that have passed, at most
	if !s.Spec.Paused && len(s.Next) > 0 {
		passed-- // the next one is planned
	}
	for _, at := range pastRuns(ctx, s.Spec, now, min(passed, pastShown)) {
		if id := s.Spec.ID(at); !planned[id] {
			runs = append(runs, pastRun{ID: id, At: at})
		}
	}
	slices.SortStableFunc(runs, func(a, b pastRun) int { return b.At.Compare(a.At) })
	return runs[:min(len(runs), pastShown)]
}

// addOutcomes adds the outcomes of a message, from the places that hold it and from the history of its queue.
func (q *request) addOutcomes(ctx context.Context, queue string, run *pastRun) {
	places, err := q.op.Locate(ctx, queue, run.ID)
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		run.Outcomes = []runOutcome{notFoundOut(err)}
		return
	}
	for _, p := range places {
		run.IsOpen = run.IsOpen || p.State != admin.StateDead
		run.Outcomes = append(run.Outcomes, placeOutcome(p))
	}
	run.Outcomes = q.toldOutcomes(ctx, queue, *run)
}

// toldOutcomes returns the outcomes of a message with those that the history of its queue tells.
func (q *request) toldOutcomes(ctx context.Context, queue string, run pastRun) []runOutcome {
	outcomes := run.Outcomes
	story, err := q.op.Story(ctx, run.ID, admin.StoryOptions{Queues: []string{queue}})
	isTold := err == nil
	switch {
	case isTold:
		outcomes = append(outcomes, endsOf(story)...)
	case !errors.Is(err, admin.ErrNoHistory) && !errors.Is(err, admin.ErrUntold):
		return append(outcomes, notFoundOut(err))
	}
	switch {
	case len(outcomes) > 0 || isTold:
	case run.Planned:
		outcomes = append(outcomes, runOutcome{"gone: every group acknowledged it, or it was cancelled or purged", ""})
	default:
		outcomes = append(outcomes, runOutcome{"no trace: it is gone, or was never planned", ""})
	}
	return outcomes
}

// notFoundOut is the outcome that could not be read.
func notFoundOut(err error) runOutcome {
	if errors.Is(err, context.DeadlineExceeded) {
		return runOutcome{"not looked up: the queue is large. Its page tells", ""}
	}
	return runOutcome{"not known: " + err.Error(), "warn"}
}

// placeOutcome tells the state of a message at a place.
func placeOutcome(p admin.Place) runOutcome {
	group := ""
	if p.Group != "" {
		group = " for " + p.Group
	}
	switch p.State {
	case admin.StateDead:
		return runOutcome{fmt.Sprintf("dead%s: %s", group, p.Reason), "bad"}
	case admin.StateRetrying:
		return runOutcome{fmt.Sprintf("retrying%s, attempt %d", group, p.Attempt), "warn"}
	case admin.StatePending:
		return runOutcome{"being worked on" + strings.Replace(group, " for ", " by ", 1), ""}
	case admin.StateReady:
		return runOutcome{"ready, waits for " + cmp.Or(strings.Join(p.Groups, ", "), "a group"), ""}
	}
	return runOutcome{string(p.State), ""}
}

// endsOf tells from the history which groups have acknowledged a message, and whether it was cancelled. What failed is
// told by the places of the message.
func endsOf(s admin.Story) (outcomes []runOutcome) {
	last := map[string]admin.Change{} // by group; "" for all
	var groups []string
	for _, c := range s.Changes {
		if _, known := last[c.Group]; !known {
			groups = append(groups, c.Group)
		}
		last[c.Group] = c
	}
	for _, group := range groups {
		switch c := last[group]; c.Event {
		case admin.EventAcknowledged:
			outcomes = append(outcomes, runOutcome{fmt.Sprintf("done by %s, at attempt %d", group, max(c.Attempt, 1)), "good"})
		case admin.EventCancelled:
			outcomes = append(outcomes, runOutcome{"cancelled", ""})
		}
	}
	return outcomes
}
