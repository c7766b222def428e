package sizes

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

func (r *rig) forecast(group string, within time.Duration) QueueForecast {
	r.T.Helper()
	f, err := Forecast(r.T.Context(), r.Client, r.Prefix, r.Queue, group, within)
	if err != nil {
		r.T.Fatal(err)
	}
	return f
}

// summary returns the groups of a forecast as text.
func (f QueueForecast) summary() (all []string) {
	for _, g := range f.Groups {
		all = append(all, fmt.Sprintf("%s %d+%d+%d=%d approx:%t missing:%t", g.Name, g.Lag, g.Pending, f.Due, g.Total,
			g.LagApprox, g.Missing))
	}
	return all
}

// A forecast must agree with Stats over all partitions, also of a queue that has grown. It adds what becomes due within
// the time: retries too, and messages that a pause, a rate or a ready limit holds back. Messages that wait for their
// keys must not be in the sum.
func TestForecastAgreesWithStats(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		now := queuetest.Now(t, r.Client)
		ms := func(in time.Duration) float64 { return float64(now.Add(in).UnixMilli()) }
		r.schedule(0, ms(time.Minute), "before the growth")
		r.grow(2)
		for i := range 2 {
			p := r.Part(i)
			p.Fill(10 + i)
			ids := p.Take("a", "c", 5)
			p.Xack("a", ids[1:3]...)
			if _, err := lua.Retry(t.Context(), r.Client, p.Keys, "a", policy.Default().Attempts(), []lua.Failure{
				{Held: lua.Held{Entry: ids[3]}, Action: lua.ActionRetry, Delay: 10 * time.Minute, Error: "e"},
				{Held: lua.Held{Entry: ids[4]}, Action: lua.ActionSnooze, Delay: 20 * time.Minute},
			}); err != nil {
				t.Fatal(err)
			}
			r.schedule(i, ms(-time.Minute), "late")
			r.schedule(i, ms(30*time.Hour), "in 30 hours")
			r.schedule(i, 4e15+ms(-time.Minute), "waits for its key")
		}
		r.Do("HSET", r.Keys.Policy, policy.SettingHeld, "1", policy.SettingRate, "10/s", policy.SettingReadyLimit, "5")
		st := r.stats()
		for within, due := range map[time.Duration]int64{
			0: 2, 5 * time.Minute: 3, 15 * time.Minute: 5, time.Hour: 7, 31 * time.Hour: 9, lua.MaxDelay: 9,
		} {
			f := r.forecast("", within)
			redistest.Want(t, "figures of the queue", fmt.Sprint(f.Queue, f.Partitions, f.Held, f.Flow, f.Overdue,
				f.WaitForKey, f.Entries, time.Duration(f.Within)),
				fmt.Sprint(st.Queue, st.Partitions, st.Held, st.Flow, st.Overdue, st.WaitForKey, st.Entries, within))
			redistest.Want(t, fmt.Sprint("due within ", within), f.Due, due)
			redistest.Want(t, "groups", len(f.Groups), len(st.Groups))
			most := int64(0)
			for i, g := range f.Groups {
				full := st.Groups[i]
				redistest.Want(t, "group", fmt.Sprint(g.Name, g.Lag, g.LagApprox, g.Pending, g.Missing),
					fmt.Sprint(full.Name, full.Lag, full.LagApprox, full.Pending, false))
				redistest.Want(t, "total of "+g.Name, g.Total, full.Lag+full.Pending+due)
				most = max(most, g.Total)
			}
			redistest.Want(t, "total", f.Total, most)
			if age := f.At.Sub(now); age < 0 || age > time.Minute {
				t.Errorf("read at %s, %s after the start", f.At, age)
			}
		}
		all := r.forecast("", time.Hour)
		only := r.forecast("a", time.Hour)
		redistest.Want(t, "only a", fmt.Sprint(only.summary(), only.Total),
			fmt.Sprint(all.summary()[:1], all.Groups[0].Total))
	})
}

// A message that is due exactly at the end of the time must count, and one that is due a millisecond later must not.
func TestForecastCountsToTheMillisecond(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	at, until := time.UnixMilli(2_000_000), time.UnixMilli(3_000_000)
	for i, score := range []float64{2_000_000, 2_000_001, 2_999_999.5, 3_000_000, 3_000_000.5, 3_000_001} {
		r.schedule(0, score, fmt.Sprint("m-", i))
	}
	f := forecaster{c: r.Client, at: at, until: until}
	p, err := f.read(t.Context(), r.Keys)
	redistest.Want(t, "overdue and due", fmt.Sprint(p.overdue, p.due, err), "1 4 <nil>")
}

// Messages of one key must all count until they are due, because only then it is known which of them must wait.
func TestForecastCountsMessagesOfOneKeyUntilTheyAreDue(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	meta := lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: "k"})
	for i := range 3 {
		r.Enqueue(lua.Item{ID: fmt.Sprint("m-", i), When: lua.After(time.Hour), Payload: []byte("x"), Meta: meta})
	}
	f := r.forecast("g", 2*time.Hour)
	redistest.Want(t, "before they are due", fmt.Sprint(f.summary(), f.WaitForKey),
		"[g 0+0+3=3 approx:false missing:false] 0")
	for i := range 3 {
		r.schedule(0, 1, fmt.Sprint("m-", i))
	}
	r.DrainAll()
	f = r.forecast("g", 2*time.Hour)
	redistest.Want(t, "when they are due", fmt.Sprint(f.summary(), f.WaitForKey),
		"[g 1+0+0=1 approx:false missing:false] 2")
}

// For a group that does not exist, or that a partition lacks, and for a queue without groups, all entries must count as
// work, because a worker that starts gets them. Otherwise an autoscaler would never start the first worker.
func TestForecastCountsWhatANewGroupGets(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		f := r.forecast("", time.Minute)
		redistest.Want(t, "nothing", fmt.Sprint(f.Due, f.Entries, f.Total, len(f.Groups), f.Partitions), "0 0 0 0 1")
		r.Groups("g")
		r.grow(2)
		r.Part(0).Fill(3)
		r.Part(1).Fill(4)
		r.schedule(1, float64(queuetest.Now(t, r.Client).Add(time.Second).UnixMilli()), "soon")
		r.Part(0).Take("g", "c", 2)
		r.Do("XGROUP", "DESTROY", r.Part(1).Keys.Stream, "g")
		redistest.Want(t, "a group that a partition lacks", fmt.Sprint(r.forecast("", time.Minute).summary()),
			"[g 5+2+1=8 approx:false missing:false]")
		redistest.Want(t, "a group that does not exist", fmt.Sprint(r.forecast("new", time.Minute).summary()),
			"[new 7+0+1=8 approx:false missing:true]")
		r.Do("XGROUP", "DESTROY", r.Keys.Stream, "g")
		f = r.forecast("", time.Minute)
		redistest.Want(t, "no groups", fmt.Sprint(f.summary(), f.Entries, f.Due, f.Total), "[] 7 1 8")
	})
}

// After ready messages were deleted, the server does not know the lag until the group has read them all. The lag must
// then be counted in a short stream, and be an upper bound in a long one.
func TestForecastCountsALagThatTheServerDoesNotKnow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("done", "g")
		r.Fill(20)
		r.Take("g", "c", 4)
		ids := r.Take("done", "c", 20)
		r.Xack("done", ids...)
		r.Do("XDEL", r.Keys.Stream, ids[6], ids[8])
		redistest.Want(t, "a short stream", fmt.Sprint(r.forecast("g", 0).summary()),
			"[g 14+4+0=18 approx:false missing:false]")
		r.Fill(shortStream)
		f := r.forecast("g", 0)
		redistest.Want(t, "a long stream", fmt.Sprint(f.summary(), f.TotalApprox),
			fmt.Sprintf("[g %d+4+0=%d approx:true missing:false] true", 14+shortStream, 18+shortStream))
	})
}

// The cost of a forecast must not grow with the schedule or the backlog, and a full server must answer it, too.
func TestForecastSendsTheSameCommandsForALongBacklog(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Groups("a", "b")
	r.grow(3)
	m := s.Monitor(t)
	asked := func() string {
		m.Reset()
		r.forecast("", time.Hour)
		return fmt.Sprint(m.Asked())
	}
	const want = "map[HGET:1 HGETALL:3 TIME:1 XINFO:3 XLEN:3 ZCOUNT:9]"
	redistest.Want(t, "commands for an empty queue", asked(), want)
	r.Part(1).Fill(20_000)
	r.Part(1).Take("a", "c", 5000)
	due := strconv.FormatInt(queuetest.Now(t, r.Client).Add(time.Minute).UnixMilli(), 10)
	for first := 0; first < 20_000; first += 1000 {
		words := []string{"ZADD", r.Part(2).Keys.Due}
		for i := range 1000 {
			words = append(words, due, fmt.Sprint("m-", first+i))
		}
		r.Do(words...)
	}
	redistest.Want(t, "commands for a long backlog", asked(), want)
	before := r.forecast("", time.Hour)
	redistest.Want(t, "figures", fmt.Sprint(before.summary()),
		"[a 15000+5000+20000=40000 approx:false missing:false b 20000+0+20000=40000 approx:false missing:false]")
	r.Do("CONFIG", "SET", "maxmemory", "1mb")
	redistest.Want(t, "figures of a full server", fmt.Sprint(r.forecast("", time.Hour).summary()),
		fmt.Sprint(before.summary()))
}

// A wrong argument must give an error that names the argument, before Redis is touched. A key of another type must give
// an error that names the key.
func TestForecastRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		queue, group string
		within       time.Duration
		want         string
	}{
		{"no queue", "g", 0, `queue "no queue": must be 1 to 128 characters of A-Z a-z 0-9 . _ : -`},
		{"q", "\xff", 0, `group "\xff": must be UTF-8`},
		{"q", "", -time.Second, `within "-1s": must be between 0s and 87600h0m0s`},
		{"q", "", lua.MaxDelay + 1, `within "87600h0m0.000000001s": must be between 0s and 87600h0m0s`},
	} {
		_, err := Forecast(t.Context(), nil, "duestream", one.queue, one.group, one.within)
		if !errors.Is(err, lua.ErrInvalid) {
			t.Fatalf("%v is not ErrInvalid", err)
		}
		redistest.Want(t, "error", err.Error(), one.want)
	}
	r := newRig(t, redistest.Shared(t))
	r.Do("SET", r.Keys.Due, "x")
	_, err := Forecast(t.Context(), r.Client, r.Prefix, r.Queue, "", time.Minute)
	redistest.Want(t, "a key of another type", errors.Is(err, lua.ErrWrongType), true)
}
