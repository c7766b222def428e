package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// crowd fills three partitions with letters of which many have the same ID, so that only the partition orders them.
func crowd(r *rig) {
	r.grow(3)
	for i := range 60 {
		r.DeadIn(i%3, 1_700_000_000_000+i/3, fmt.Sprint("m", i))
	}
}

func (r *rig) pages(f Filter, most time.Duration) (names []string, pages int) {
	r.T.Helper()
	for {
		p, err := r.deadLetters().Page(r.T.Context(), r.Queue, f, most)
		if err != nil {
			r.T.Fatal(err)
		}
		pages++
		for _, line := range p.Lines {
			names = append(names, line.Letter.Letter)
		}
		if p.Next == "" {
			return names, pages
		}
		f.After = p.Next
	}
}

// The pages must give what List gives, each letter once, in both orders, whatever bounds a page.
func TestPagesGiveEachLetterOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		crowd(r)
		for _, f := range []Filter{{}, {Newest: true}, {Newest: true, ID: "m*1"}, {OlderThan: time.Hour, Newest: true}} {
			var want []string
			for l, err := range r.deadLetters().List(t.Context(), r.Queue, f) {
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, l.Letter)
			}
			for limit := range 8 {
				f.Limit = limit
				got, _ := r.pages(f, time.Hour)
				redistest.Want(t, fmt.Sprintf("%+v", f), strings.Join(got, " "), strings.Join(want, " "))
			}
			f.Limit = 7
			got, _ := r.pages(f, 0)
			redistest.Want(t, fmt.Sprintf("%+v without time", f), strings.Join(got, " "), strings.Join(want, " "))
		}
	})
}

// A page and a step of a survey whose time is up must read some letters, and no more.
func TestReadingWithoutTimeIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 250 {
		r.DeadIn(0, 1_700_000_000_000+i, fmt.Sprint("m", i))
	}
	got, pages := r.pages(Filter{Newest: true, ID: "nothing"}, 0)
	redistest.Want(t, "found", len(got), 0)
	redistest.Want(t, "pages", pages, 3)
	survey := r.deadLetters().Survey(r.Queue, Filter{})
	for _, want := range []int{100, 200, 250} {
		if err := survey.Read(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "looked", survey.Summary().Looked, want)
	}
	redistest.Want(t, "complete", survey.Summary().Complete, true)
	for i := range 3 {
		r.Do("XADD", r.Keys.Dead, "*", "id", fmt.Sprint("large", i), "payload", strings.Repeat("x", leastBytes))
	}
	p, err := r.deadLetters().Page(t.Context(), r.Queue, Filter{Newest: true}, 0)
	if err != nil || len(p.Lines) != 1 {
		t.Errorf("a page of large letters has %d, %v", len(p.Lines), err)
	}
}

// Letters that come or go between two pages must not shift the pages.
func TestPagesStayWhileLettersComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a", "b", "c", "d")
	f := Filter{Newest: true, Limit: 2}
	first, err := r.deadLetters().Page(t.Context(), r.Queue, f, time.Hour)
	if err != nil || len(first.Lines) != 2 {
		t.Fatal(first, err)
	}
	r.Kill("g", lua.ReasonDeadLetter, "broken", "e")
	if _, err := r.deadLetters().Purge(t.Context(), r.Queue, []string{first.Next}); err != nil {
		t.Fatal(err)
	}
	f.After = first.Next
	second, err := r.deadLetters().Page(t.Context(), r.Queue, f, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "second page", second.Lines[0].ID+second.Lines[1].ID, "ba")
	redistest.Want(t, "after it", second.Next, "")
}

// With UpTo, a listing, a redrive and a purge must leave the letters that are newer, in every partition.
func TestUpToLeavesNewerLetters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		crowd(r)
		all := r.letters()
		f := Filter{UpTo: all[29].Letter} // the last letter with its ID
		n, err := r.deadLetters().Count(t.Context(), r.Queue, f)
		if err != nil || n != 30 {
			t.Errorf("counted %d, %v", n, err)
		}
		f.ID = "m1*"
		purged, err := r.deadLetters().PurgeProgress(t.Context(), r.Queue, f, func(int) {})
		if err != nil || purged != 11 {
			t.Errorf("purged %d by ID, %v", purged, err)
		}
		f.ID = ""
		if purged, err = r.deadLetters().PurgeProgress(t.Context(), r.Queue, f, func(int) {}); err != nil || purged != 19 {
			t.Errorf("purged %d by age, %v", purged, err)
		}
		var left []string
		for _, l := range r.letters() {
			left = append(left, l.ID)
		}
		for _, l := range all[30:] {
			if !slices.Contains(left, l.ID) {
				t.Errorf("%s was purged", l.ID)
			}
		}
		redistest.Want(t, "left", len(left), 30)
	})
}

// A line must hold the size of its payload, and no more than the beginning of it.
func TestPageCutsPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("XADD", r.Keys.Dead, "*", "id", "large", "reason", "expired", "payload", strings.Repeat("x", 1<<20))
	p, err := r.deadLetters().Page(t.Context(), r.Queue, Filter{}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "size", p.Lines[0].PayloadBytes, 1<<20)
	redistest.Want(t, "kept", len(p.Lines[0].Payload), lineBytes)
}

// After and UpTo must be names of letters.
func TestPageRefusesAWrongName(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for _, after := range []string{"x", "0-0", "0", "1/", "300/1-1", "-"} {
		for _, f := range []Filter{{After: after}, {UpTo: after}} {
			if _, err := r.deadLetters().Page(t.Context(), r.Queue, f, 0); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("%+v: %v", f, err)
			}
		}
	}
}

// A survey must count what Summarize counts, in whatever steps it reads, and each group must select its letters.
func TestSurveyCountsLikeSummarize(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		crowd(r)
		r.Kill("mail", lua.ReasonMaxAttempts, "order-42: no such user", "a", "b")
		r.Kill("mail", lua.ReasonMaxAttempts, "order-43: no such user", "c")
		r.Kill("sms", lua.ReasonMaxAttempts, "", "d")
		r.Do("XADD", r.Keys.Dead, "*", "id", "e", "reason", "max_attempts")
		all, err := r.deadLetters().Summarize(t.Context(), r.Queue, Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []time.Duration{0, time.Hour} {
			survey := r.deadLetters().Survey(r.Queue, Filter{})
			for !survey.Summary().Complete {
				if err := survey.Read(t.Context(), step); err != nil {
					t.Fatal(err)
				}
			}
			got := survey.Summary()
			redistest.Want(t, "letters", got.Letters, 65)
			redistest.Want(t, "total", got.Total, 65)
			for i := range got.Groups {
				got.Groups[i].Hourly = nil
			}
			redistest.Want(t, "groups", fmt.Sprint(got.Groups), fmt.Sprint(all))
		}
		for _, g := range all {
			f, ok := g.Filter()
			n, err := r.deadLetters().Count(t.Context(), r.Queue, f)
			if err != nil || !ok || n != g.Count {
				t.Errorf("%+v selects %d of its letters, %v", g, n, err)
			}
		}
	})
}

// The trend must end at the present, or at the newest letter if that died long ago.
func TestSurveyCountsByTheHour(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const hour = 3_600_000
	const newest = 1_700_000_000_000
	for i, ago := range []int{25 * hour, 24*hour - 1, 90 * 60_000, hour, hour - 1, 0} {
		r.DeadIn(0, newest-ago, fmt.Sprint(i))
	}
	survey := r.deadLetters().Survey(r.Queue, Filter{})
	if err := survey.Read(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	got := survey.Summary()
	redistest.Want(t, "end", got.TrendEnd.UnixMilli(), int64(newest))
	want := make([]int, TrendHours)
	want[0], want[22], want[23] = 1, 2, 2
	redistest.Want(t, "trend", fmt.Sprint(got.Groups[0].Hourly), fmt.Sprint(want))

	r.Kill("g", lua.ReasonDeadLetter, "", "now")
	survey = r.deadLetters().Survey(r.Queue, Filter{})
	if err := survey.Read(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	got = survey.Summary()
	at := slices.IndexFunc(got.Groups, func(g LetterGroup) bool { return g.Hourly[TrendHours-1] == 1 })
	if at < 0 || time.Since(got.TrendEnd) > time.Minute {
		t.Errorf("the trend does not reach the present: %+v", got)
	}
}

// The filter of a group without a reason must not select the letters of other reasons.
func TestAGroupWithoutReasonIsAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	without, with := Letter{Group: "g", Error: "boom"}, Letter{Group: "g", Error: "boom", Reason: "max_attempts"}
	f := without.Like()
	redistest.Want(t, "the letter without a reason", f.matches(without), true)
	redistest.Want(t, "the letter with a reason", f.matches(with), false)
	redistest.Want(t, "the filter of the letter with a reason", with.Like().matches(without), false)
}
