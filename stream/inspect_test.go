package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func (r *rig) stats() QueueStats {
	r.t.Helper()
	s, err := Stats(r.t.Context(), r.c, r.prefix, r.queue)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func TestStatsOfAQueueThatDoesNotExistAreZero(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		text, err := json.Marshal(r.stats())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "json", string(text), `{"queue":"`+r.queue+`","partitions":1,"held":false,"scheduled":0,"overdue":0,"oldest_overdue_ms":0,"ready":0,"entries":0,"dead":0,`+
			`"dedup_windows":0,"groups":[],"policy":{"visibility_ms":30000,"max_attempts":40,"retry_min_ms":1000,"retry_max_ms":3600000,"held":false}}`)
	})
}

func TestStatsCountEverything(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.kill("one", lua.ReasonDeadLetter, "broken", "d-1", "d-2", "d-3")
		r.kill("two", lua.ReasonDeadLetter, "broken", "d-4")
		r.xack("one", r.take("one", "c", 10)...)
		r.xack("two", r.take("two", "c", 10)...)
		r.policy(map[string]string{"group:two:max_attempts": "3"})
		r.groups("three")
		r.xack("three", r.take("three", "c", 100)...)
		r.trim()
		r.fill(20)
		ids := r.take("one", "worker", 5)
		var fail []lua.Failure
		for _, id := range ids[3:] {
			fail = append(fail, lua.Failure{Held: lua.Held{Entry: id}, Action: lua.ActionRetry, Delay: time.Hour, Error: "e"})
		}
		if _, err := lua.Retry(t.Context(), r.c, r.k, "one", DefaultPolicy().Attempts(), fail); err != nil {
			t.Fatal(err)
		}
		now, err := serverTime(t.Context(), r.c)
		if err != nil {
			t.Fatal(err)
		}
		soon := now.Add(time.Minute).Truncate(time.Millisecond)
		r.do("ZADD", r.k.Due, fmt.Sprint(soon.UnixMilli()), "soon", fmt.Sprint(now.Add(-20*time.Second).UnixMilli()), "late")
		r.do("ZADD", r.k.Seen, fmt.Sprint(now.Add(time.Hour).UnixMilli()), "x")

		st := r.stats()
		want(t, "scheduled", st.Scheduled, int64(4))
		want(t, "overdue", st.Overdue, int64(1))
		if d := time.Duration(st.OldestOverdue); d < 20*time.Second || d > 30*time.Second {
			t.Errorf("oldest overdue: %s", d)
		}
		want(t, "next due", st.NextDue.Equal(soon), true)
		want(t, "ready", st.Ready, int64(20))
		want(t, "entries", st.Entries, int64(20))
		want(t, "dead", st.Dead, int64(4))
		want(t, "windows", st.DedupWindows, int64(1))
		if len(st.Groups) != 3 {
			t.Fatalf("groups %+v", st.Groups)
		}
		byName := map[string]GroupStats{}
		for _, g := range st.Groups {
			byName[g.Name] = g
		}
		one, two := byName["one"], byName["two"]
		want(t, "one: lag", one.Lag, int64(15))
		want(t, "one: pending", one.Pending, int64(3))
		want(t, "one: consumers", one.Consumers, int64(2))
		want(t, "one: retrying", one.Retrying, int64(2))
		want(t, "one: dead", one.Dead, int64(3))
		want(t, "one: exact", one.LagApprox || one.RetryingApprox || one.DeadApprox, false)
		want(t, "one: oldest", one.OldestPending.Entry, ids[0])
		want(t, "one: oldest consumer", one.OldestPending.Consumer, "worker")
		want(t, "one: oldest id", one.OldestPending.ID, "m-0")
		want(t, "two: lag", two.Lag, int64(20))
		want(t, "two: dead", two.Dead, int64(1))
		want(t, "two: retrying", two.Retrying, int64(0))
		want(t, "two: policy", two.Policy.MaxAttempts, 3)
		want(t, "policy", st.Policy, DefaultPolicy())
		for _, key := range []string{"due", "stream", "dead", "policy", "seen"} {
			if st.Memory[key] <= 0 {
				t.Errorf("memory of %s: %d", key, st.Memory[key])
			}
		}
		if text := strings.Join(st.Warnings, "\n"); !strings.Contains(text, "is a bridge running") || strings.Contains(text, "seconds where") {
			t.Errorf("warnings: %s", text)
		}
	})
}

// The server's own lag is nil, or wrong, once entries were deleted out of order, which freeing on acknowledgement does all the time.
func TestLagIsRightAfterDeletesOutOfOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("g", "behind")
		r.fill(1000)
		ids := r.take("g", "c", 600)
		r.take("behind", "c", 10)
		for i := 1; i < 600; i += 2 {
			r.do("XDEL", r.k.Stream, ids[i])
		}
		rest := mustArray(t, r.do("XRANGE", r.k.Stream, "("+ids[599], "+"))
		for i, one := range rest {
			if i%4 == 0 {
				id, _ := mustArray(t, one)[0].ToString()
				r.do("XDEL", r.k.Stream, id)
			}
		}
		st := r.stats()
		lags := map[string]int64{}
		for _, g := range st.Groups {
			lags[g.Name] = g.Lag
			want(t, g.Name+" is exact", g.LagApprox, false)
		}
		want(t, "lag", lags["g"], int64(300))
		want(t, "lag of the other", lags["behind"], int64(300+295))
		want(t, "ready", st.Ready, int64(595))
	})
}

func TestLagOfALongStreamIsMeasuredFromTheNearerEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("head", "tail", "middle", "done")
	r.fill(25_000)
	r.take("head", "c", 100)
	r.take("tail", "c", 24_990)
	r.take("middle", "c", 12_500)
	r.take("done", "c", 25_000)
	for _, g := range r.stats().Groups {
		expected := map[string]int64{"head": 24_900, "tail": 10, "middle": 12_500, "done": 0}[g.Name]
		want(t, g.Name, g.Lag, expected) // the server's own figure, for the middle: nothing was deleted
		want(t, g.Name+" is approximate", g.LagApprox, g.Name == "middle")
	}
}

func TestStatsWarn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.policy(map[string]string{"max_attempts": "many"})
	r.do("ZADD", r.k.Due, "1700000000", "seconds", "-inf", "nonsense")
	r.fill(0)
	r.do("XADD", r.k.Stream, "*", "id", "a", "payload", "")
	text := strings.Join(r.stats().Warnings, "\n")
	for _, part := range []string{"no consumer group: 1 ready", "1 due times look like seconds", `max_attempts "many"`, "is a bridge running"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in: %s", part, text)
		}
	}
	want(t, "ready without groups", r.stats().Ready, int64(1))
	r.groups("g")
	r.policy(map[string]string{"held": "1"})
	text = strings.Join(r.stats().Warnings, "\n")
	want(t, "group without consumers", strings.Contains(text, `group "g" has no consumers`), true)
	want(t, "held", strings.Contains(text, "is a bridge running"), false)
	want(t, "held", r.stats().Held, true)
}

func TestStatsNameTheKeyOfTheWrongType(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("SET", r.k.Meta, "x")
	r.do("SET", r.k.Dead, "x")
	_, err := Stats(t.Context(), r.c, r.prefix, r.queue)
	for _, part := range []string{r.k.Meta + " holds a string where a hash belongs", r.k.Dead} {
		if !errors.Is(err, lua.ErrWrongType) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if _, err := Stats(t.Context(), r.c, r.prefix, "a/b"); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("queue name: %v", err)
	}
}

func TestPendingIsListed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.fill(250)
	ids := r.take("g", "one", 200)
	r.take("g", "two", 50)
	r.age("g", "one", ids[7])
	r.do("XDEL", r.k.Stream, ids[3])

	list := func(f PendingFilter, limit int) []PendingEntry {
		t.Helper()
		all, err := Pending(t.Context(), r.c, r.prefix, r.queue, "g", f, limit)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := list(PendingFilter{}, 1000)
	want(t, "all", len(all), 250)
	for i, p := range all[:200] {
		want(t, "entry", p.Entry, ids[i])
		if i != 3 && (p.ID != fmt.Sprint("m-", i) || p.Attempt != 1 || p.Deliveries != 1 || p.Consumer != "one" || p.BodyLost) {
			t.Fatalf("entry %d: %+v", i, p)
		}
	}
	want(t, "body lost", all[3].BodyLost && all[3].ID == "", true)
	want(t, "limit", len(list(PendingFilter{}, 130)), 130)
	want(t, "consumer", len(list(PendingFilter{Consumer: "two"}, 1000)), 50)
	idle := list(PendingFilter{MinIdle: time.Minute}, 1000)
	if len(idle) != 1 || idle[0].Entry != ids[7] || time.Duration(idle[0].Idle) < time.Minute {
		t.Errorf("idle: %+v", idle)
	}
	if _, err := Pending(t.Context(), r.c, r.prefix, r.queue, "nobody", PendingFilter{}, 10); !errors.Is(err, lua.ErrNoGroup) {
		t.Errorf("no group: %v", err)
	}
}
