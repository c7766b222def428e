package planner

import (
	"testing"
	"time"

	"github.com/duestream/duestream/scheduler/recurrence"
)

// A recurrence whose plan another planner wrote during the pass has no time of its own yet: the next pass follows at
// once. Pass says so by a short wait, and NextPass must say so as well.
func TestNextPassIsTheEarliestTimeOfAll(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	active := &recurrence.Schedule{}
	paused := &recurrence.Schedule{Spec: recurrence.Spec{Paused: true}}
	in := func(d time.Duration) *item { return &item{schedule: active, idleUntil: now.Add(d)} }
	for name, c := range map[string]struct {
		items []*item
		want  time.Time
	}{
		"nothing":  {},
		"invalid":  {[]*item{{}}, time.Time{}},
		"paused":   {[]*item{{schedule: paused}}, time.Time{}},
		"earliest": {[]*item{in(2 * time.Hour), in(time.Hour), in(3 * time.Hour)}, now.Add(time.Hour)},
		"at once":  {[]*item{in(time.Hour), {schedule: active}}, now},
	} {
		q := &Queue{now: now, items: map[string]*item{}}
		for i, it := range c.items {
			q.items[string(rune('a'+i))] = it
		}
		if got := q.NextPass(); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	q := &Queue{now: now, items: map[string]*item{"a": in(time.Hour)}}
	q.mustReread.Store(true)
	if got := q.NextPass(); !got.Equal(now) {
		t.Errorf("after a change: %s", got)
	}
}
