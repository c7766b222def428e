package producer

import (
	"errors"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Two producers may schedule one ID: one in the partition of the ID, and one that knows no partitions in partition 0.
// Regression: Cancel stopped at the first partition that had the ID and answered "cancelled", and the other message was
// delivered.
func TestCancelAndRescheduleReachEveryPartitionThatHoldsTheMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		counts := lua.Counts{1, 2, 8}
		queuetest.PublishCount(t, c, prefix, queue, 2)
		queuetest.PublishCount(t, c, prefix, queue, 8)
		p := newProducer(t, c, prefix)
		at := time.UnixMilli(queuetest.Now(t, c).UnixMilli()).Add(time.Minute)
		ids := []string{queuetest.IDOf(counts, 5), queuetest.IDOf(counts, 3), queuetest.IDOf(counts, 6)}
		wantEverywhere := func(id string, scheduled bool, due time.Time) {
			t.Helper()
			for _, partition := range counts.Candidates(id) {
				k := lua.NewKeys(prefix, lua.PartitionName(queue, partition))
				score, _ := c.Do(t.Context(), c.B().Zscore().Key(k.Due).Member(id).Build()).AsFloat64() // 0: not there
				if want := float64(due.UnixMilli()); score != want && (scheduled || score != 0) {
					t.Errorf("%s in partition %d is due at %.0f, want %.0f", id, partition, score, want)
				}
				if n := queuetest.Integer(t, c, "HEXISTS", k.Payload, id); n == 1 != scheduled {
					t.Errorf("%s in partition %d: %d payloads", id, partition, n)
				}
			}
		}
		scheduleEverywhere := func() {
			for _, id := range ids {
				for _, partition := range counts.Candidates(id) {
					k := lua.NewKeys(prefix, lua.PartitionName(queue, partition))
					queuetest.Do(t, c, "HSET", k.Payload, id, "x")
					queuetest.Do(t, c, "ZADD", k.Due, "1e13", id)
				}
			}
		}
		scheduleEverywhere()
		if due, err := p.Reschedule(t.Context(), queue, ids[0], 0, at); err != nil || !due.Equal(at) {
			t.Errorf("reschedule: %v, %v", due, err)
		}
		wantEverywhere(ids[0], true, at)
		if done, err := p.Cancel(t.Context(), queue, ids[0]); err != nil || !done {
			t.Errorf("cancel: %v, %v", done, err)
		}
		wantEverywhere(ids[0], false, at)
		scheduleEverywhere()
		done, err := p.cancel(t.Context(), queue, append([]string{"unknown"}, ids...))
		if err != nil || done[0] || !done[1] || !done[2] || !done[3] {
			t.Errorf("cancel a batch: %v, %v", done, err)
		}
		for _, id := range ids {
			wantEverywhere(id, false, at)
		}
	})
}

// Regression: a producer that did not know of a growth found the message in a partition of its old count, and answered
// "cancelled", while another producer had put the same ID into a new partition. So even a yes needs the registry as it
// is after the call began.
func TestStaleCountsMakeNoDefiniteYes(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	old, id := newProducer(t, c, prefix), queuetest.IDOf(lua.Counts{1, 8}, 5)
	if _, err := old.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.PublishCount(t, c, prefix, queue, 8)
	k := lua.NewKeys(prefix, lua.PartitionName(queue, 5))
	queuetest.Do(t, c, "ZADD", k.Due, "1e13", id)
	if done, err := old.Cancel(t.Context(), queue, id); err != nil || !done {
		t.Errorf("cancel: %v, %v", done, err)
	}
	if n := queuetest.Integer(t, c, "ZCARD", k.Due); n != 0 {
		t.Errorf("%d are left in the new partition", n)
	}
}

// Cancel and Reschedule must not register a queue: a misspelt name would stay in the registry for good. A producer that
// schedules must register its queue, also right after such a lookup.
func TestLookingForAMessageRegistersNoQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, queues := newProducer(t, c, prefix), lua.NewGlobals(prefix).Queues
	for range 2 {
		if done, err := p.Cancel(t.Context(), queue, "a"); done || err != nil {
			t.Errorf("cancel: %v, %v", done, err)
		}
		if _, err := p.Reschedule(t.Context(), queue, "a", time.Hour, time.Time{}); !errors.Is(err, ErrNotScheduled) {
			t.Errorf("reschedule: %v", err)
		}
	}
	if n := queuetest.Integer(t, c, "HLEN", queues); n != 0 {
		t.Errorf("%d queues are registered", n)
	}
	if _, err := p.Schedule(t.Context(), queue, Message{ID: "a", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, registerEvery/2, func() (bool, string) {
		return queuetest.Integer(t, c, "HLEN", queues) == 1, "not registered soon after a message was scheduled"
	})
}
