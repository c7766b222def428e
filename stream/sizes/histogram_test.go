package sizes

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

func (r *rig) dueHistogram(from time.Time, step time.Duration, bars int) Histogram {
	r.T.Helper()
	h, err := DueHistogram(r.T.Context(), r.Client, r.Prefix, r.Queue, from, step, bars)
	if err != nil {
		r.T.Fatal(err)
	}
	return h
}

// schedule adds a member with a due time, or with any other score, to a partition.
func (r *rig) schedule(partition int, score float64, member string) {
	r.T.Helper()
	r.Do("ZADD", lua.NewKeys(r.Prefix, lua.PartitionName(r.Queue, partition)).Due,
		strconv.FormatFloat(score, 'f', -1, 64), member)
}

// Each member of all partitions must be counted once, in the bar in which its due time lies, also at the edges of a
// bar. Members that wait for their keys must be counted apart. DueBetween must list as many members as a bar counts.
func TestEachMemberIsCountedInItsBar(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		from := time.Now().Add(time.Hour).Truncate(time.Minute)
		h := r.dueHistogram(from, time.Minute, 2)
		redistest.Want(t, "empty", fmt.Sprint(h.Bars, h.Overdue, h.Before, h.Later, h.WaitForKey), "[0 0] 0 0 0 0")
		r.grow(3)
		ms := float64(from.UnixMilli())
		for i, score := range []float64{
			math.Inf(-1), 1000, ms - 1, // before; two are overdue
			ms, ms + 59_999, // bar 0
			ms + 59_999.5, ms + 60_000, ms + 100_000, // bar 1: the first is due at its beginning
			ms + 179_999,                           // bar 2
			ms + 180_000, ms + 9_000_000_000, 1e15, // later
			4e15 + 1000, 4e15 + ms, // waiting
		} {
			r.schedule(i%3, score, fmt.Sprint("m-", i))
		}
		h = r.dueHistogram(from.Add(300*time.Microsecond), time.Minute+time.Microsecond, 3)
		redistest.Want(t, "bars", fmt.Sprint(h.Bars, h.Overdue, h.Before, h.Later, h.WaitForKey), "[2 3 1] 2 3 3 2")
		redistest.Want(t, "from", h.From.Equal(from), true)
		if age := time.Since(h.At); age < -time.Minute || age > time.Minute {
			t.Errorf("counted at %s", h.At)
		}
		list := func(from, until time.Time) (ids []string, total int64) {
			p, err := lookup.DueBetween(t.Context(), r.Client, r.Prefix, r.Queue, from, until, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range p.Next {
				ids = append(ids, d.ID)
			}
			return ids, p.Total
		}
		for i, want := range []string{"[m-3 m-4] 2", "[m-5 m-6 m-7] 3", "[m-8] 1"} {
			redistest.Want(t, fmt.Sprint("bar ", i), fmt.Sprint(list(h.Bar(i))), want)
		}
		_, end := h.Bar(2)
		redistest.Want(t, "before", fmt.Sprint(list(time.Time{}, from)), "[m-0 m-1 m-2] 3")
		redistest.Want(t, "later", fmt.Sprint(list(end, time.Time{})), "[m-9 m-10 m-11] 3")
		past := r.dueHistogram(time.UnixMilli(0), time.Second, MaxBars)
		redistest.Want(t, "bars in the past", fmt.Sprint(past.Bars[:3], len(past.Bars), past.Overdue, past.Before),
			"[0 1 0] 200 2 1")
	})
}

// A wrong argument must give an error that names the argument, before Redis is touched.
func TestHistogramRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, one := range []struct {
		queue string
		from  time.Time
		step  time.Duration
		bars  int
		want  string
	}{
		{"no queue", now, time.Second, 1, `queue "no queue": must be 1 to 128 characters of A-Z a-z 0-9 . _ : -`},
		{"q", now, time.Second, 0, `bars "0": must be between 1 and 200`},
		{"q", now, time.Second, 201, `bars "201": must be between 1 and 200`},
		{"q", now, time.Microsecond, 1, `step "1µs": must be between 1ms and 87600h0m0s`},
		{"q", now, lua.MaxDelay + 1, 1, `step "87600h0m0.000000001s": must be between 1ms and 87600h0m0s`},
		{"q", time.Time{}, time.Second, 1, `from "0001-01-01T00:00:00Z": the bars must be within the years 1970 to 9999`},
		{"q", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), lua.MaxDelay, 1,
			`from "9999-01-01T00:00:00Z": the bars must be within the years 1970 to 9999`},
	} {
		_, err := DueHistogram(t.Context(), nil, "duestream", one.queue, one.from, one.step, one.bars)
		if !errors.Is(err, lua.ErrInvalid) {
			t.Fatalf("%v is not ErrInvalid", err)
		}
		redistest.Want(t, "error", err.Error(), one.want)
	}
}
