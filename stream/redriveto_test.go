package stream

import (
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A letter of a group that was ended stays, and its group is named, until it is sent to another one. A dry run says the same.
func TestRedriveOfAGroupThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	d := r.deadLetters()
	r.kill("old", lua.ReasonDeadLetter, "broken", "a", "b")
	r.kill("new", lua.ReasonDeadLetter, "broken", "c")
	r.do("XGROUP", "DESTROY", r.k.Stream, "old")
	letters := len(r.letters())
	for _, dry := range []bool{true, false} {
		got, err := d.RedriveMatching(t.Context(), r.queue, Filter{}, RedriveOptions{DryRun: dry})
		want(t, fmt.Sprint("dry ", dry), fmt.Sprintf("%+v %v", got, err),
			fmt.Sprintf("%+v %v", RedriveResult{Scheduled: letters - 2, GroupGone: 2, GoneGroups: []string{"old"}}, nil))
	}
	want(t, "left", len(r.letters()), 2)
	got, err := d.RedriveMatching(t.Context(), r.queue, Filter{}, RedriveOptions{To: "nobody"})
	want(t, "to nobody", fmt.Sprintf("%+v %v", got, err), fmt.Sprintf("%+v %v", RedriveResult{GroupGone: 2, GoneGroups: []string{"nobody"}}, nil))
	got, err = d.RedriveMatching(t.Context(), r.queue, Filter{Group: "old"}, RedriveOptions{To: "new"})
	want(t, "to new", fmt.Sprintf("%+v %v", got, err), fmt.Sprintf("%+v %v", RedriveResult{Scheduled: 2}, nil))
	to := map[string]string{}
	for _, e := range r.next("new") {
		to[e.ID] = e.For
	}
	want(t, "delivered", to["a"]+to["b"], "newnew")
	if _, err := d.RedriveMatching(t.Context(), r.queue, Filter{}, RedriveOptions{To: "\x1f"}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("to a group that cannot be: %v", err)
	}
}

// What could not be read of a letter is not left behind without a word.
func TestRedriveOfUnreadableMeta(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("HSET", r.k.Meta, "m", `{"max_attempts":5}`)
	r.do("ZADD", r.k.Due, "1", "m")
	r.drainAll()
	for _, dry := range []bool{true, false} {
		got, err := r.deadLetters().RedriveMatching(t.Context(), r.queue, Filter{}, RedriveOptions{DryRun: dry})
		want(t, fmt.Sprint("dry ", dry), fmt.Sprintf("%+v %v", got, err), fmt.Sprintf("%+v %v", RedriveResult{Unreadable: 1}, nil))
	}
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.queue, Filter{}, RedriveOptions{Headers: &map[string]string{}})
	want(t, "without headers", fmt.Sprintf("%+v %v", got, err), fmt.Sprintf("%+v %v", RedriveResult{Scheduled: 1}, nil))
}
