package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

// deliver makes messages ready, and gives them to consumer c of group g.
func (r *rig) deliver(ids ...string) []lua.Held {
	r.T.Helper()
	r.Ready(ids...)
	entries := r.Take("g", "c", len(ids))
	held := make([]lua.Held, len(ids))
	for i, entry := range entries {
		held[i] = lua.Held{Entry: entry, ID: ids[i]}
	}
	return held
}

func (r *rig) fail(held lua.Held, f lua.Failure) {
	r.T.Helper()
	f.Held = held
	attempts := lua.Attempts{Max: 3, Delays: []time.Duration{time.Second}}
	if _, err := lua.Retry(r.T.Context(), r.Client, r.Keys, "g", attempts, []lua.Failure{f}); err != nil {
		r.T.Fatal(err)
	}
}

func (r *rig) ackResult(held lua.Held, value string) {
	r.T.Helper()
	ok, err := lua.AckResult(r.T.Context(), r.Client, r.Keys, "g", held, 2, time.Minute, []byte(value))
	if err != nil || !ok {
		r.T.Fatal(ok, err)
	}
}

// awaited starts a wait, and returns a function that returns how it ended, as text.
func (r *rig) awaited(w *Waiter, id string, state Awaited) func() string {
	r.T.Helper()
	ended := make(chan string, 1)
	ctx, cancel := context.WithTimeout(r.T.Context(), 20*time.Second)
	go func() {
		defer cancel()
		result, err := w.Wait(ctx, r.Queue, id, "g", state, time.Time{})
		text := fmt.Sprintf("%s by attempt %d", result.Value, result.Attempt)
		var dead *DeadError
		switch {
		case errors.As(err, &dead) && errors.Is(err, ErrDead):
			text = fmt.Sprint("dead: ", dead.ID, " ", dead.Group, " ", dead.Reason, " ", dead.Text)
		case errors.Is(err, ErrNoResult):
			text = "no result"
		case errors.Is(err, ErrDone):
			text = "done"
		case err != nil:
			text = err.Error()
		}
		ended <- text
	}()
	return func() string { return <-ended }
}

// A wait ends with the result when the message is acknowledged, and with an error that tells why no result will come.
// While there is still hope, it goes on.
func TestWaitEndsWithWhatBecameOfTheMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	w := NewWaiter(r.Client, r.Prefix)
	r.Enqueue(lua.Item{ID: "later", When: lua.After(time.Hour)},
		lua.Item{ID: "late", When: lua.After(time.Hour), Meta: lua.EncodeMeta(nil, 0, time.UnixMilli(1))})
	later, laterReady := r.awaited(w, "later", AwaitDone), r.awaited(w, "later", AwaitReady)
	never := r.awaited(w, "never", AwaitDone)
	held := r.deliver("done", "plain", "dies", "retried")
	done, ready := r.awaited(w, "done", AwaitDone), r.awaited(w, "done", AwaitReady)
	plain, dies, diesDead := r.awaited(w, "plain", AwaitDone),
		r.awaited(w, "dies", AwaitDone), r.awaited(w, "dies", AwaitDead)
	retried, retriedDead := r.awaited(w, "retried", AwaitDone), r.awaited(w, "retried", AwaitDead)
	redistest.Want(t, "a message that is held, for its readiness", ready(), " by attempt 0")
	redistest.Want(t, "a message that nobody scheduled", never(), "no result")
	r.ackResult(held[0], "paid")
	redistest.Want(t, "a message that is done", done(), "paid by attempt 2")
	r.Xack("g", held[1].Entry)
	redistest.Want(t, "a message that a worker acknowledged by XACK", plain(), "no result")
	r.fail(held[2], lua.Failure{Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "no good"})
	redistest.Want(t, "a dead message", dies(), "dead: dies g dead_letter no good")
	redistest.Want(t, "a dead message, for its death", diesDead(), " by attempt 0")
	r.fail(held[3], lua.Failure{Action: lua.ActionRetry})
	if _, err := lua.Drain(t.Context(), r.Client, r.Keys, 10, 1<<20); err != nil {
		t.Fatal(err)
	}
	r.ackResult(lua.Held{Entry: r.Take("g", "c", 1)[0], ID: "retried"}, "at last")
	redistest.Want(t, "a message that was retried", retried(), "at last by attempt 2")
	redistest.Want(t, "a message that was retried, for its death", retriedDead(), "done")
	if ok, err := lua.Cancel(t.Context(), r.Client, r.Keys, []string{"later"}, lua.Durability{}); err != nil || !ok[0] {
		t.Fatal(ok, err)
	}
	redistest.Want(t, "a cancelled message", later(), "no result")
	redistest.Want(t, "a cancelled message, for its readiness", laterReady(), "no result")
	r.Do("ZADD", r.Keys.Due, "1", "late")
	r.DrainAll()
	redistest.Want(t, "a message that expired", r.awaited(w, "late", AwaitDone)(), "dead: late  expired ")
}

// A result of an earlier message with the same ID is left out when the caller says since when it waits.
func TestWaitLeavesOutEarlierResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	w := NewWaiter(r.Client, r.Prefix)
	r.ackResult(r.deliver("m")[0], "old")
	held := r.deliver("m")[0]
	old, err := w.Wait(t.Context(), r.Queue, "m", "g", AwaitDone, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "any result", string(old.Value), "old")
	ended := make(chan string)
	go func() {
		result, err := w.Wait(t.Context(), r.Queue, "m", "g", AwaitDone, old.Done.Add(time.Millisecond))
		ended <- fmt.Sprint(string(result.Value), " ", err)
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return queuetest.Now(t, r.Client).After(old.Done.Add(2 * time.Millisecond)), "the clock stands still"
	})
	r.ackResult(held, "new")
	redistest.Want(t, "a later result", <-ended, "new <nil>")
	one, err := w.Result(t.Context(), r.Queue, "m", "g")
	redistest.Want(t, "the result", string(one.Value)+fmt.Sprint(one.Attempt, err), "new2 <nil>")
	_, err = w.Result(t.Context(), r.Queue, "m", "another")
	redistest.Want(t, "the result of another group", errors.Is(err, ErrNoResult), true)
}

// A wait polls while it waits for other looks. Regression: it did not. With
// 500 waits and a stream of 20,000 entries, most waits did not notice their results for minutes.
func TestAWaitPollsWhileItCannotLook(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	held := r.deliver("m")
	w := NewWaiter(r.Client, r.Prefix)
	w.looks <- struct{}{}
	wait := r.awaited(w, "m", AwaitDone)
	began := time.Now()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return time.Since(began) > firstLook+firstLook/2, "the wait does not want to look yet"
	})
	r.ackResult(held[0], "paid")
	redistest.Want(t, "the result", wait(), "paid by attempt 2")
}

// A look that finds only a dead letter of an earlier message with the same ID looks for a result, too. Regression: if
// the message was done during the look, the wait ended with the death of the earlier one.
func TestAnEarlierLetterDoesNotHideAResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	w := NewWaiter(r.Client, r.Prefix)
	r.fail(r.deliver("m")[0], lua.Failure{Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "no good"})
	r.ackResult(r.deliver("m")[0], "paid")
	ended, err := w.look(t.Context(), r.Queue, "m", "g", AwaitDone, time.Time{})
	redistest.Want(t, "a look", fmt.Sprint(ended, err), "true <nil>")
}

// Regression: after a search of a server that hung for 12 s, no wait looked for 48 s.
func TestAFailedSearchDelaysOthersShortly(t *testing.T) {
	t.Parallel()
	redistest.Want(t, "rest after a search", restAfter(12*time.Second, nil), 48*time.Second)
	redistest.Want(t, "rest after a failed search", restAfter(12*time.Second, context.DeadlineExceeded), firstLook)
}

// Look returns the result of a message, or an error that tells why there is none.
func TestALookTellsWhyThereIsNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	w := NewWaiter(r.Client, r.Prefix)
	r.Enqueue(lua.Item{ID: "later", When: lua.After(time.Hour)})
	held := r.deliver("done", "dies", "runs")
	r.ackResult(held[0], "paid")
	r.fail(held[1], lua.Failure{Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "no good"})
	for id, want := range map[string]error{
		"done": nil, "dies": ErrDead, "runs": ErrNotDone, "later": ErrNotDone, "never": ErrNoResult, "": lua.ErrInvalid,
	} {
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { // a look that is slow has ErrNotDone
			got, err := w.Look(t.Context(), r.Queue, id, "g")
			right := errors.Is(err, want) && (want == nil) == (string(got.Value) == "paid")
			return right, fmt.Sprintf("%s: %q, %v", id, got.Value, err)
		})
	}
	// The first worker of a new group would get the message, but the group may also be misspelt.
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := w.Look(t.Context(), r.Queue, "runs", "h")
		return errors.Is(err, ErrNoResult) && errors.Is(err, lua.ErrNoGroup), fmt.Sprint(err)
	})
}

// Waits are bounded, end with their context, and refuse what cannot be waited for.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.deliver("m")
	w := NewWaiter(r.Client, r.Prefix)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, MaxWaits)
	for range MaxWaits {
		go func() {
			_, err := w.Wait(ctx, r.Queue, "m", "g", AwaitDone, time.Time{})
			ended <- err
		}()
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return len(w.slots) == MaxWaits, fmt.Sprint(len(w.slots))
	})
	_, err := w.Wait(t.Context(), r.Queue, "m", "g", AwaitDone, time.Time{})
	redistest.Want(t, "one more", errors.Is(err, ErrManyWaits), true)
	cancel()
	for range MaxWaits {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ queue, id, group, state string }{
		{"a/b", "m", "g", "done"}, {r.Queue, "", "g", "done"}, {r.Queue, "m", "", "done"}, {r.Queue, "m", "g", "paid"},
	} {
		if _, err := w.Wait(t.Context(), c.queue, c.id, c.group,
			Awaited(c.state), time.Time{}); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// The result of a message with an ordering key is found, though it is in a partition that its ID does not tell.
func TestResultIsFoundInEachPartition(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	if _, err := stream.Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		part := &rig{r.Part(i)}
		part.Groups("g")
		id := fmt.Sprint("m", i)
		part.ackResult(part.deliver(id)[0], id)
		got, err := NewWaiter(r.Client, r.Prefix).Result(t.Context(), r.Queue, id, "g")
		redistest.Want(t, "result", string(got.Value)+fmt.Sprint(err), id+"<nil>")
	}
}

// A message moves during each search, so the search looks at each place while the message is in another one. The look
// must not conclude that the message is nowhere.
func TestALookAtAMovingMessageDoesNotEndTheWait(t *testing.T) {
	t.Parallel()
	for name, moves := range map[string]struct{ release, ready string }{
		"gets another entry":                   {"XRANGE", "XRANGE"},
		"is ready before the retries are read": {"ZCARD", "ZSCAN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.Groups("g")
			held := r.deliver("a")[0]
			count := 0
			w := NewWaiter(&interrupted{r.Client, func(command string) {
				if command == moves.release {
					r.fail(held, lua.Failure{Action: lua.ActionRelease})
				}
				if command == moves.ready {
					r.DrainAll()
					held.Entry = r.Take("g", "c", 1)[0]
					count++
				}
			}}, r.Prefix)
			ended, err := w.look(t.Context(), r.Queue, "a", "g", AwaitDone, time.Time{})
			redistest.Want(t, "ended", fmt.Sprint(ended, err), "false <nil>")
			redistest.Want(t, "it moved", count > 0, true)
		})
	}
}

// interrupted calls a function before it sends commands, with the name of the first one.
type interrupted struct {
	rueidis.Client
	before func(command string)
}

func (c *interrupted) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	name := commands[0].Commands()[0]
	if name == "HSCAN" { // the search reads the smaller one of two keys
		name = "ZSCAN"
	}
	c.before(name)
	return c.Client.DoMulti(ctx, commands...)
}
