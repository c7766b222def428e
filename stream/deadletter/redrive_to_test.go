package deadletter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A redrive must leave a letter of a deleted group where it is, and name the group in the result. With To the letter
// goes to another group. A dry run must give the same result.
func TestRedriveOfAGroupThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	d := r.deadLetters()
	r.Kill("old", lua.ReasonDeadLetter, "broken", "a", "b")
	r.Kill("new", lua.ReasonDeadLetter, "broken", "c")
	r.Do("XGROUP", "DESTROY", r.Keys.Stream, "old")
	letters := len(r.letters())
	for _, dry := range []bool{true, false} {
		got, err := d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{DryRun: dry})
		redistest.Want(t, fmt.Sprint("dry ", dry), fmt.Sprintf("%+v %v", got, err),
			fmt.Sprintf("%+v %v", RedriveResult{Scheduled: letters - 2, GroupGone: 2, GoneGroups: []string{"old"}}, nil))
	}
	redistest.Want(t, "letters left", len(r.letters()), 2)
	got, err := d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{To: "nobody"})
	redistest.Want(t, "to nobody", fmt.Sprintf("%+v %v", got, err),
		fmt.Sprintf("%+v %v", RedriveResult{GroupGone: 2, GoneGroups: []string{"nobody"}}, nil))
	got, err = d.RedriveMatching(t.Context(), r.Queue, Filter{Group: "old"}, RedriveOptions{To: "new"})
	redistest.Want(t, "to new", fmt.Sprintf("%+v %v", got, err), fmt.Sprintf("%+v %v", RedriveResult{Scheduled: 2}, nil))
	to := map[string]string{}
	for _, e := range r.Next("new") {
		to[e.ID] = e.For
	}
	redistest.Want(t, "groups of the delivered messages", to["a"]+to["b"], "newnew")
	if _, err := d.RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{To: "\x1f"}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("to a group with an invalid name: %v", err)
	}
}

// A letter with unreadable meta is left where it is, and the result must count it. New headers replace the meta.
func TestRedriveOfUnreadableMeta(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Meta, "m", `{"max_attempts":5}`) // unreadable, because the value must be a string
	r.Do("ZADD", r.Keys.Due, "1", "m")
	r.DrainAll()
	for _, dry := range []bool{true, false} {
		got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{DryRun: dry})
		redistest.Want(t, fmt.Sprint("dry ", dry), fmt.Sprintf("%+v %v", got, err),
			fmt.Sprintf("%+v %v", RedriveResult{Unreadable: 1}, nil))
	}
	got, err := r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{}, RedriveOptions{Headers: &map[string]string{}})
	redistest.Want(t, "no headers", fmt.Sprintf("%+v %v", got, err),
		fmt.Sprintf("%+v %v", RedriveResult{Scheduled: 1}, nil))
}
