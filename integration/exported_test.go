package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Imported messages can be cancelled, moved and expired like any others: scheduled ones, retries, snoozed, ready and
// held ones, and those that wait for their key.
func TestWhatIsImportedIsChangedLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	all, idle := s.collectUntil("g", func(_ context.Context, m *bridge.Message) error {
		if m.ID == "snoozed" {
			return bridge.Snooze(time.Hour)
		}
		return bridge.RetryAfter(time.Hour, errors.New("later"))
	})
	stop := s.bridge(patient())
	put := func(id string, options ...bridge.Option) {
		t.Helper()
		if err := s.schedule1(id, options...); err != nil {
			t.Fatal(err)
		}
	}
	put("snoozed")
	put("retried")
	put("retried-k", bridge.Key("k"))
	for range 3 {
		next(t, all)
	}
	waiting := func(n int64) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			due := s.number("ZCARD", s.keys().Due)
			return due == n, fmt.Sprint(due, " are scheduled")
		})
	}
	waiting(3)
	idle()
	op := s.operator()
	if _, err := op.Pause(t.Context(), s.queue, true); err != nil {
		t.Fatal(err)
	}
	stop()
	put("scheduled", bridge.In(time.Hour))
	put("waits-k", bridge.Key("k"), bridge.In(time.Hour))
	for _, id := range []string{"ready", "held"} {
		added := s.raw("XADD", s.keys().Stream, "*", "id", id, "attempt", "1", "due_ms", fmt.Sprint(s.clock()))
		if err := added.Error(); err != nil {
			t.Fatal(err)
		}
	}
	s.abandon("g")
	var records []admin.Record
	for record, err := range op.Export(s.queue, admin.RecordScheduled, admin.RecordReady).Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	redistest.Want(t, "records", len(records), 7)

	for _, change := range []string{"cancel", "expire", "move"} {
		to := newStack(t, redistest.Shared(t))
		im, err := to.operator().Import(t.Context(), to.queue, s.queue, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Groups(t.Context(), []string{"g"}); err != nil {
			t.Fatal(err)
		}
		for i, err := range im.Write(t.Context(), records) {
			if err != nil {
				t.Fatal(records[i], err)
			}
		}
		bulk, every := to.operator().Bulk(), admin.BulkFilter{Retries: true}
		var r admin.BulkResult
		switch change {
		case "cancel":
			r, err = bulk.Cancel(t.Context(), to.queue, every, admin.BulkOptions{})
		case "expire":
			r, err = bulk.Expire(t.Context(), to.queue, every, admin.BulkOptions{})
		case "move":
			r, err = bulk.Reschedule(t.Context(), to.queue, every, 100*time.Millisecond, time.Time{}, admin.BulkOptions{})
		}
		if err != nil || r.Changed != len(records) {
			t.Fatalf("%s: %+v %v", change, r, err)
		}
		seen := to.collect("g", nil)
		to.bridge(patient())
		want := map[string]int{"move": len(records)}[change]
		for range want {
			next(t, seen)
		}
		dead := map[string]int64{"expire": int64(len(records))}[change]
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n, turns := to.number("XLEN", to.keys().Dead), to.number("EXISTS", to.keys().Turns)
			left, what := to.empty("g")
			return left && n == dead && turns == 0, fmt.Sprintf("%s: %d dead letters, turns %d, %s", change, n, turns, what)
		})
		redistest.Want(t, "delivered after "+change, len(seen), 0)
	}
}

// A recurrence has no expiry. An occurrence that an operator expires becomes a dead letter, and counts as done. The
// next occurrences come, even with overlap skip, and none comes twice.
func TestAnOccurrenceThatExpiresIsDone(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(patient())
	const every = 2 * time.Second
	for _, r := range []bridge.Recurrence{{Name: "allow"}, {Name: "skip", Overlap: bridge.OverlapSkip}} {
		r.Queue, r.Every = s.queue, every
		if _, err := s.client.Recur(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	all := s.collect("g", nil) // else an unread occurrence keeps back the next one of skip
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		c := s.redis.Client
		planned, err := c.Do(t.Context(), c.B().Zrange().Key(s.keys().Due).Min("0").Max("-1").Build()).AsStrSlice()
		skip := 0
		for _, id := range planned {
			if strings.HasPrefix(id, "skip@") && id > fmt.Sprint("skip@", s.clock()+every.Milliseconds()/2) {
				skip++
			}
		}
		return len(planned) >= 4 && skip > 0, fmt.Sprint(planned, " are planned; ", err)
	})
	op := s.operator()
	r, err := op.Bulk().Expire(t.Context(), s.queue, admin.BulkFilter{}, admin.BulkOptions{})
	if err != nil || r.Changed < 4 {
		t.Fatal(r, err)
	}
	seen, last := map[string]map[int64]int{"allow": {}, "skip": {}}, map[string]int64{}
	count := func(id string) (name string, at int64) {
		name, text, _ := strings.Cut(id, "@")
		at, _ = strconv.ParseInt(text, 10, 64)
		seen[name][at]++
		return name, at
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := s.number("XLEN", s.keys().Dead)
		return n == int64(r.Changed), fmt.Sprintf("%d dead letters of %d", n, r.Changed)
	})
	for l, err := range op.DeadLetters().List(t.Context(), s.queue, admin.LetterFilter{}) {
		if err != nil || l.Reason != lua.ReasonExpired {
			t.Fatalf("%+v %v", l, err)
		}
		name, at := count(l.ID)
		last[name] = max(last[name], at)
	}
	if len(last) != 2 {
		t.Fatal("letters of ", last)
	}
	for later := map[string]int{}; later["allow"] < 2 || later["skip"] < 2; {
		if name, at := count(next(t, all).ID); at > last[name] {
			later[name]++
		}
	}
	for name, times := range seen {
		for at, n := range times {
			if n > 1 {
				t.Errorf("%s@%d: %d times", name, at, n)
			}
		}
	}
	for at := range seen["allow"] {
		if at <= last["allow"] && seen["allow"][at+every.Milliseconds()] == 0 {
			t.Errorf("after allow@%d one is missing", at)
		}
	}
}
