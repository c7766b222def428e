package producer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// A message must be stored with all that was given, be it scheduled or ready at once, and its queue must be registered.
func TestScheduleStoresWhatWasGiven(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)

		before := queuetest.Now(t, c).Truncate(time.Millisecond)
		expires := time.UnixMilli(before.UnixMilli()).Add(2 * time.Hour)
		later, err := p.Schedule(t.Context(), queue, Message{
			ID: "a", Payload: []byte("x\x00\xff"), Headers: map[string]string{"k": "<é>"}, Delay: time.Hour, MaxAttempts: 7,
			Expires: expires,
		})
		if err != nil {
			t.Fatal(err)
		}
		if later.ID != "a" || later.Ready || later.Due.Before(before.Add(time.Hour)) ||
			later.Due.After(before.Add(time.Hour+time.Minute)) {
			t.Errorf("receipt %+v", later)
		}
		if due := queuetest.Integer(t, c, "ZSCORE", k.Due, "a"); due != later.Due.UnixMilli() {
			t.Errorf("scheduled for %d, the receipt says %d", due, later.Due.UnixMilli())
		}
		if body, _ := c.Do(t.Context(), c.B().Hget().Key(k.Payload).Field("a").Build()).ToString(); body != "x\x00\xff" {
			t.Errorf("payload %q", body)
		}
		meta, _ := c.Do(t.Context(), c.B().Hget().Key(k.Meta).Field("a").Build()).ToString()
		if e, ok := lua.DecodeMeta("a", meta); !ok || e.Headers["k"] != "<é>" || e.MaxAttempts != 7 || !e.Expires.Equal(expires) {
			t.Errorf("meta %s", meta)
		}

		now, err := p.Schedule(t.Context(), queue, Message{Payload: []byte("now")})
		if err != nil || !now.Ready || now.ID == "" {
			t.Errorf("a message without a delay: %+v, %v", now, err)
		}
		if got := queuetest.Entries(t, c, prefix, queue); len(got) != 1 || got[0].ID != now.ID ||
			string(got[0].Payload) != "now" || !got[0].Due.Equal(now.Due) {
			t.Errorf("stream holds %+v", got)
		}
		if names, err := scheduler.Queues(t.Context(), c, prefix); err != nil ||
			fmt.Sprint(names) != fmt.Sprint([]string{queue}) {
			t.Errorf("registered: %v, %v", names, err)
		}
	})
}

// One message that is refused must not affect the others of its batch.
func TestBatchGivesEachMessageItsVerdict(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	results, err := p.ScheduleBatch(t.Context(), queue, []Message{
		{ID: "a", Delay: time.Hour}, {Delay: -1}, {ID: "a", Delay: time.Hour}, {Delay: time.Hour}, {ID: "b\x1f"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, lua.ErrInvalid, ErrDuplicate, nil, lua.ErrInvalid} {
		if !errors.Is(results[i].Err, want) || (want == nil) != (results[i].Err == nil) {
			t.Errorf("message %d: %v, want %v", i, results[i].Err, want)
		}
	}
	if results[0].ID != "a" || results[3].ID == "" || results[2].ID != "a" {
		t.Errorf("IDs %+v", results)
	}
	if n := queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue).Due); n != 2 {
		t.Errorf("%d messages are scheduled, want 2", n)
	}

	if _, err := p.ScheduleBatch(t.Context(), "a/b", []Message{{}}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("bad queue name: %v", err)
	}
	if _, err := p.ScheduleBatch(t.Context(), queue, make([]Message, lua.MaxBatch+1)); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("batch over the limit: %v", err)
	}
	if results, err := p.ScheduleBatch(t.Context(), queue, nil); err != nil || len(results) != 0 {
		t.Errorf("empty batch: %v, %v", results, err)
	}
}

// A chosen ID must be refused while it is scheduled, and within its dedup window. A cancelled message gives its ID
// free.
func TestDuplicateIsRefusedWhileScheduledAndInItsWindow(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	try := func(m Message, want error) {
		t.Helper()
		if _, err := p.Schedule(t.Context(), queue, m); !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("%+v: %v, want %v", m, err, want)
		}
	}
	try(Message{ID: "plain", Delay: time.Hour}, nil)
	try(Message{ID: "plain"}, ErrDuplicate)
	try(Message{ID: "ready"}, nil)
	try(Message{ID: "ready"}, nil) // it has left the schedule, and has no dedup window
	try(Message{ID: "window", Dedup: time.Hour}, nil)
	try(Message{ID: "window"}, ErrDuplicate)
	try(Message{ID: "window", Delay: time.Hour, Dedup: time.Hour}, ErrDuplicate)
	try(Message{ID: "cancelled", Delay: time.Hour, Dedup: time.Hour}, nil)
	if done, err := p.Cancel(t.Context(), queue, "cancelled"); !done || err != nil {
		t.Errorf("cancel: %v, %v", done, err)
	}
	try(Message{ID: "cancelled", Delay: time.Hour, Dedup: time.Hour}, nil)
	try(Message{ID: "short", Dedup: time.Millisecond}, nil)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		_, err := p.Schedule(t.Context(), queue, Message{ID: "short", Dedup: time.Millisecond})
		return err == nil, fmt.Sprint(err)
	})
}

// Replace must put the new message in the place of the old one. ReplaceLater does so only if the old one is due earlier
// than the new one, and ReplaceEarlier only if it is due later.
func TestReplaceTakesThePlaceOfTheScheduledMessage(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, keys := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	try := func(m Message, want error, replaced bool) {
		t.Helper()
		m.ID = "m"
		receipt, err := p.Schedule(t.Context(), queue, m)
		if !errors.Is(err, want) || (err == nil) != (want == nil) || receipt.Replaced != replaced {
			t.Errorf("%+v: %+v, %v", m, receipt, err)
		}
	}
	try(Message{Delay: time.Hour, Payload: []byte("one"), Replace: lua.Replace}, nil, false)
	try(Message{Delay: 2 * time.Hour, Payload: []byte("two"), Replace: lua.Replace}, nil, true)
	try(Message{Delay: time.Hour, Payload: []byte("three"), Replace: lua.ReplaceLater}, ErrDuplicate, false)
	try(Message{Delay: time.Hour, Payload: []byte("four"), Replace: lua.ReplaceEarlier}, nil, true)
	try(Message{Delay: time.Hour, Payload: []byte("five")}, ErrDuplicate, false)
	try(Message{Delay: time.Hour, Replace: "sometimes"}, lua.ErrInvalid, false)
	try(Message{Delay: time.Hour, Replace: lua.Replace, Dedup: time.Hour}, lua.ErrInvalid, false)
	if _, err := p.Schedule(t.Context(), queue, Message{Replace: lua.Replace}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("without an ID: %v", err)
	}
	payload, err := c.Do(t.Context(), c.B().Hget().Key(keys.Payload).Field("m").Build()).ToString()
	if n, failed := c.Do(t.Context(), c.B().Zcard().Key(keys.Due).Build()).AsInt64(); err != nil || payload != "four" || n != 1 {
		t.Errorf("%q, %d, %v, %v", payload, n, err, failed)
	}
}

// A server at its memory limit must refuse messages at once, with ErrFull, and must still allow to cancel and
// reschedule.
func TestFullServerRefusesAtOnceWithATypedError(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, Message{ID: "before", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.Do(t, c, "CONFIG", "SET", "maxmemory", "1")
	asked := time.Now()
	results, err := p.ScheduleBatch(t.Context(), queue, []Message{{ID: "a"}, {ID: "b", Delay: time.Hour}})
	if err != nil || !errors.Is(results[0].Err, lua.ErrFull) || !errors.Is(results[1].Err, lua.ErrFull) {
		t.Errorf("got %v, %v", results, err)
	}
	if errors.Is(results[0].Err, ErrUncertain) || time.Since(asked) > DefaultRetryTimeout/2 {
		t.Errorf("%v after %v: a refusal is definite and is not repeated", results[0].Err, time.Since(asked))
	}
	if at, err := p.Reschedule(t.Context(), queue, "before", time.Minute, time.Time{}); err != nil {
		t.Errorf("reschedule on a full server: %v, %v", at, err)
	}
	if done, err := p.Cancel(t.Context(), queue, "before"); !done || err != nil {
		t.Errorf("cancel on a full server: %v, %v", done, err)
	}
	queuetest.Do(t, c, "CONFIG", "SET", "maxmemory", "0")
	if _, err := p.Schedule(t.Context(), queue, Message{ID: "a"}); err != nil {
		t.Errorf("with memory again: %v", err)
	}
}

// Cancel and Reschedule must say whether the message was scheduled, also for more IDs than one call takes.
func TestCancelAndRescheduleAnswerDefinitely(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	ms := make([]Message, cancelChunk+2)
	ids := make([]string, len(ms))
	for i := range ms {
		ids[i] = fmt.Sprintf("m-%d", i)
		ms[i] = Message{ID: ids[i], Delay: time.Hour}
	}
	if _, err := p.ScheduleBatch(t.Context(), queue, ms); err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(queuetest.Now(t, c).UnixMilli()).Add(time.Minute)
	if due, err := p.Reschedule(t.Context(), queue, "m-0", 0, at); err != nil || !due.Equal(at) ||
		queuetest.Integer(t, c, "ZSCORE", k.Due, "m-0") != at.UnixMilli() {
		t.Errorf("reschedule to %v: %v, %v", at, due, err)
	}
	if due, err := p.Reschedule(t.Context(), queue, "m-0", time.Hour, time.Time{}); err != nil || due.Before(at) {
		t.Errorf("reschedule by a delay: %v, %v", due, err)
	}
	for _, id := range []string{"m-0", ids[1]} {
		if done, err := p.Cancel(t.Context(), queue, id); !done || err != nil {
			t.Errorf("cancel %s: %v, %v", id, done, err)
		}
	}
	if done, err := p.Cancel(t.Context(), queue, "m-0"); done || err != nil {
		t.Errorf("cancel again: %v, %v", done, err)
	}
	if _, err := p.Reschedule(t.Context(), queue, "m-0", time.Hour, time.Time{}); !errors.Is(err, ErrNotScheduled) {
		t.Errorf("reschedule what was cancelled: %v", err)
	}
	done, err := p.cancel(t.Context(), queue, ids)
	if err != nil || len(done) != len(ids) || done[0] || done[1] || !done[2] || !done[len(ids)-1] {
		t.Errorf("cancel all: %v, %v", done, err)
	}
	if n := queuetest.Integer(t, c, "EXISTS", k.Due, k.Payload, k.Meta); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	if _, err := p.Cancel(t.Context(), queue, ""); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("cancel without an ID: %v", err)
	}
	if _, err := p.Reschedule(t.Context(), queue, "a", time.Second, at); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("reschedule with both times: %v", err)
	}
}

// An idle queue must hold nothing, not even the token of the last commit.
func TestIdleProducerForgetsItsToken(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	seen := lua.NewKeys(prefix, queue).Seen
	for round := range 2 {
		// The second of two messages with one ID is refused, and the token remembers that.
		results, err := p.ScheduleBatch(t.Context(), queue, []Message{{ID: fmt.Sprint("m", round), Delay: time.Hour},
			{ID: fmt.Sprint("m", round)}})
		if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, ErrDuplicate) {
			t.Fatal(results, err)
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			n, err := c.Do(t.Context(), c.B().Zcard().Key(seen).Build()).AsInt64()
			return n == 0 && err == nil, fmt.Sprint(n, " tokens left: ", err)
		})
	}
}

// Close must delete the token of the last commit, and later calls must return ErrClosed.
func TestCloseForgetsTokensAndRefusesCalls(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	for range 3 {
		if _, err := p.Schedule(t.Context(), queue, Message{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := queuetest.Integer(t, c, "ZCARD", k.Seen); n != 1 {
		t.Errorf("%d tokens are remembered, want the last only", n)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if n := queuetest.Integer(t, c, "ZCARD", k.Seen); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
	if _, err := p.Schedule(t.Context(), queue, Message{}); !errors.Is(err, ErrClosed) {
		t.Errorf("schedule: %v", err)
	}
	if _, err := p.Cancel(t.Context(), queue, "a"); !errors.Is(err, ErrClosed) {
		t.Errorf("cancel: %v", err)
	}
}
