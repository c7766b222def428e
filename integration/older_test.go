package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// olderReleases are the releases of package before that tests run beside this one, by a name for subtests.
var olderReleases = map[string]string{
	"before": before.Release, "keyless": before.Keyless, "planless": before.Planless,
}

// besideOlder runs a test for each older release. A bridge of the older release (old) serves a queue with the group g,
// while clients and workers are of this release. The visibility timeout is a second.
func besideOlder(t *testing.T, test func(t *testing.T, s *stack, old *releaseProcess)) {
	t.Helper()
	t.Parallel()
	for name, release := range olderReleases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, redistest.Shared(t))
			s.groups("g")
			s.quickQueue()
			old := s.serve(t, before.Build(t, release))
			s.awaitBridges(1)
			test(t, s, old)
		})
	}
}

// quickQueue writes the settings of quick for the queue, so that they do not depend on the bridge.
func (s *stack) quickQueue() {
	s.t.Helper()
	q := quick()
	if err := s.operator().WritePolicy(context.Background(), s.queue, "", admin.PolicyUpdate{
		VisibilityTimeout: &q.VisibilityTimeout, MaxAttempts: &q.MaxAttempts, RetryMin: &q.RetryMin, RetryMax: &q.RetryMax,
	}); err != nil {
		s.t.Fatal(err)
	}
}

// takeOver replaces an older bridge by one of this release.
func (s *stack) takeOver(old *releaseProcess) (now *releaseProcess) {
	old.t.Helper()
	now = s.serve(old.t, build(old.t))
	s.awaitBridges(2)
	old.stop()
	return now
}

// collect runs a worker that passes each delivery to handle, and then to the channel that it returns.
func (s *stack) collect(group string, handle bridge.Handler) <-chan bridge.Message {
	all, _ := s.collectUntil(group, handle)
	return all
}

// collectUntil does the same as collect, and also returns a function that ends the worker.
func (s *stack) collectUntil(group string, handle bridge.Handler) (deliveries <-chan bridge.Message, stop func()) {
	all := make(chan bridge.Message, 1000)
	_, stop = s.worker(group, 10, func(ctx context.Context, m *bridge.Message) (err error) {
		if handle != nil {
			err = handle(ctx, m)
		}
		all <- *m
		return err
	})
	return all, stop
}

// next waits for the next delivery from a channel of collect.
func next(t *testing.T, all <-chan bridge.Message) bridge.Message {
	t.Helper()
	select {
	case m := <-all:
		return m
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is delivered")
		return bridge.Message{}
	}
}

// clientBesideOldBridges returns a client that also does what is refused beside an older bridge (AllowOldBridges).
func (s *stack) clientBesideOldBridges() *bridge.Client {
	s.t.Helper()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, AllowOldBridges: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// scheduleOne schedules one message, and does not record it in the ledger.
func (s *stack) scheduleOne(id string, options ...bridge.Option) error {
	_, err := s.client.Schedule(context.Background(), s.queue, nil, append(options, bridge.WithID(id))...)
	return err
}

// abandon waits for an entry, reads it with a consumer that never comes back, and returns its ID.
func (s *stack) abandon(group string) (entry string) {
	s.t.Helper()
	redistest.Eventually(s.t, 20*time.Second, func() (bool, string) {
		read, err := s.do(func(c rueidis.Client) rueidis.Completed {
			return c.B().Xreadgroup().Group(group, "gone").Count(1).Streams().Key(s.keys().Stream).Id(">").Build()
		}).AsXRead()
		if err == nil && len(read[s.keys().Stream]) == 1 {
			entry = read[s.keys().Stream][0].ID
		}
		return entry != "", fmt.Sprint(err)
	})
	return entry
}

// letter waits until the queue has exactly one dead letter, and returns it.
func (s *stack) letter() (letter admin.Letter) {
	s.t.Helper()
	redistest.Eventually(s.t, 30*time.Second, func() (bool, string) {
		n := 0
		for l, err := range s.operator().DeadLetters().List(context.Background(), s.queue, admin.LetterFilter{}) {
			if err != nil {
				return false, err.Error()
			}
			letter = l
			n++
		}
		return n == 1, fmt.Sprint(n, " dead letters")
	})
	return letter
}

// An ID is refused in its dedup window: whichever release scheduled the first message, whichever schedules the second
// one, and beside a bridge of either release.
func TestDedupWindowsBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		all := s.collect("g", nil)
		if err := s.scheduleOne("order-42", bridge.Dedup(time.Hour), bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if out, err := s.runProgram(old.cmd.Path, "schedule", s.queue, "--id", "order-43", "--dedup", "1h", "x"); err != nil {
			t.Fatal(out, err)
		}
		next(t, all)
		next(t, all)
		wantRefused := func() {
			t.Helper()
			for _, id := range []string{"order-42", "order-43"} {
				if err := s.scheduleOne(id, bridge.Dedup(time.Hour)); !errors.Is(err, bridge.ErrDuplicate) {
					t.Errorf("%s is scheduled again: %v", id, err)
				}
				out, err := s.runProgram(old.cmd.Path, "schedule", s.queue, "--id", id, "--dedup", "1h", "x")
				if err != exitError(4) { // the command's exit code for a duplicate
					t.Errorf("the older command schedules %s again: %s %v", id, out, err)
				}
			}
		}
		wantRefused()
		s.takeOver(old)
		wantRefused()
	})
}

// A message that replaces a scheduled one is delivered in its place, once, also by an older bridge.
func TestReplaceBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		all := s.collect("g", nil)
		ways := []bridge.Option{bridge.In(time.Hour), bridge.ReplaceLater, bridge.ReplaceEarlier, bridge.Replace}
		for i, how := range ways {
			// The first message needs no further option; each of the others replaces the one before it.
			in := map[int]time.Duration{1: 2 * time.Hour, 2: time.Minute, 3: 200 * time.Millisecond}[i]
			options := []bridge.Option{how, bridge.WithID("order-42"), bridge.Header("version", fmt.Sprint(i))}
			if in > 0 {
				options = append(options, bridge.In(in))
			}
			if _, err := s.client.Schedule(t.Context(), s.queue, []byte(fmt.Sprint(i)), options...); err != nil {
				t.Fatal(i, err)
			}
		}
		m := next(t, all)
		redistest.Want(t, "payload and version", string(m.Payload)+m.Headers["version"], "33") // those of the last message
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { return s.empty("g") })
		if len(all) > 0 {
			t.Errorf("delivered as well: %+v", <-all)
		}
	})
}

// When an older bridge reclaims an abandoned delivery, the retry has the delay of its message, or else of the policy.
// It becomes a dead letter when the time for retries of its message is over.
func TestRetryDelaysBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, _ *releaseProcess) {
		// wantRetryInAnHour waits until the only scheduled message is due in an hour, and deletes it.
		wantRetryInAnHour := func(id string) {
			t.Helper()
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				_, due, err := s.waiting()
				left := due - s.serverNow()
				return err == nil && left > 50*60*1000 && left <= 60*60*1000,
					fmt.Sprintf("%s is due in %d ms (%v)", id, left, err)
			})
			if err := s.raw("DEL", s.keys().Due, s.keys().Payload, s.keys().Meta).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.scheduleOne("own", bridge.RetryDelays(time.Hour), bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		wantRetryInAnHour("own")
		hour := bridge.NewDelays(time.Hour)
		update := admin.PolicyUpdate{RetryDelays: &hour}
		if err := s.operator().WritePolicy(t.Context(), s.queue, "", update); err != nil {
			t.Fatal(err)
		}
		if err := s.scheduleOne("policy", bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		wantRetryInAnHour("policy")
		if err := s.scheduleOne("short", bridge.RetryFor(time.Minute), bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		redistest.Want(t, "reason", s.letter().Reason, lua.ReasonRetryFor)
	})
}

// With an older bridge, a snoozed message comes back with the same attempt number, and its snoozes are counted, also if
// one of its deliveries was abandoned before.
func TestSnoozeBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, old *releaseProcess) {
		if err := s.scheduleOne("order-42", bridge.MaxSnoozes(3), bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		all := s.collect("g", func(context.Context, *bridge.Message) error { return bridge.Snooze(50 * time.Millisecond) })
		next(t, all)
		s.takeOver(old)
		l := s.letter()
		redistest.Want(t, "letter", fmt.Sprint(l.Reason, l.Attempt, l.Error), lua.ReasonMaxSnoozes+"2snoozed 4 times")
		for n := 1; n < 4; n++ {
			m := next(t, all)
			redistest.Want(t, "attempt and snoozes", fmt.Sprint(m.Attempt, " ", m.Extra["snoozes"]), fmt.Sprint("2 ", n))
		}
	})
}

// With an older bridge, the next attempt of a failed handler gets its progress, and the sender gets the result.
func TestProgressAndResultBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, _ *releaseProcess) {
		if err := s.scheduleOne("order-42", bridge.KeepResult(time.Minute), bridge.In(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		s.collect("g", func(ctx context.Context, m *bridge.Message) error {
			if len(m.Progress) > 0 {
				return m.SetResult(append([]byte("after "), m.Progress...))
			}
			if err := m.SaveProgress(ctx, []byte("page 7")); err != nil {
				t.Error(err)
			}
			return bridge.RetryAfter(0, errors.New("no"))
		})
		got, err := s.client.WaitFor(t.Context(), s.queue, "order-42", "g", bridge.AwaitDone)
		redistest.Want(t, "result", fmt.Sprintf("%s %d %v", got.Value, got.Attempt, err), "after page 7 2 <nil>")
	})
}

// With an older bridge, a message that is still waiting at its expiry becomes a dead letter: a message before its first
// delivery one for all groups (group ""), and a retry one for its group.
func TestExpiryBesideAnOlderBridge(t *testing.T) {
	besideOlder(t, func(t *testing.T, s *stack, _ *releaseProcess) {
		op := s.operator()
		if _, err := op.Pause(t.Context(), s.queue, true); err != nil {
			t.Fatal(err)
		}
		if err := s.scheduleOne("order-42", bridge.In(10*time.Millisecond),
			bridge.ExpiresIn(50*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		until := s.serverNow() + 100
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { return s.serverNow() > until, "" })
		if _, err := op.Pause(t.Context(), s.queue, false); err != nil {
			t.Fatal(err)
		}
		l := s.letter()
		redistest.Want(t, "letter", fmt.Sprintf("%s %q %s", l.Reason, l.Group, l.ID), `expired "" order-42`)
		if _, err := op.DeadLetters().Purge(t.Context(), s.queue, []string{l.Letter}); err != nil {
			t.Fatal(err)
		}
		if err := s.scheduleOne("order-43", bridge.ExpiresIn(time.Minute), bridge.RetryDelays(time.Hour)); err != nil {
			t.Fatal(err)
		}
		s.abandon("g")
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			_, due, err := s.waiting()
			return due > 0, fmt.Sprint(err)
		})
		if _, err := s.client.Reschedule(t.Context(), s.queue, "order-43", bridge.In(2*time.Minute),
			bridge.Retries()); err != nil {
			t.Fatal(err)
		}
		r, err := op.Bulk().Expire(t.Context(), s.queue, admin.BulkFilter{Retries: true}, admin.BulkOptions{})
		if err != nil || r.Changed != 1 {
			t.Fatal(r, err)
		}
		l = s.letter()
		redistest.Want(t, "letter", fmt.Sprintf("%s %q %s", l.Reason, l.Group, l.ID), `expired "g" order-43`)
	})
}

// waiting returns the member that is due first, and its due time in Unix ms; "" and 0 if nothing is scheduled.
func (s *stack) waiting() (member string, due int64, err error) {
	all, err := s.raw("ZRANGE", s.keys().Due, "0", "0", "WITHSCORES").AsZScores()
	if err != nil || len(all) == 0 {
		return "", 0, err
	}
	return all[0].Member, int64(all[0].Score), nil
}
