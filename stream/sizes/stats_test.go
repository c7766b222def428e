package sizes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/keeper"
)

func (r *rig) stats() QueueStats {
	r.T.Helper()
	s, err := Stats(r.T.Context(), r.Client, r.Prefix, r.Queue)
	if err != nil {
		r.T.Fatal(err)
	}
	return s
}

// A queue may have no keys at all, for example before its first message. Its stats must be zero, not an error, with the
// default policy.
func TestStatsOfAQueueThatDoesNotExistAreZero(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		text, err := json.Marshal(r.stats())
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "json", string(text),
			`{"queue":"`+r.Queue+`","partitions":1,"held":false,"scheduled":0,"overdue":0,"stalled_ms":0,`+
				`"ready":0,"entries":0,"dead":0,"oldest_overdue_ms":0,"dedup_windows":0,"groups":[],`+
				`"policy":{"visibility_ms":30000,"max_attempts":40,"retry_min_ms":1000,"retry_max_ms":3600000,`+
				`"held":false,"history":0,"history_ms":86400000}}`)
	})
}

// The stats of a queue with messages in all states and three groups must have the right figure in each field.
func TestStatsCountEverything(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Kill("one", lua.ReasonDeadLetter, "broken", "d-1", "d-2", "d-3")
		r.Kill("two", lua.ReasonDeadLetter, "broken", "d-4")
		r.Xack("one", r.Take("one", "c", 10)...)
		r.Xack("two", r.Take("two", "c", 10)...)
		r.Policy(map[string]string{"group:two:max_attempts": "3"})
		r.Groups("three")
		r.Xack("three", r.Take("three", "c", 100)...)
		if _, err := keeper.NewTrimmer(r.Client, r.Prefix, r.Queue).Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Fill(20)
		ids := r.Take("one", "worker", 5)
		var fail []lua.Failure
		for _, id := range ids[3:] {
			fail = append(fail, lua.Failure{Held: lua.Held{Entry: id}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"})
		}
		if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "one", policy.Default().Attempts(), fail); err != nil {
			t.Fatal(err)
		}
		now, err := view.ServerTime(t.Context(), r.Client)
		if err != nil {
			t.Fatal(err)
		}
		soon := now.Add(time.Minute).Truncate(time.Millisecond)
		r.Do("ZADD", r.Keys.Due, fmt.Sprint(soon.UnixMilli()), "soon", fmt.Sprint(now.Add(-20*time.Second).UnixMilli()), "late")
		r.Do("ZADD", r.Keys.Turns, "0", "a"+lua.Separator+"busy"+lua.Separator+"5-0")
		r.Do("ZADD", r.Keys.Seen, fmt.Sprint(now.Add(time.Hour).UnixMilli()), "x")

		st := r.stats()
		redistest.Want(t, "scheduled", st.Scheduled, int64(4))
		redistest.Want(t, "overdue", st.Overdue, int64(1))
		if d := time.Duration(st.OldestOverdue); d < 20*time.Second || d > 30*time.Second {
			t.Errorf("oldest overdue: %s", d)
		}
		redistest.Want(t, "next due", st.NextDue.Equal(soon), true)
		redistest.Want(t, "ready", st.Ready, int64(20))
		redistest.Want(t, "entries", st.Entries, int64(20))
		redistest.Want(t, "dead", st.Dead, int64(4))
		redistest.Want(t, "windows", st.DedupWindows, int64(1))
		redistest.Want(t, "turns", st.Turns, int64(1))
		if len(st.Groups) != 3 {
			t.Fatalf("groups %+v", st.Groups)
		}
		byName := map[string]GroupStats{}
		for _, g := range st.Groups {
			byName[g.Name] = g
		}
		one, two := byName["one"], byName["two"]
		redistest.Want(t, "one: lag", one.Lag, int64(15))
		redistest.Want(t, "one: pending", one.Pending, int64(3))
		redistest.Want(t, "one: consumers", one.Consumers, int64(2))
		redistest.Want(t, "one: retrying", one.Retrying, int64(2))
		redistest.Want(t, "one: dead", one.Dead, int64(3))
		redistest.Want(t, "one: exact", one.LagApprox || one.RetryingApprox || one.DeadApprox, false)
		redistest.Want(t, "one: oldest", one.OldestPending.Entry, ids[0])
		redistest.Want(t, "one: oldest consumer", one.OldestPending.Consumer, "worker")
		redistest.Want(t, "one: oldest id", one.OldestPending.ID, "m-0")
		redistest.Want(t, "two: lag", two.Lag, int64(20))
		redistest.Want(t, "two: dead", two.Dead, int64(1))
		redistest.Want(t, "two: retrying", two.Retrying, int64(0))
		redistest.Want(t, "two: policy", two.Policy.MaxAttempts, 3)
		redistest.Want(t, "policy", st.Policy, policy.Default())
		for _, key := range []string{"due", "stream", "dead", "policy", "seen", "turns"} {
			if st.Memory[key] <= 0 {
				t.Errorf("memory of %s: %d", key, st.Memory[key])
			}
		}
		redistest.Want(t, "warnings", strings.Join(st.Warnings, "\n"), "")
		redistest.Want(t, "due times that look like seconds", st.LooksSeconds, int64(0))
		if st.Stalled <= 0 || st.Stalled > st.OldestOverdue || st.NewestDead == nil || *st.NewestDead > view.Millis(time.Minute) {
			t.Errorf("stalled %v, newest dead letter %v", st.Stalled, st.NewestDead)
		}
	})
}

// The lag that the server itself gives is missing or wrong once entries have been deleted out of order, as freeing
// after acknowledgements always does. Stats must give the right lag all the same.
func TestLagIsRightAfterDeletesOutOfOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g", "behind")
		r.Fill(1000)
		ids := r.Take("g", "c", 600)
		r.Take("behind", "c", 10)
		for i := 1; i < 600; i += 2 {
			r.Do("XDEL", r.Keys.Stream, ids[i])
		}
		rest := queuetest.Array(t, r.Do("XRANGE", r.Keys.Stream, "("+ids[599], "+"))
		for i, one := range rest {
			if i%4 == 0 {
				id, _ := queuetest.Array(t, one)[0].ToString()
				r.Do("XDEL", r.Keys.Stream, id)
			}
		}
		st := r.stats()
		lags := map[string]int64{}
		for _, g := range st.Groups {
			lags[g.Name] = g.Lag
			redistest.Want(t, g.Name+" is exact", g.LagApprox, false)
		}
		redistest.Want(t, "lag", lags["g"], int64(300))
		// "behind" has not read 300 of the entries behind those that g read, and 295 of those that g read.
		redistest.Want(t, "lag of the other", lags["behind"], int64(300+295))
		redistest.Want(t, "ready", st.Ready, int64(595))
	})
}

// Near either end of a long stream the lag must be exact. In the middle, where counting would take too long, it may be
// the server's own figure, marked as approximate. That figure is right here, because nothing was deleted.
func TestLagOfALongStreamIsMeasuredFromTheNearerEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("head", "tail", "middle", "done")
	r.Fill(25_000)
	r.Take("head", "c", 100)
	r.Take("tail", "c", 24_990)
	r.Take("middle", "c", 12_500)
	r.Take("done", "c", 25_000)
	for _, g := range r.stats().Groups {
		expected := map[string]int64{"head": 24_900, "tail": 10, "middle": 12_500, "done": 0}[g.Name]
		redistest.Want(t, g.Name, g.Lag, expected)
		redistest.Want(t, g.Name+" is approximate", g.LagApprox, g.Name == "middle")
	}
}

// Stats must warn of settings that do not parse, and count due times that look like seconds instead of milliseconds.
func TestStatsWarn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"max_attempts": "many"})
	r.Do("ZADD", r.Keys.Due, "1700000000", "seconds", "-inf", "nonsense")
	r.Fill(0)
	r.Do("XADD", r.Keys.Stream, "*", "id", "a", "payload", "")
	text := strings.Join(r.stats().Warnings, "\n")
	if part := `max_attempts "many"`; !strings.Contains(text, part) {
		t.Errorf("%q is not in: %s", part, text)
	}
	redistest.Want(t, "due times that look like seconds", r.stats().LooksSeconds, int64(1))
	redistest.Want(t, "ready without groups", r.stats().Ready, int64(1))
	r.Groups("g")
	r.Policy(map[string]string{"held": "1"})
	redistest.Want(t, "held", r.stats().Held, true)
}

// If keys have another type, the error must name each such key, so that an operator finds all of them at once.
func TestStatsNameTheKeyOfTheWrongType(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("SET", r.Keys.Meta, "x")
	r.Do("SET", r.Keys.Dead, "x")
	_, err := Stats(t.Context(), r.Client, r.Prefix, r.Queue)
	for _, part := range []string{r.Keys.Meta + " holds a string where a hash belongs", r.Keys.Dead} {
		if !errors.Is(err, lua.ErrWrongType) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if _, err := Stats(t.Context(), r.Client, r.Prefix, "a/b"); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("queue name: %v", err)
	}
}

// Pending must list the entries that a group holds, over several pages, in the order of the stream, and must say which
// entry has lost its body.
func TestPendingIsListed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(250)
	ids := r.Take("g", "one", 200)
	r.Take("g", "two", 50)
	r.Age("g", "one", ids[7])
	r.Do("XDEL", r.Keys.Stream, ids[3])

	list := func(f PendingFilter, limit int) []PendingEntry {
		t.Helper()
		all, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "g", f, limit)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := list(PendingFilter{}, 1000)
	redistest.Want(t, "all", len(all), 250)
	for i, p := range all[:200] {
		redistest.Want(t, "entry", p.Entry, ids[i])
		if i != 3 && (p.ID != fmt.Sprint("m-", i) || p.Attempt != 1 || p.Deliveries != 1 || p.Consumer != "one" || p.BodyLost) {
			t.Fatalf("entry %d: %+v", i, p)
		}
	}
	redistest.Want(t, "body lost", all[3].BodyLost && all[3].ID == "", true)
	redistest.Want(t, "limit", len(list(PendingFilter{}, 130)), 130)
	redistest.Want(t, "limits of 0 and -5", len(list(PendingFilter{}, 0))+len(list(PendingFilter{}, -5)), 0)
	redistest.Want(t, "consumer", len(list(PendingFilter{Consumer: "two"}, 1000)), 50)
	idle := list(PendingFilter{MinIdle: time.Minute}, 1000)
	if len(idle) != 1 || idle[0].Entry != ids[7] || time.Duration(idle[0].Idle) < time.Minute {
		t.Errorf("idle: %+v", idle)
	}
	if _, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "nobody", PendingFilter{}, 10); !errors.Is(err,
		lua.ErrNoGroup) {
		t.Errorf("no group: %v", err)
	}
}
