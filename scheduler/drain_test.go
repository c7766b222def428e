package scheduler

import (
	"context"
	"errors"
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
	"github.com/duestream/duestream/scheduler/producer"
)

// runScripted runs a drain loop with a fake clock. The drains give the answers in turn, and the last answer from then
// on. passed waits for the next drain, and returns its time since the start, or -1 if none comes within ten hours.
func runScripted(t *testing.T, test func(d *drainer, log *lines, passed func() time.Duration),
	answers ...func() (lua.Drained, error)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log, began, n := &lines{}, time.Now(), 0
		calls := make(chan time.Duration, 100)
		d := newDrainer(func(context.Context) (lua.Drained, error) {
			calls <- time.Since(began)
			answer := answers[min(n, len(answers)-1)]
			n++
			return answer()
		}, &loop.Reporter{Log: slog.New(slog.NewTextHandler(log, nil)), Activity: "drain"}, cancel)
		done := make(chan struct{})
		go func() { defer close(done); d.run(ctx) }()
		test(d, log, func() time.Duration {
			select {
			case at := <-calls:
				return at
			case <-time.After(10 * time.Hour):
				return -1 // no drain
			}
		})
		cancel()
		<-done
	})
}

// drains returns an answer of a drain that moved some messages; wait is the time until the next one is due: 0 = more
// are due now, -1 = none is scheduled.
func drains(moved int, wait time.Duration) func() (lua.Drained, error) {
	return func() (lua.Drained, error) { return lua.Drained{Moved: moved, Wait: wait}, nil }
}

func drainFails() (lua.Drained, error) { return lua.Drained{}, lua.ErrUnavailable }

// wantDrains checks the times of the next drains; -1 = no further drain.
func wantDrains(t *testing.T, passed func() time.Duration, want ...time.Duration) {
	t.Helper()
	for _, at := range want {
		if got := passed(); got != at {
			t.Errorf("drained at %v, want %v", got, at)
		}
	}
}

// While more messages are due the loop must drain again at once. Then it must sleep until the next due time.
func TestLoopDrainsAtOnceWhileMoreIsDueThenSleeps(t *testing.T) {
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0, 0, 0, time.Minute, -1)
	}, drains(500, 0), drains(500, 0), drains(3, time.Minute), drains(1, -1))
}

// If a drain moves nothing although messages are due, the loop must wait for a millisecond before the next one.
func TestLoopNeverSpins(t *testing.T) {
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0, time.Millisecond, 2*time.Millisecond, -1)
	}, drains(0, 0), drains(0, 0), drains(0, -1))
}

// A poke must end the sleep of a loop at once, and several pokes must cause one drain.
func TestLoopIsPoked(t *testing.T) {
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0)
		synctest.Wait()
		if !d.sleepsBeyond(time.Minute) || d.sleepsBeyond(time.Hour) {
			t.Error("it sleeps for an hour")
		}
		d.poke()
		d.poke()
		wantDrains(t, passed, 0)
		synctest.Wait()
		if !d.sleepsBeyond(100 * time.Hour) {
			t.Error("it sleeps until it is poked")
		}
	}, drains(0, time.Hour), drains(0, -1))
}

// After an error the pauses of a loop must grow, tokens must not shorten them, and wake must. The log must have one
// line for each change between failing and working, not one for each drain.
func TestLoopBacksOffAndReportsChangesOnce(t *testing.T) {
	runScripted(t, func(d *drainer, log *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0)
		synctest.Wait()
		d.poke() // a token must not shorten the pause after an error
		last := time.Duration(0)
		for range 20 {
			at := passed()
			if pause := at - last; pause <= 0 || pause > 3*maxBackoff/2 {
				t.Errorf("a pause of %v after an error", pause)
			}
			last = at
		}
		synctest.Wait()
		if n := log.count("drain is failing"); n != 1 {
			t.Errorf("%d lines about one failure", n)
		}
		d.wake() // as after a heartbeat that shows that the server is back
		wantDrains(t, passed, last)
	}, drainFails)
	runScripted(t, func(d *drainer, log *lines, passed func() time.Duration) {
		for range 5 {
			passed()
		}
		synctest.Wait()
		if log.count("is failing") != 2 || log.count("works again") != 2 {
			t.Errorf("log:\n%s", log)
		}
	}, drainFails, drainFails, drains(1, 0), drainFails, drains(0, -1))
}

// A drain must move at most DrainLimit messages, and give notice of the queue if it moved any.
func TestDrainIsBoundedAndNoticed(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	noticed := make(chan string, 10)
	sch, err := New(Config{Client: c, Blocking: c, Prefix: prefix, DrainLimit: 2, Notice: func(q string) { noticed <- q }})
	if err != nil {
		t.Fatal(err)
	}
	k := lua.NewKeys(prefix, queue)
	queuetest.Do(t, c, "ZADD", k.Due, "1", "a", "2", "b", "3", "c")
	if d, err := sch.Drain(t.Context(), queue); err != nil || d.Moved != 2 || d.Wait != 0 || <-noticed != queue {
		t.Errorf("first: %+v, %v", d, err)
	}
	if d, err := sch.Drain(t.Context(), queue); err != nil || d.Moved != 1 || d.Wait >= 0 || <-noticed != queue {
		t.Errorf("second: %+v, %v", d, err)
	}
	if d, err := sch.Drain(t.Context(), queue); err != nil || d.Moved != 0 || len(noticed) != 0 {
		t.Errorf("third: %+v, %v; %d notices", d, err, len(noticed))
	}
	queuetest.Do(t, c, "DEL", k.Stream)
	queuetest.Do(t, c, "XADD", k.Stream, "18446744073709551615-18446744073709551615", "k", "v") // the last possible ID
	queuetest.Do(t, c, "ZADD", k.Due, "1", "a")
	if d, err := sch.Drain(t.Context(), queue); !errors.Is(err, ErrRefused) || d.Moved != 0 {
		t.Errorf("a stream that refuses: %+v, %v", d, err)
	}
}

// A message must become ready soon after its due time, and never before it. The loops that look regularly are slow
// here, so that only the sleep until the due time can be the cause.
func TestDrainsOnTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		start(t, s, prefix, seldom)
		p := newProducer(t, c, prefix)
		const n = 40
		due := map[string]time.Time{}
		for i := range n {
			r, err := p.Schedule(t.Context(), queue, producer.Message{Delay: time.Duration(300+20*i) * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			due[r.ID] = r.Due
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			got := len(queuetest.Entries(t, c, prefix, queue))
			return got == n, fmt.Sprint(got, " of ", n)
		})
		var worst time.Duration
		for _, e := range queuetest.Entries(t, c, prefix, queue) {
			late := lua.EntryTime(e.EntryID).Sub(due[e.ID])
			if late < 0 || !e.Due.Equal(due[e.ID]) {
				t.Errorf("%s is due at %v, and was moved at %v", e.ID, due[e.ID], lua.EntryTime(e.EntryID))
			}
			worst = max(worst, late)
		}
		t.Logf("at most %v late", worst)
		if worst > time.Second { // a loop that looks regularly would be late by its interval
			t.Errorf("%v late: something polls", worst)
		}
	})
}

// A message that is due before the others must wake the loop, which sleeps until a later due time.
func TestEarlierMessageWakesTheLoop(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	b := start(t, s, prefix, seldom)
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, producer.Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	// The token in the shared stream announced the new queue.
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		l := b.owners.drainer(queue)
		return l != nil && l.sleepsBeyond(30*time.Minute) && !l.sleepsBeyond(2*time.Hour), "the loop does not sleep for an hour"
	})
	r, err := p.Schedule(t.Context(), queue, producer.Message{Delay: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, queue)) == 1,
			"not delivered"
	})
	if late := lua.EntryTime(queuetest.Entries(t, c, prefix, queue)[0].EntryID).Sub(r.Due); late < 0 || late > time.Second {
		t.Errorf("%v late", late)
	}
	if _, err := p.Reschedule(t.Context(), queue, "nobody", 0, time.Time{}); !errors.Is(err, producer.ErrNotScheduled) {
		t.Error(err)
	}
}

// Queues with broken keys must not delay other queues, must be logged once each, and must be drained once mended.
func TestFailingQueueStopsNoOther(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	b := start(t, s, prefix, func(c *Config) { c.SurveyInterval = 100 * time.Millisecond })
	p := newProducer(t, c, prefix)
	// The stream of bad is a key of another type. The wake stream of mute is one. The stream of full takes no entries.
	bad, mute, full, good := "bad", "mute", "full", "good"
	queuetest.Do(t, c, "SET", lua.NewKeys(prefix, mute).Wake, "x")
	queuetest.Do(t, c, "XADD", lua.NewKeys(prefix, full).Stream, "18446744073709551615-18446744073709551615", "k", "v")
	queuetest.Do(t, c, "SET", lua.NewKeys(prefix, bad).Stream, "x")
	for _, queue := range []string{bad, mute, full} {
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, "1", "a")
		queuetest.Do(t, c, "HSETNX", lua.NewGlobals(prefix).Queues, queue, "1")
	}
	// The token of this message makes the bridge read the registry.
	if _, err := p.Schedule(t.Context(), good, producer.Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		st := b.Status()
		watched := len(b.waker.Keys())
		return st.Owned == 4 && watched == 3, fmt.Sprint(st, " and ", watched, " wake streams")
	})
	for i := range 3 {
		r, err := p.Schedule(t.Context(), good, producer.Message{Delay: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			return len(queuetest.Entries(t, c, prefix, good)) == i+1, "the good queue waits"
		})
		if late := lua.EntryTime(queuetest.Entries(t, c, prefix, good)[i].EntryID).Sub(r.Due); late > time.Second {
			t.Errorf("the good queue is %v late", late)
		}
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, mute)) == 1, "the queue that cannot be woken is not drained"
	})
	for _, queue := range []string{bad, full} {
		if n := b.log.count(`msg="drain is failing" queue=` + queue); n != 1 {
			t.Errorf("%d lines about %s", n, queue)
		}
	}
	queuetest.Do(t, c, "DEL", lua.NewKeys(prefix, bad).Stream, lua.NewKeys(prefix, full).Stream, lua.NewKeys(prefix, mute).Wake)
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		watched := len(b.waker.Keys())
		return len(queuetest.Entries(t, c, prefix, bad)) == 1 && len(queuetest.Entries(t, c, prefix, full)) == 1 && watched == 5,
			"not mended"
	})
	for _, queue := range []string{bad, full} {
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			return b.log.count(`msg="drain works again" queue=`+queue) == 1, "no line that " + queue + " works again"
		})
	}
}

// BenchmarkDrain measures how many messages a second a scheduler moves that are all due.
func BenchmarkDrain(b *testing.B) {
	s := redistest.Shared(b)
	c, prefix, queue := s.Client(b), s.Prefix(b), redistest.Queue(b)
	p, err := producer.New(producer.Config{Client: c, Prefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	sch, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	ms, k := make([]producer.Message, 20_000), lua.NewKeys(prefix, queue)
	for i := range ms {
		ms[i] = producer.Message{Payload: make([]byte, 256), At: time.UnixMilli(1_900_000_000_000)}
	}
	moved := 0
	for b.Loop() {
		b.StopTimer()
		if _, err := p.ScheduleBatch(b.Context(), queue, ms); err != nil {
			b.Fatal(err)
		}
		if err := c.Do(b.Context(), c.B().Zunionstore().Destination(k.Due).Numkeys(1).Key(k.Due).Weights(0).Build()).
			Error(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for {
			drained, err := sch.Drain(b.Context(), queue)
			if err != nil {
				b.Fatal(err)
			}
			moved += drained.Moved
			if drained.Wait != 0 {
				break
			}
		}
	}
	b.ReportMetric(float64(moved)/b.Elapsed().Seconds(), "messages/s")
}

// Regression: a stream of dead letters that refused entries stopped the whole queue. The loop must go on with the other
// messages, and log one line when the refusals begin and one when they end.
func TestLoopGoesOnWhileDeadLettersAreRefused(t *testing.T) {
	refused := func(moved, buried int, refusal string, wait time.Duration) func() (lua.Drained, error) {
		return func() (lua.Drained, error) {
			return lua.Drained{Moved: moved, Dead: buried, Wait: wait, DeadRefusal: refusal}, nil
		}
	}
	runScripted(t, func(_ *drainer, log *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0, 0, time.Minute, 2*time.Minute, 3*time.Minute, -1)
		said := log.String()
		for _, line := range []string{"dead-lettering of scheduled messages is failing",
			"dead-lettering of scheduled messages works again"} {
			if strings.Count(said, line) != 1 {
				t.Errorf("%q is not said once in:\n%s", line, said)
			}
		}
	}, refused(500, 0, "full", 0), refused(3, 0, "full", time.Minute), refused(1, 0, "", time.Minute),
		refused(0, 0, "full", time.Minute), refused(0, 1, "", -1))
}
