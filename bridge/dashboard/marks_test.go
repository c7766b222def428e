package dashboard

import (
	"errors"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
)

// A page about the whole system must be updated when one of its figures changes: a rate, although both looks saw
// messages move, or the time for which a delivery is held.
func TestTheMarkOfTheSystemHasEachFigure(t *testing.T) {
	t.Parallel()
	at := func(rate float64, held time.Duration) string {
		age := admin.Millis(held)
		one := admin.QueueSample{PerSecond: &admin.QueueRates{In: &rate, Out: &rate}}
		one.Groups = []admin.GroupSample{{OldestHeld: &age}}
		return systemSample{queues: []admin.QueueSample{one}}.mark()
	}
	before := at(5, time.Hour)
	redistest.Want(t, "nothing changed", at(5, time.Hour+time.Second) == before, true)
	redistest.Want(t, "another rate has the same mark", at(9, time.Hour) == before, false)
	redistest.Want(t, "an older delivery has the same mark", at(5, 2*time.Hour) == before, false)
}

// The page of a queue must be updated when the queue becomes unreadable, and while its mean rates change.
func TestTheMarkOfAQueueHasErrorAndRates(t *testing.T) {
	t.Parallel()
	same := []float64{3, 3}
	s := queueState{Series: queueSeries{At: []int64{1, 2}, Span: same, In: same, Out: same, Done: same}}
	before := s.mark()
	failed := s
	failed.Now.Err = errors.New("the key has another type")
	redistest.Want(t, "an error has the same mark", failed.mark() == before, false)
	s.Series.In = []float64{3, 0}
	redistest.Want(t, "another rate has the same mark", s.mark() == before, false)
}

// The ages of what a queue holds differ at each look. They must not keep its page busy.
func TestTheMarkOfAQueueHasNoSeconds(t *testing.T) {
	t.Parallel()
	at := func(age time.Duration) string {
		ms := admin.Millis(age)
		var s queueState
		s.Now.Groups = []admin.GroupSample{{OldestHeld: &ms, Oldest: &ms}}
		s.Now.Groups[0].Waiting, s.Now.Groups[0].Unread = &ms, &ms
		s.Now.Stalled, s.Now.NewestDead = ms, &ms
		s.Findings = []doctor.Finding{{Code: "D1", Queue: "q", Found: age.String()}}
		return s.mark()
	}
	redistest.Want(t, "a second later", at(time.Hour) == at(time.Hour+time.Second), true)
	redistest.Want(t, "a minute later", at(time.Hour) == at(time.Hour+time.Minute), false)
}

// Findings about several keys of one queue must all be shown. The same finding of several queues is shown once, with
// what was found in each.
func TestAdviceLosesNoFinding(t *testing.T) {
	t.Parallel()
	all := adviceOf([]doctor.Finding{
		{Name: "n", Queue: "a", Key: "a1", Found: "3 of a1"}, {Name: "n", Queue: "a", Key: "a2", Found: "4 of a2"},
		{Name: "n", Queue: "b", Key: "b1", Found: "5 of b1"},
	})
	if len(all) != 2 || all[1].Found != "4 of a2" || len(all[0].Others) != 1 || all[0].Others[0] != "b: 5 of b1" {
		t.Errorf("advice: %+v", all)
	}
}

// The page of dead letters must not say that all were read while there are others, and a queue that was not read yet
// must not hide the age of the oldest letter.
func TestDeadLettersOfAnOldReading(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(inspect, "*"))
	now := time.Now()
	read := admin.LetterSummary{Looked: 29, Complete: true, Oldest: now}
	v := q.deadView(deadState{queues: []deadSummary{
		{Queue: "a", Total: 30, LetterSummary: read, At: now}, {Queue: "b", Total: 1},
	}})
	redistest.Want(t, "all were read", v.Complete, false)
	redistest.Want(t, "oldest", v.Oldest, now)
	v = q.deadView(deadState{queues: []deadSummary{{Queue: "a", Total: 29, LetterSummary: read, At: now}}})
	redistest.Want(t, "all of 29 were read", v.Complete, true)
}
