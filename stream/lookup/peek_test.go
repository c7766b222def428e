package lookup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

func (r *rig) peek(n int, payloads bool) Peeked {
	r.T.Helper()
	p, err := Peek(r.T.Context(), r.Client, r.Prefix, r.Queue, n, payloads)
	if err != nil {
		r.T.Fatal(err)
	}
	return p
}

// Peek must show the next messages of all partitions together in the order of their due times, and mark the members
// without valid data.
func TestPeekMergesPartitionsByDueTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		p := r.peek(10, true)
		redistest.Want(t, "empty", fmt.Sprint(len(p.Next), p.Total, p.Held), "0 0 false")
		r.grow(3)
		begin := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		for i := range 30 {
			r.Part(i % 3).Enqueue(lua.Item{
				ID: fmt.Sprintf("m-%02d", i), When: lua.At(begin.Add(time.Duration(i) * time.Millisecond)),
				Payload: []byte(strings.Repeat("x", i)),
				Meta:    lua.EncodeMeta(map[string]string{"n": fmt.Sprint(i)}, i, time.Time{}), Dedup: lua.Refuse,
			})
		}
		r.Part(1).Do("ZADD", r.Part(1).Keys.Due, "1000", "overdue")
		r.Part(2).Do("HSET", r.Part(2).Keys.Meta, "overdue-2", "no JSON")
		r.Part(2).Do("ZADD", r.Part(2).Keys.Due, "2000.5", "overdue-2")
		p = r.peek(12, false)
		redistest.Want(t, "total", p.Total, int64(32))
		var ids []string
		for _, d := range p.Next {
			ids = append(ids, d.ID)
		}
		redistest.Want(t, "order", strings.Join(ids, " "),
			"overdue overdue-2 m-00 m-01 m-02 m-03 m-04 m-05 m-06 m-07 m-08 m-09")
		redistest.Want(t, "overdue", fmt.Sprint(p.Next[0].Overdue, p.Next[1].Overdue, p.Next[2].Overdue), "true true false")
		redistest.Want(t, "malformed", fmt.Sprint(p.Next[0].Malformed, p.Next[1].Malformed, p.Next[2].Malformed),
			"false true false")
		redistest.Want(t, "due in the middle of a millisecond", p.Next[1].Due.UnixMilli(), int64(2001))
		last := p.Next[11]
		// Partition, bytes, max attempts, headers, no payload, attempt.
		redistest.Want(t, "the last", fmt.Sprint(last.Partition, last.Bytes, last.MaxAttempts, last.Headers,
			last.Payload == nil,
			last.Attempt), "0 9 9 map[n:9] true 1")
		redistest.Want(t, "the last is due at its time", last.Due.Equal(begin.Add(9*time.Millisecond)), true)
		redistest.Want(t, "with payload", string(r.peek(12, true).Next[11].Payload), strings.Repeat("x", 9))
		redistest.Want(t, "all", len(r.peek(100, true).Next), 32)
	})
}

// Peek must show a retry with its group, attempt and error. A schedule with more messages and bytes than one call reads
// must be shown whole, in order, each message once.
func TestPeekShowsRetriesAndReadsLongSchedulesInSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	failed := make(chan struct{}, 1)
	r.Policy(map[string]string{policy.SettingRetryMin: "60000", policy.SettingRetryMax: "60000"})
	_, stop := r.start(stream.WorkerConfig{Handler: func(context.Context, *stream.Message) error {
		failed <- struct{}{}
		return errors.New("boom")
	}})
	r.Ready("failing")
	<-failed
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		p := r.peek(1, false)
		return len(p.Next) == 1,
			"no retry"
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	d := r.peek(1, true).Next[0]
	redistest.Want(t, "retry", fmt.Sprint(d.ID, " ", d.For, " ", d.Attempt, " ", d.Error, " ", string(d.Payload), " ",
		d.Bytes),
		"failing g 2 boom payload of failing 18")

	for first := 0; first < 2500; first += 500 {
		var items []lua.Item
		for i := range 500 {
			items = append(items, lua.Item{ID: fmt.Sprintf("m-%04d", first+i), When: lua.After(time.Hour), Payload: []byte("p"),
				Dedup: lua.Refuse})
		}
		r.Enqueue(items...)
	}
	r.Enqueue(lua.Item{ID: "huge-1", When: lua.After(2 * time.Hour), Payload: make([]byte, 2<<20), Dedup: lua.Refuse},
		lua.Item{ID: "huge-2", When: lua.After(2 * time.Hour), Payload: make([]byte, 2<<20), Dedup: lua.Refuse})
	if _, err := stream.Pause(t.Context(), r.Client, r.Prefix, r.Queue, "", true); err != nil {
		t.Fatal(err)
	}
	p := r.peek(5000, true)
	redistest.Want(t, "all", fmt.Sprint(len(p.Next), p.Total, p.Held), "2503 2503 true")
	seen := map[string]bool{}
	for i, d := range p.Next {
		if seen[d.ID] || i > 0 && d.Due.Before(p.Next[i-1].Due) || int64(len(d.Payload)) != d.Bytes {
			t.Fatalf("%d: %s, due %s, %d bytes", i, d.ID, d.Due, d.Bytes)
		}
		seen[d.ID] = true
	}
}
