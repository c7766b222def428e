package deadletter

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// List must return the letters that match all conditions of a filter, and Count must return their number.
func TestDeadLettersAreListedByFilter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Kill("mail", lua.ReasonDeadLetter, "no such user: 7", "order-1", "order-2", "invoice/1")
		r.Kill("sms", lua.ReasonMaxAttempts, "timeout", "order-3", "what?*")
		now, err := view.ServerTime(t.Context(), r.Client)
		if err != nil {
			t.Fatal(err)
		}
		// OlderThan and NewerThan go by the entry ID, not by dead_ms. The entry ID of this letter is an hour ahead.
		future := fmt.Sprint(now.Add(time.Hour).UnixMilli(), "-0")
		r.Do("XADD", r.Keys.Dead, future, "id", "late", "reason", "expired", "dead_ms", "1")

		list := func(f Filter) string {
			t.Helper()
			var ids []string
			for l, err := range r.deadLetters().List(t.Context(), r.Queue, f) {
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, l.ID)
			}
			n, err := r.deadLetters().Count(t.Context(), r.Queue, f)
			if err != nil || n != len(ids) {
				t.Errorf("%+v: counted %d, %v", f, n, err)
			}
			return strings.Join(ids, " ")
		}
		for _, c := range []struct {
			f    Filter
			want string
		}{
			{Filter{}, "order-1 order-2 invoice/1 order-3 what?* late"},
			{Filter{Newest: true, Limit: 2}, "late what?*"},
			{Filter{Group: "sms"}, "order-3 what?*"},
			{Filter{Group: "sm"}, ""},
			{Filter{Reason: lua.ReasonExpired}, "late"},
			{Filter{ErrorText: "such user"}, "order-1 order-2 invoice/1"},
			{Filter{ID: "order-*", Limit: 2}, "order-1 order-2"},
			{Filter{ID: "*/?"}, "invoice/1"},
			{Filter{ID: "order-1"}, "order-1"},
			{Filter{ID: "order."}, ""},
			{Filter{OlderThan: time.Nanosecond}, "order-1 order-2 invoice/1 order-3 what?*"},
			{Filter{OlderThan: time.Hour}, ""},
			{Filter{NewerThan: time.Hour, Group: "mail", ID: "o*"}, "order-1 order-2"},
		} {
			redistest.Want(t, fmt.Sprintf("%+v", c.f), list(c.f), c.want)
		}
	})
}

func TestDeadLetterIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a", "b")
	all := r.letters()
	l, err := r.deadLetters().Show(t.Context(), r.Queue, all[1].Letter)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "id", l.ID, "b")
	redistest.Want(t, "payload", string(l.Payload), "payload of b")
	redistest.Want(t, "error", l.Error, "broken")
	redistest.Want(t, "group", l.Group, "g")

	if _, err := r.deadLetters().Show(t.Context(), r.Queue, "1-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown letter: %v", err)
	}
	if _, err := r.deadLetters().Show(t.Context(), r.Queue, "b"); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("a message ID in place of a letter's entry ID: %v", err)
	}
	var found []Letter
	for l, err := range r.deadLetters().List(t.Context(), r.Queue, Filter{ID: "b"}) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, l)
	}
	if len(found) != 1 || found[0].Letter != l.Letter {
		t.Errorf("by ID: %+v", found)
	}
	for _, err := range r.deadLetters().List(t.Context(), "a/b", Filter{Limit: -1, OlderThan: -1}) {
		for _, part := range []string{"queue", "limit", "older than"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
	}
}

// A listing ends with the last letter that existed at its start. Otherwise it might never end while messages die.
func TestListDoesNotSeeLettersAddedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint("d-", i))
	}
	r.Kill("g", lua.ReasonDeadLetter, "broken", ids...)
	n := 0
	for _, err := range r.deadLetters().List(t.Context(), r.Queue, Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n <= 50 {
			r.Do("XADD", r.Keys.Dead, "*", "id", "new")
		}
	}
	redistest.Want(t, "seen", n, 100)
}

// Errors that differ only in numbers and addresses, or after the first line, must count as one error.
func TestLettersAreCountedByGroupReasonAndError(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("mail", lua.ReasonDeadLetter, "timeout after 30 s at 10.0.0.1:25\ngoroutine 7", "a", "b")
	r.Kill("mail", lua.ReasonDeadLetter, "timeout after 5 s at 10.0.0.22:25", "c")
	r.Kill("sms", lua.ReasonDeadLetter, "no such user", "d")
	all, err := r.deadLetters().Summarize(t.Context(), r.Queue, Filter{})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	redistest.Want(t, "error", all[0].Error, "timeout after # at #")
	redistest.Want(t, "groups", fmt.Sprint(all[0].Group, all[0].Count, all[1].Group, all[1].Count, all[1].Reason),
		"mail3sms1dead_letter")
	letters := r.letters()
	redistest.Want(t, "oldest", all[0].Oldest, letters[0].Dead)
	redistest.Want(t, "newest", all[0].Newest, letters[2].Dead)

	// 100 letters with 50 different errors, two of each. Only the first 10 errors get a row of their own: the other 80
	// letters share one.
	many := func(yield func(Letter, error) bool) {
		for i := range 100 {
			if !yield(Letter{Reason: "r", Error: strings.Repeat("x", i%50)}, nil) {
				return
			}
		}
	}
	all, err = summarize(many, 10)
	redistest.Want(t, "rows", fmt.Sprint(len(all), err), "11 <nil>")
	redistest.Want(t, "letters with other errors", fmt.Sprint(all[0].Error, all[0].Count), "(other errors)80")
}

// A page must shrink when the letters become large, so that one reply stays small.
func TestLargeLettersAreReadInSmallPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 40 {
		size := 100
		if i >= 20 {
			size = 500_000
		}
		r.Do("XADD", r.Keys.Dead, "*", "id", fmt.Sprint(i), "payload", strings.Repeat("x", size))
	}
	p := view.NewPager()
	p.Seen(8, 100)
	redistest.Want(t, "a page at most doubles", p.Count, 16)
	p.Seen(16, 16*500_000)
	redistest.Want(t, "then shrinks", p.Count, 1)
	redistest.Want(t, "all are read", len(r.letters()), 40)
}
