package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// A part of a millisecond counts as a whole one. Otherwise a test that advances by it in a loop would never end.
func TestTimesAreWholeMilliseconds(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{InProcess: true})
	r.Advance(time.Nanosecond)
	redistest.Want(t, "time", r.Now().Sub(r.began), time.Millisecond)
	r.AdvanceTo(r.began.Add(1500 * time.Microsecond))
	redistest.Want(t, "time", r.Now().Sub(r.began), 2*time.Millisecond)
}

// A recurrence of every second must not hold up a test for hours.
func TestAdvanceEndsAfterManyTimes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{InProcess: true})
	r.mostTimes = 20
	_, err := r.Client().Recur(r.Context(), bridge.Recurrence{Name: "tick", Queue: "q", Every: time.Second})
	ok(t, err)
	err = r.step(r.began.Add(365 * 24 * time.Hour))
	if err == nil || !strings.Contains(err.Error(), `something was due at 20 times, in the last place in queue "q"`) {
		t.Error(err)
	}
}

// A chain of messages that are due at once must end with an error that names the last of them.
func TestAdvanceEndsAChainOfMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{InProcess: true})
	r.mostInChain = 20
	r.work("q", "g", func(*bridge.Message) error {
		_, err := r.Client().Schedule(r.Context(), "q", nil)
		return err
	})
	r.send("q", "first")
	err := r.step(r.Now())
	want := "messages follow one another without end at this time, in the last place message "
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// The program under test makes its worker itself, and stops it. Advance waits for the worker while it runs.
func TestAWorkerOfTheProgramIsWaitedFor(t *testing.T) {
	feature(t, func(r *rig) {
		worker := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{
			Redis: r.Redis(), Prefix: r.Prefix(), Queue: "q", Group: "g",
			Handler: func(_ context.Context, m *bridge.Message) error {
				r.note("%s", m.ID)
				return nil
			},
		}))
		ctx, stop := context.WithCancel(r.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = worker.Run(ctx) })
		redistest.Eventually(r.test, 10*time.Second, func() (bool, string) {
			return r.readers.serves(r.Prefix()+":{q}:stream", "g"), "the worker does not read"
		})
		r.send("q", "a", bridge.In(time.Hour))
		r.send("q", "b", bridge.In(2*time.Hour))
		r.Advance(time.Hour)
		r.want("1h0m0s a")
		stop()
		running.Wait()
		r.Advance(time.Hour)
		r.want("1h0m0s a")
		redistest.Want(r.test, "state of b", r.RequireScheduledIn("q").State, Ready)
	})
}

// The program under test runs a bridge in its own process. It does the same work as the kit, and does no harm.
func TestABridgeOfTheProgramDoesNoHarm(t *testing.T) {
	feature(t, func(r *rig) {
		b := redistest.Must(bridge.NewBridge(bridge.Config{Redis: r.Redis(), Prefix: r.Prefix(), AnyServer: true}))
		ctx, stop := context.WithCancel(r.Context())
		var running sync.WaitGroup
		running.Go(func() { ok(r.test, b.Run(ctx)) })
		r.work("q", "g", func(m *bridge.Message) error {
			if m.Attempt == 1 {
				return bridge.RetryAfter(time.Hour, errors.New("no"))
			}
			return nil
		})
		for i := range 20 {
			r.send("q", fmt.Sprint(i), bridge.In(time.Duration(i)*24*time.Hour))
		}
		r.Advance(30 * 24 * time.Hour)
		redistest.Want(r.test, "deliveries", len(r.log), 40)
		r.RequireNothingIn("q")
		stop()
		running.Wait()
	})
}

// An operator redrives a dead letter, moves a message and pauses the workers.
func TestActionsOfOperatorsFollowTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		op := redistest.Must(admin.New(r.Redis(), r.Prefix()))
		isBroken := true
		r.work("q", "g", func(*bridge.Message) error {
			if isBroken {
				return bridge.DeadLetter(errors.New("no"))
			}
			return nil
		})
		r.send("q", "a", bridge.In(time.Minute))
		r.send("q", "b", bridge.In(time.Hour))
		r.Advance(10 * time.Minute)
		isBroken = false
		result := redistest.Must(op.DeadLetters().RedriveMatching(r.Context(), "q",
			admin.LetterFilter{OlderThan: 9 * time.Minute}, admin.RedriveOptions{}))
		redistest.Want(r.test, "redriven", result.Scheduled, 1)
		redistest.Must(r.Client().Reschedule(r.Context(), "q", "b", bridge.In(time.Minute)))
		r.Advance(time.Minute)
		r.want("1m0s a/1", "10m0s a/1", "11m0s b/1")
	})
}

// A plain command deletes the retry of the message that holds a key: the next message must not wait for ever.
func TestAKeyWhoseHolderIsGonePassesOn(t *testing.T) {
	feature(t, func(r *rig) {
		r.work("q", "g", func(m *bridge.Message) error {
			if m.ID == "a" {
				return bridge.RetryAfter(time.Hour, errors.New("no"))
			}
			return nil
		})
		r.send("q", "a", bridge.Key("k"), bridge.In(time.Minute))
		r.send("q", "b", bridge.Key("k"), bridge.In(2*time.Minute))
		r.Advance(3 * time.Minute)
		redistest.Want(r.test, "state of b", r.RequireScheduledIn("q", ID("b")).State, Waiting)
		c, due := r.Redis().Client, r.Prefix()+":{q}:due"
		ok(r.test, c.Do(r.Context(), c.B().Zremrangebyrank().Key(due).Start(0).Stop(0).Build()).Error())
		r.Advance(time.Minute)
		r.want("1m0s a/1", "3m0s b/1")
	})
}

// While the policy holds the workers, messages wait, and Advance does not wait for the workers.
func TestHeldWorkersAreNotWaitedFor(t *testing.T) {
	feature(t, func(r *rig) {
		held, free := true, false
		r.set("q", admin.PolicyUpdate{HeldWorkers: &held})
		r.work("q", "g", nil)
		r.send("q", "a", bridge.In(time.Minute))
		r.Advance(time.Hour)
		r.want()
		redistest.Want(r.test, "state", r.RequireScheduledIn("q").State, Ready)
		r.set("q", admin.PolicyUpdate{HeldWorkers: &free})
		r.Advance(0) // the worker notices it within a second
		r.want("1h0m0s a/1")
	})
}

// A running worker notices new partitions after some real seconds, and Advance waits for it.
func TestAQueueGrowsBesideItsWorker(t *testing.T) {
	feature(t, func(r *rig) {
		r.work("q", "g", nil)
		r.send("q", "first", bridge.In(time.Minute))
		r.Advance(time.Minute)
		redistest.Must(redistest.Must(admin.New(r.Redis(), r.Prefix())).SetPartitions(r.Context(), "q", 3, nil))
		client := redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r.Redis(), Prefix: r.Prefix()}))
		for i := range 9 {
			_, err := client.Schedule(r.Context(), "q", nil, bridge.WithID(fmt.Sprint(i)), bridge.In(time.Hour))
			ok(r.test, err)
		}
		r.Advance(time.Hour)
		redistest.Want(r.test, "deliveries", len(r.log), 10)
	})
}

func TestAKitOnACluster(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{URL: redistest.Cluster(t, 3, 0).URL()})
	for _, queue := range []string{"a", "b", "c"} {
		r.work(queue, "g", func(m *bridge.Message) error {
			if m.Attempt == 1 {
				return bridge.RetryAfter(time.Hour, errors.New("no"))
			}
			return nil
		})
		r.send(queue, queue, bridge.In(time.Hour))
	}
	_, err := r.Client().Recur(r.Context(), bridge.Recurrence{Name: "daily", Queue: "a", Cron: "@daily"})
	ok(t, err)
	r.Advance(14 * time.Hour)
	r.RequireScheduledIn("a", ID(fmt.Sprintf("daily@%d", r.began.Add(15*time.Hour).UnixMilli())))
	r.Advance(time.Hour)
	r.RequireScheduledIn("a", ID(fmt.Sprintf("daily@%d", r.began.Add(39*time.Hour).UnixMilli())))
	RequireNothing(r.Kit, bridge.Kind[[]byte]{Queue: "b", Codec: bridge.RawCodec()})
	redistest.Want(t, "deliveries", len(r.log), 7)
}
