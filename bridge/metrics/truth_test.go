package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// The counters of client, bridge and worker agree with what they did, for every outcome of a message.
func TestCountersAreWhatHappened(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	client := r.client()
	schedule := func(id string, options ...bridge.Option) error {
		_, err := client.Schedule(t.Context(), "q", []byte("x"), append(options, bridge.WithID(id))...)
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := bridge.CreateGroup(t.Context(), r.redis, r.prefix, "q", "g")
	must(err)
	for i := range 20 {
		must(schedule(fmt.Sprint("plain-", i), bridge.In(50*time.Millisecond)))
	}
	for _, id := range []string{"error", "after", "panic", "release", "dead", "hopeless"} {
		must(schedule(id, bridge.In(50*time.Millisecond)))
	}
	due := time.Now().Add(50 * time.Millisecond) // no bridge runs yet, so the message is drained after its expiry
	must(schedule("expired", bridge.At(due), bridge.ExpiresAt(due.Add(time.Millisecond))))
	must(schedule("gone", bridge.In(time.Hour)))
	must(schedule("later", bridge.In(time.Hour)))
	if err := schedule("gone", bridge.In(time.Hour)); !errors.Is(err, bridge.ErrDuplicate) {
		t.Fatal(err)
	}
	must(client.Cancel(t.Context(), "q", "gone"))
	_, err = client.Reschedule(t.Context(), "q", "later", bridge.In(2*time.Hour))
	must(err)
	redistest.Eventually(t, patience, func() (bool, string) { return time.Since(due) > 10*time.Millisecond, "" })
	r.serve()
	redistest.Eventually(t, patience, func() (bool, string) { // the worker needs max_attempts, which the bridge stores
		n, err := r.redis.Client.Do(t.Context(), r.redis.Client.B().Exists().Key(r.prefix+":defaults").Build()).AsInt64()
		return err == nil && n == 1, fmt.Sprint("defaults ", n, err)
	})
	_, stop := r.work("q", "g", func(_ context.Context, m *bridge.Message) error {
		first := m.Attempt == 1 && m.Error == ""
		switch {
		case m.ID == "error" && first:
			return errors.New("once")
		case m.ID == "after" && first:
			return bridge.RetryAfter(time.Millisecond, nil)
		case m.ID == "panic" && first:
			panic("once")
		case m.ID == "dead":
			return bridge.DeadLetter(nil)
		case m.ID == "hopeless":
			return errors.New("always")
		}
		return nil
	})
	// 29 messages: 20 plain, 6 with an outcome of their own, expired, gone and later. All but the last three are
	// drained. There are 5 retries: "hopeless" has two, and "error", "after" and "panic" one each.
	got := r.until(map[string]float64{
		"enqueued_total{queue=q}": 29, "duplicates_total{queue=q}": 1, "cancelled_total{queue=q}": 1,
		"rescheduled_total{queue=q}": 1, "enqueued_ready_total{queue=q}": 0,
		"drained_total{queue=q}": 26 + 5, "lateness_seconds{queue=q}": 26 + 5, // first attempts and retries
		"dead_lettered_total{group=,queue=q,reason=drained}": 1,
		"delivered_total{group=g,queue=q}":                   31, "acknowledged_total{group=g,queue=q}": 24,
		"retried_total{group=g,queue=q,reason=error}":              1 + 2,
		"retried_total{group=g,queue=q,reason=retry_after}":        1,
		"retried_total{group=g,queue=q,reason=panic}":              1,
		"dead_lettered_total{group=g,queue=q,reason=dead_letter}":  1,
		"dead_lettered_total{group=g,queue=q,reason=max_attempts}": 1,
		"handler_duration_seconds{group=g,queue=q}":                31,
		"handler_lateness_seconds{group=g,queue=q}":                31,
		"acknowledge_duration_seconds{group=g,queue=q}":            31,
		"attempts{group=g,queue=q}":                                24,
		"lost_total{group=g,queue=q}":                              0,
		"scheduled{queue=q}":                                       1, "pending{group=g,queue=q}": 0, "lag{group=g,queue=q}": 0,
		"dead{group=,queue=q,reason=expired}": 1, "dead{group=g,queue=q,reason=dead_letter}": 1,
		"dead{group=g,queue=q,reason=max_attempts}": 1,
		"up": 1, "bridges": 1, "owned_partitions": 1, "queues": 1,
	})
	for _, name := range []string{
		"heartbeats_total", "script_duration_seconds{script=drain}", "script_duration_seconds{script=ack}",
		"script_duration_seconds{script=enqueue}", "batch_messages{event=drained}",
		"redis_used_memory_bytes{node=" + server.Addr() + "}",
	} {
		if got[name] == 0 {
			t.Errorf("%s is 0", name)
		}
	}
	stop()
	// The bridge reclaims a delivery to a consumer that never acknowledges.
	must(schedule("abandoned"))
	r.do("XREADGROUP", "GROUP", "g", "raw", "COUNT", "1", "STREAMS", r.prefix+":{q}:stream", ">")
	r.until(map[string]float64{"reclaimed_total{group=g,queue=q}": 1,
		"retried_total{group=g,queue=q,reason=visibility_timeout}": 1})
}

// When nothing changes, each gauge equals the figure that Stats counts in full. The queue of the test is held. It has
// ready, scheduled and retrying messages, pending entries, and a group that is behind.
func TestGaugesAreAFullCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
		operator := redistest.Must(admin.New(r.redis, r.prefix))
		client := r.client()
		for _, group := range []string{"g", "h"} {
			if _, err := bridge.CreateGroup(t.Context(), r.redis, r.prefix, "q", group); err != nil {
				t.Fatal(err)
			}
		}
		var batch []bridge.NewMessage
		for i := range 40 {
			m := bridge.NewMessage{Payload: []byte("0123456789")}
			if i >= 30 {
				m.Delay, m.Headers = time.Hour, map[string]string{"a": "b"}
			}
			batch = append(batch, m)
		}
		if _, err := client.ScheduleBatch(t.Context(), "q", batch); err != nil {
			t.Fatal(err)
		}
		// A killed worker leaves pending entries: 9 of group g and 4 of group h. Another worker of g then makes holes
		// in the stream, retries and perhaps dead letters. Group h does not read the other entries.
		stream := r.prefix + ":{q}:stream"
		hold := func(group, n string) {
			r.do("XREADGROUP", "GROUP", group, "raw", "COUNT", n, "STREAMS", stream, ">")
		}
		hold("g", "9")
		hold("h", "4")
		_, stop := r.work("q", "g", func(_ context.Context, m *bridge.Message) error {
			if strings.HasSuffix(m.ID, "A") { // about one in 32 IDs
				return bridge.DeadLetter(nil)
			}
			return bridge.RetryAfter(time.Hour, errors.New("later"))
		})
		redistest.Eventually(t, patience, func() (bool, string) {
			s, err := operator.Stats(t.Context(), "q")
			return err == nil && len(s.Groups) == 2 && s.Groups[0].Lag == 0 && s.Groups[0].Pending == 9, fmt.Sprint(s, err)
		})
		stop()
		if _, err := operator.Pause(t.Context(), "q", true); err != nil {
			t.Fatal(err)
		}
		// The bridge must not reclaim while the test compares.
		patient := time.Hour
		if err := operator.WritePolicy(t.Context(), "q", "", admin.PolicyUpdate{VisibilityTimeout: &patient}); err != nil {
			t.Fatal(err)
		}
		r.serve()
		s, err := operator.Stats(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{
			"scheduled{queue=q}": float64(s.Scheduled), "overdue{queue=q}": float64(s.Overdue), "ready{queue=q}": float64(s.Ready),
			"entries{queue=q}": float64(s.Entries), "held{queue=q}": 1, "up": 1,
			"next_due_timestamp_seconds{queue=q}": float64(s.NextDue.UnixMilli()) / 1000,
		}
		dead := 0.0
		for _, g := range s.Groups {
			labels := "{group=" + g.Name + ",queue=q}"
			want["lag"+labels], want["pending"+labels] = float64(g.Lag), float64(g.Pending)
			want["retrying"+labels], want["consumers"+labels] = float64(g.Retrying), float64(g.Consumers)
			dead += float64(g.Dead)
			if g.Dead > 0 {
				want["dead{group="+g.Name+",queue=q,reason=dead_letter}"] = float64(g.Dead)
			}
		}
		got := r.until(want)
		if int64(dead) != s.Dead || s.Groups[0].Retrying == 0 || s.Groups[1].Lag == 0 || s.Groups[1].Pending != 4 {
			t.Errorf("the queue is not in the state that the test needs: %+v", s)
		}
		for _, name := range []string{"oldest_pending_seconds{group=g,queue=q}", "memory_bytes{queue=q}",
			"oldest_held_seconds{group=g,queue=q}", "oldest_unread_seconds{group=" + s.Groups[1].Name + ",queue=q}"} {
			if got[name] <= 0 {
				t.Errorf("%s is %v", name, got[name])
			}
		}
	})
}

// redis_clock_offset_seconds shows how far the server's clock is from that of the bridge. Due times count by the
// server's clock, and only a comparison with another clock shows that it is wrong.
func TestClockOfTheServerIsCompared(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	r := newRig(t, server.URL(), "duestream", metrics.Config{})
	r.serve()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		clock.Step(by - clock.By())
		redistest.Eventually(t, patience, func() (bool, string) {
			off, there := r.scrape()["redis_clock_offset_seconds{node="+server.Addr()+"}"]
			return there && math.Abs(off-by.Seconds()) < 2, fmt.Sprint(off, there)
		})
	}
}

// Redrives and purges by an operator are counted, in the operator's process.
func TestOperatorsAreCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	if _, err := bridge.CreateGroup(t.Context(), r.redis, r.prefix, "q", "g"); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		r.do("XADD", r.prefix+":{q}:dead", fmt.Sprint(i+1, "-0"), "id", fmt.Sprint(i), "payload", "", "group", "g", "reason", "max_attempts")
	}
	letters := redistest.Must(admin.New(r.redis, r.prefix)).Observed(r.metrics).DeadLetters()
	redrive := func(names ...string) {
		t.Helper()
		if result, err := letters.Redrive(t.Context(), "q", names, admin.RedriveOptions{}); err != nil || result.Scheduled == 0 {
			t.Fatal(result, err)
		}
	}
	redrive("1-0", "2-0", "999-0")
	if _, err := letters.RedriveMatching(t.Context(), "q", admin.LetterFilter{}, admin.RedriveOptions{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if n, err := letters.Purge(t.Context(), "q", []string{"3-0", "4-0", "1-0"}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	n, err := letters.PurgeProgress(t.Context(), "q", admin.LetterFilter{}, func(int) {})
	if n != 3 || err != nil {
		t.Fatal(n, err)
	}
	got := r.scrape()
	redistest.Want(t, "redriven", got["redriven_total{queue=q}"], 2)
	redistest.Want(t, "purged", got["purged_total{queue=q}"], 5)
}

// A hanging handler is counted at its timeout, when it is abandoned, and in the gauge for as long as it runs.
func TestHandlersThatHangAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t).URL(), redistest.Shared(t).Prefix(t), metrics.Config{})
	release := make(chan struct{})
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r.redis, Prefix: r.prefix, Queue: "q", Group: "g", Observer: r.metrics,
		HandlerTimeout: 50 * time.Millisecond, AbandonAfter: 50 * time.Millisecond,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			<-ctx.Done()
			if m.ID == "hangs" {
				<-release
			}
			return ctx.Err()
		}})
	if err != nil {
		t.Fatal(err)
	}
	r.run(w.Run)
	c := r.client()
	for id, attempts := range map[string]int{"hangs": 2, "ends": 1} {
		_, err := c.Schedule(t.Context(), "q", nil, bridge.WithID(id), bridge.MaxAttempts(attempts))
		if err != nil {
			t.Fatal(err)
		}
	}
	counts := func(want map[string]float64) {
		t.Helper()
		redistest.Eventually(t, patience, func() (bool, string) {
			got := r.scrape()
			for name, n := range want {
				if got[name] != n {
					return false, fmt.Sprintf("%s is %v, want %v", name, got[name], n)
				}
			}
			return true, ""
		})
	}
	counts(map[string]float64{
		"handler_timeouts_total{group=g,queue=q}": 2, "handlers_abandoned_total{group=g,queue=q}": 1,
		"handlers_abandoned_running{group=g,queue=q}":                 1,
		"retried_total{group=g,queue=q,reason=handler_timeout}":       1,
		"dead_lettered_total{group=g,queue=q,reason=handler_timeout}": 1,
		"handler_duration_seconds{group=g,queue=q}":                   2,
	})
	close(release)
	counts(map[string]float64{"handlers_abandoned_running{group=g,queue=q}": 0, "handlers_abandoned_total{group=g,queue=q}": 1,
		"retried_total{group=g,queue=q,reason=handler_timeout}": 1, "handler_duration_seconds{group=g,queue=q}": 2})
}
