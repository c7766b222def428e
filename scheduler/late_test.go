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

// A bridge is ready if it heartbeats and drains on time; otherwise it names the late partition.
func TestStatusSaysWhatIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var drained lua.Drained
		var fails error
		var log queuetest.LogBook
		state := &loop.Reporter{Log: log.Logger(), Activity: "drain"}
		d := newDrainer(func(context.Context) (lua.Drained, error) { return drained, fails }, state, nil)
		<-time.After(time.Hour) // virtual time: keeps overdue times after the zero time
		says := func(what, want string) {
			t.Helper()
			s := Status{LastHeartbeat: time.Now(), Turned: time.Now(), Late: lateOnes(map[string]*drainer{"emails/1": d})}
			got := ""
			if err := s.Ready(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		says("at first", "")
		d.sawHead(8 * time.Second)
		says("not late yet", "")
		time.Sleep(4 * time.Second)
		says("nobody drained it", "emails/1 (late by 12s)")
		fails = lua.ErrDenied
		d.settle(t.Context(), loop.NewBackoff(time.Second))
		says("and why", "emails/1 (late by 12s; drain is failing: redis denies access)")
		fails, drained.Wait = nil, time.Minute
		d.settle(t.Context(), loop.NewBackoff(time.Second))
		says("drained", "")
		d.sawHead(time.Hour)
		drained.Wait = -1
		d.settle(t.Context(), loop.NewBackoff(time.Second))
		says("emptied", "")
	})
}

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

// A failed drain used to note its failure and the wrong type of the key in two steps. If the status was read between
// them, it called a broken queue late, and the bridge was unready.
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

// A queue with a key of another type used to make the whole bridge unready. A supervisor that restarts it for that, or
// delays an upgrade, stops all queues. Now only the broken queue is named, until it drains.
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
	says := func(what string, is func(text string) bool) {
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
	says("broken", func(text string) bool {
		return strings.HasPrefix(text, "bad (") && strings.Contains(text, "drain is failing: ") && !strings.Contains(text, "good")
	})
	queuetest.Do(t, c, "DEL", keys.Stream)
	says("mended", func(text string) bool { return text == "" })
}
