package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func (r *rig) peek(n int, payloads bool) Peeked {
	r.t.Helper()
	p, err := Peek(r.t.Context(), r.c, r.prefix, r.queue, n, payloads)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func TestPeekMergesPartitionsByDueTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.groups("g")
		p := r.peek(10, true)
		want(t, "empty", fmt.Sprint(len(p.Next), p.Total, p.Held), "0 0 false")
		r.grow(3)
		begin := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		for i := range 30 {
			r.part(i % 3).enqueue(lua.Item{
				ID: fmt.Sprintf("m-%02d", i), When: lua.At(begin.Add(time.Duration(i) * time.Millisecond)), Payload: []byte(strings.Repeat("x", i)),
				Meta: lua.EncodeMeta(map[string]string{"n": fmt.Sprint(i)}, i, time.Time{}), Dedup: lua.Refuse,
			})
		}
		r.part(1).do("ZADD", r.part(1).k.Due, "1000", "overdue")
		r.part(2).do("HSET", r.part(2).k.Meta, "overdue-2", "no JSON")
		r.part(2).do("ZADD", r.part(2).k.Due, "2000.5", "overdue-2")
		p = r.peek(12, false)
		want(t, "total", p.Total, int64(32))
		var ids []string
		for _, d := range p.Next {
			ids = append(ids, d.ID)
		}
		want(t, "order", strings.Join(ids, " "), "overdue overdue-2 m-00 m-01 m-02 m-03 m-04 m-05 m-06 m-07 m-08 m-09")
		want(t, "overdue", fmt.Sprint(p.Next[0].Overdue, p.Next[1].Overdue, p.Next[2].Overdue), "true true false")
		want(t, "malformed", fmt.Sprint(p.Next[0].Malformed, p.Next[1].Malformed, p.Next[2].Malformed), "false true false")
		want(t, "due in the middle of a millisecond", p.Next[1].Due.UnixMilli(), int64(2001))
		last := p.Next[11]
		want(t, "the last", fmt.Sprint(last.Partition, last.Bytes, last.MaxAttempts, last.Headers, last.Payload == nil, last.Attempt), "0 9 9 map[n:9] true 1")
		want(t, "its time", last.Due.Equal(begin.Add(9*time.Millisecond)), true)
		want(t, "with payload", string(r.peek(12, true).Next[11].Payload), strings.Repeat("x", 9))
		want(t, "all", len(r.peek(100, true).Next), 32)
	})
}

func TestPeekShowsRetriesAndReadsLongSchedulesInSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	failed := make(chan struct{}, 1)
	r.policy(map[string]string{SettingRetryMin: "60000", SettingRetryMax: "60000"})
	_, stop := r.start(WorkerConfig{Handler: func(context.Context, *Message) error {
		failed <- struct{}{}
		return errors.New("boom")
	}})
	r.ready("failing")
	<-failed
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { p := r.peek(1, false); return len(p.Next) == 1, "no retry" })
	if err := stop(); err != nil {
		t.Error(err)
	}
	d := r.peek(1, true).Next[0]
	want(t, "retry", fmt.Sprint(d.ID, " ", d.For, " ", d.Attempt, " ", d.Error, " ", string(d.Payload), " ", d.Bytes), "failing g 2 boom payload of failing 18")

	for first := 0; first < 2500; first += 500 {
		var items []lua.Item
		for i := range 500 {
			items = append(items, lua.Item{ID: fmt.Sprintf("m-%04d", first+i), When: lua.After(time.Hour), Payload: []byte("p"), Dedup: lua.Refuse})
		}
		r.enqueue(items...)
	}
	r.enqueue(lua.Item{ID: "huge-1", When: lua.After(2 * time.Hour), Payload: make([]byte, 2<<20), Dedup: lua.Refuse},
		lua.Item{ID: "huge-2", When: lua.After(2 * time.Hour), Payload: make([]byte, 2<<20), Dedup: lua.Refuse})
	if _, err := Hold(t.Context(), r.c, r.prefix, r.queue, true); err != nil {
		t.Fatal(err)
	}
	p := r.peek(5000, true)
	want(t, "all", fmt.Sprint(len(p.Next), p.Total, p.Held), "2503 2503 true")
	seen := map[string]bool{}
	for i, d := range p.Next {
		if seen[d.ID] || i > 0 && d.Due.Before(p.Next[i-1].Due) || int64(len(d.Payload)) != d.Bytes {
			t.Fatalf("%d: %s, due %s, %d bytes", i, d.ID, d.Due, d.Bytes)
		}
		seen[d.ID] = true
	}
}

func TestMembersAreThoseOfAllPartitions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.groups("g", "h")
		r.grow(2)
		list, err := Members(t.Context(), r.c, r.prefix, r.queue, "")
		want(t, "none", fmt.Sprint(list, err), "[] <nil>")
		if _, err := Members(t.Context(), r.c, r.prefix, r.queue, "other"); !errors.Is(err, lua.ErrNoGroup) {
			t.Error(err)
		}
		r.ready("a", "b", "c")
		r.part(1).ready("d")
		held := r.take("g", "one", 2)
		r.take("g", "two", 1)
		r.part(1).take("g", "one", 1)
		r.part(1).take("h", "three", 1)
		r.age("g", "one", held[1])
		list, err = Members(t.Context(), r.c, r.prefix, r.queue, "")
		if err != nil || len(list) != 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		var lines []string
		for _, m := range list {
			lines = append(lines, fmt.Sprint(m.Group, " ", m.Consumer, m.Partitions, m.Pending, m.Alive, time.Duration(m.OldestIdle) >= time.Hour, m.OldestApprox))
		}
		want(t, "members", strings.Join(lines, "; "), "g one[0 1] 3 true true false; g two[0] 1 true false false; h three[1] 1 true false false")
		for _, m := range list {
			if (m.Inactive == nil) != strings.Contains(s.Name(), "7.0") { // Redis 7.0 does not say it
				t.Errorf("%s: inactive %v", m.Consumer, m.Inactive)
			}
		}
		r.policy(map[string]string{SettingVisibility: "100"})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			list, err := Members(t.Context(), r.c, r.prefix, r.queue, "h")
			return err == nil && len(list) == 1 && !list[0].Alive, fmt.Sprint(list, err)
		})
		n, err := PendingCount(t.Context(), r.c, r.prefix, r.queue, "g", "")
		want(t, "pending", fmt.Sprint(n, err), "4 <nil>")
		n, err = PendingCount(t.Context(), r.c, r.prefix, r.queue, "g", "one")
		want(t, "pending of one", fmt.Sprint(n, err), "3 <nil>")
		n, err = PendingCount(t.Context(), r.c, r.prefix, r.queue, "h", "one")
		want(t, "pending of nobody", fmt.Sprint(n, err), "0 <nil>")
		if _, err := PendingCount(t.Context(), r.c, r.prefix, r.queue, "other", ""); !errors.Is(err, lua.ErrNoGroup) {
			t.Error(err)
		}
	})
}

func TestMembersSayHowFarTheyLooked(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.fill(memberEntries + 500)
	r.take("g", "many", memberEntries)
	r.take("g", "few", 500)
	list, err := Members(t.Context(), r.c, r.prefix, r.queue, "g")
	if err != nil || len(list) != 2 || !list[0].OldestApprox || !list[1].OldestApprox || list[1].Pending != memberEntries {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestHoldPausesEveryPartitionAndWakesTheBridges(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.groups("g")
		r.grow(3)
		hold := func(held bool) bool {
			t.Helper()
			changed, err := Hold(t.Context(), r.c, r.prefix, r.queue, held)
			if err != nil {
				t.Fatal(err)
			}
			return changed
		}
		drained := func() (n int) {
			t.Helper()
			for i := range 3 {
				r.part(i).do("ZADD", r.part(i).k.Due, "1", "m")
				d, err := lua.Drain(t.Context(), r.c, r.part(i).k, 100, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				n += d.Moved
			}
			return n
		}
		want(t, "not paused", hold(false), false)
		want(t, "nothing written", r.number("EXISTS", r.k.Policy), int64(0))
		want(t, "paused", hold(true), true)
		want(t, "again", hold(true), false)
		want(t, "drained", drained(), 0)
		for i := range 3 {
			r.part(i).do("DEL", r.part(i).k.Wake)
		}
		want(t, "resumed", hold(false), true)
		for i := range 3 {
			want(t, "woken", r.length(r.part(i).k.Wake), int64(1))
		}
		want(t, "again", hold(false), false)
		want(t, "drained", drained(), 3)
		r.part(2).policy(map[string]string{SettingHeld: "1"})
		want(t, "one was paused", hold(false), true)
		want(t, "drained", drained(), 3)
	})
}
