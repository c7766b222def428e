package deadletter

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// To its callers, a queue with partitions must have one list of dead letters, oldest first. The name of a letter says
// its partition: "2/1001-7" is entry 1001-7 of partition 2, and "1000-7" is in partition 0.
func TestDeadLettersOfAllPartitionsAreOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g")
		r.grow(3)
		for n := range 60 {
			r.DeadIn([]int{0, 2, 2, 1, 0, 0}[n%6], 1000+n, fmt.Sprint("m-", n))
		}
		all := r.letters()
		redistest.Want(t, "letters", len(all), 60)
		for n, l := range all {
			redistest.Want(t, "oldest first", l.ID, fmt.Sprint("m-", n))
		}
		redistest.Want(t, "name in partition 0", all[0].Letter, "1000-7")
		redistest.Want(t, "name in partition 2", all[1].Letter, "2/1001-7")
		redistest.Want(t, "name in partition 1", all[3].Letter, "1/1003-7")
		var newest []string
		for l, err := range r.deadLetters().List(t.Context(), r.Queue, Filter{Newest: true, Limit: 3}) {
			newest = append(newest, fmt.Sprint(l.ID, err))
		}
		redistest.Want(t, "newest", fmt.Sprint(newest), "[m-59<nil> m-58<nil> m-57<nil>]")
		n, err := r.deadLetters().Count(t.Context(), r.Queue, Filter{})
		redistest.Want(t, "count", fmt.Sprint(n, err), "60 <nil>")
		n, err = r.deadLetters().Count(t.Context(), r.Queue, Filter{ID: "m-1?"})
		redistest.Want(t, "count of some", fmt.Sprint(n, err), "10 <nil>")

		l, err := r.deadLetters().Show(t.Context(), r.Queue, "2/1001-7")
		redistest.Want(t, "shown", fmt.Sprint(l.ID, " ", l.Letter, " ", err), "m-1 2/1001-7 <nil>")
		for _, name := range []string{"1/1001-7", "1001-7", "9/1-1"} {
			if _, err := r.deadLetters().Show(t.Context(), r.Queue, name); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, name := range []string{"0/1-1", "01/1-1", "256/1-1", "/1-1", "-1/1-1", "1/2/1-1", "1/x"} {
			if _, err := r.deadLetters().Show(t.Context(), r.Queue, name); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := r.deadLetters().Purge(t.Context(), r.Queue, []string{name}); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("purge of %s: %v", name, err)
			}
		}

		got, err := r.deadLetters().Redrive(t.Context(), r.Queue, []string{"1000-7", "2/1001-7", "2/1000-7"}, RedriveOptions{})
		redistest.Want(t, "redriven by name", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 2, Gone: 1}, nil))
		got, err = r.deadLetters().RedriveMatching(t.Context(), r.Queue, Filter{ID: "m-1?"}, RedriveOptions{})
		redistest.Want(t, "redriven by filter", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 10}, nil))
		for i, n := range []int64{1 + 6, 1, 1 + 3} { // m-10 … m-19, each in the partition in which it died
			redistest.Want(t, fmt.Sprint("scheduled in ", i), r.Number("ZCARD", r.Part(i).Keys.Due), n)
		}
		n, err = r.deadLetters().Purge(t.Context(), r.Queue, []string{"1/1003-7", "1004-7", "1/1003-7", "2/1004-7"})
		redistest.Want(t, "purged by name", fmt.Sprint(n, err), "2 <nil>")
		n, err = r.deadLetters().PurgeProgress(t.Context(), r.Queue, Filter{ID: "m-2?"}, func(int) {})
		redistest.Want(t, "purged by filter", fmt.Sprint(n, err), "10 <nil>")
		n, err = r.deadLetters().PurgeProgress(t.Context(), r.Queue, Filter{OlderThan: time.Hour}, func(int) {})
		redistest.Want(t, "purged by age", fmt.Sprint(n, err), "36 <nil>")
		redistest.Want(t, "letters left", len(r.letters()), 0)
	})
}
