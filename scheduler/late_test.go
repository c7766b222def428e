package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// A bridge must be ready if it heartbeats and drains on time. Otherwise its status must name the late partition, by how
// much it is late, and the error of its drains.
func TestStatusSaysWhatIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var drained lua.Drained
		var fails error
		var log queuetest.LogBook
		state := &loop.Reporter{Log: log.Logger(), Activity: "drain"}
		d := newDrainer(func(context.Context) (lua.Drained, error) { return drained, fails }, state, nil)
		<-time.After(time.Hour) // fake clock: so that due times in the past are after the zero time
		wantStatus := func(what, want string) {
			t.Helper()
			s := Status{LastHeartbeat: time.Now(), Turned: time.Now(), Late: latePartitions(map[string]*drainer{"emails/1": d})}
			got := ""
			if err := s.Ready(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		wantStatus("at first", "")
		d.noteOldestDue(8 * time.Second)
		wantStatus("not late yet", "")
		time.Sleep(4 * time.Second)
		wantStatus("not drained", "emails/1 (late by 12s)")
		fails = lua.ErrDenied
		d.drainAll(t.Context(), loop.NewBackoff(time.Second))
		wantStatus("the drain failed", "emails/1 (late by 12s; drain is failing: redis denies access)")
		fails, drained.Wait = nil, time.Minute
		d.drainAll(t.Context(), loop.NewBackoff(time.Second))
		wantStatus("drained", "")
		d.noteOldestDue(time.Hour)
		drained.Wait = -1
		d.drainAll(t.Context(), loop.NewBackoff(time.Second))
		wantStatus("emptied", "")
	})
}

// A bridge must be alive while its loop turns, also in an outage of Redis. It must be ready only while its heartbeats
// succeed. An empty text in the table means no error.
func TestStatusSaysWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	many := make([]Late, 12)
	for name, c := range map[string]struct {
		s            Status
		alive, ready string
	}{
		"before the first heartbeat": {Status{}, "", "no heartbeat has succeeded yet"},
		"sound":                      {Status{LastHeartbeat: now, Turned: now}, "", ""},
		"redis is away": {Status{LastHeartbeat: now.Add(-20 * time.Second), Turned: now}, "",
			"the last heartbeat succeeded 20s ago: is Redis there?"},
		"hangs": {Status{LastHeartbeat: now.Add(-time.Minute), Turned: now.Add(-time.Minute)}, "the bridge hangs",
			"come round for 1m0s: the bridge hangs\nthe last heartbeat succeeded 1m0s ago"},
		"many": {Status{LastHeartbeat: now, Turned: now, Late: many}, "", "\n2 more partitions are late"},
	} {
		for _, one := range []struct {
			got  error
			want string
		}{{c.s.Alive(), c.alive}, {c.s.Ready(), c.ready}} {
			got := fmt.Sprint(one.got)
			if one.want == "" && one.got != nil || !strings.Contains(got, one.want) {
				t.Errorf("%s: %v, want %q", name, one.got, one.want)
			}
		}
	}
}

// Regression: a failed drain noted its failure and the wrong type of the key in two steps. If the status was read
// between them, it called a broken queue late, and the bridge was unready.
func TestABrokenQueueIsNeverSeenAsLate(t *testing.T) {
	t.Parallel()
	d := newDrainer(nil, &loop.Reporter{Log: slog.New(slog.DiscardHandler), Activity: "drain"}, nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20_000 {
			d.report(fmt.Errorf("drain: %w", lua.ErrWrongType))
			d.report(nil)
		}
	}()
	for {
		select {
		case <-ended:
			return
		default:
		}
		if l, late := d.late("bad", time.Now()); late && !l.WrongType {
			t.Fatalf("the partition is late, and not broken: %+v", l)
		}
	}
}

// A queue with a key of another type must be named as broken until it drains, and must not make its bridge unready.
// Regression: it did. A supervisor that then restarts the bridge, or delays an upgrade, stops all queues.
func TestAQueueOfAnotherTypeIsNamedAndMakesNoBridgeUnready(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	keys := lua.NewKeys(prefix, "bad")
	now := queuetest.Now(t, c)
	queuetest.Do(t, c, "ZADD", keys.Due, fmt.Sprint(now.Add(-time.Minute).UnixMilli()), "a")
	queuetest.Do(t, c, "SET", keys.Stream, "of somebody else")
	if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), []string{"bad", "good"}); err != nil {
		t.Fatal(err)
	}
	b := start(t, s, prefix, func(c *Config) { c.SurveyInterval = 100 * time.Millisecond })
	wantStatus := func(what string, is func(text string) bool) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			text, status := "", b.Status()
			if err := status.Broken(); err != nil {
				text = err.Error()
			}
			if err := status.Ready(); err != nil && strings.Contains(err.Error(), "bad") {
				t.Errorf("not ready: %v", err)
			}
			return is(text), what + ": " + text
		})
	}
	wantStatus("broken", func(text string) bool {
		return strings.HasPrefix(text, "bad (") && strings.Contains(text, "drain is failing: ") && !strings.Contains(text, "good")
	})
	queuetest.Do(t, c, "DEL", keys.Stream)
	wantStatus("mended", func(text string) bool { return text == "" })
}
