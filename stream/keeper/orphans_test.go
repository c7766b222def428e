package keeper

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// stopped is a client whose process is stopped before the last command of a request, until a function returns.
type stopped struct {
	rueidis.Client
	meanwhile func()
}

func (s stopped) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	last := len(cmds) - 1
	replies := s.Client.DoMulti(ctx, cmds[:last]...)
	s.meanwhile()
	return append(replies, s.Client.Do(ctx, cmds[last]))
}

// A producer stopped for minutes between its payloads and the script that schedules them. Meanwhile a sweep deleted
// some payloads and not yet others, because it finds fields of a large hash in different passes. No message is
// scheduled without its payload.
func TestNothingIsScheduledWhosePayloadWasSwept(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, k := s.Client(t), lua.NewKeys(s.Prefix(t), redistest.Queue(t))
		queuetest.Do(t, c, "SCRIPT", "LOAD", lua.Source("enqueue_fresh"))
		for _, hash := range []string{k.Payload, k.Meta} {
			items := make([]lua.Item, 200)
			for i := range items {
				items[i] = lua.Item{ID: fmt.Sprint("m", i), When: lua.After(time.Hour), Payload: bytes.Repeat([]byte("p"), 100),
					Meta: lua.EncodeMeta(map[string]string{"a": strings.Repeat("b", 100)}, 0, time.Time{})}
			}
			sweep := func() {
				one, now := newOrphanSweep(hash), time.Now()
				for _, at := range []time.Duration{0, orphanConfirm} {
					if _, err := one.pass(t.Context(), c, k.Due, 5, now.Add(at)); err != nil {
						t.Fatal(err)
					}
				}
				if left := queuetest.Integer(t, c, "HLEN", hash); left == 0 || left == 200 {
					t.Fatalf("%d fields of %s are left, where the sweep should have deleted a part", left, hash)
				}
			}
			_, err := lua.EnqueueFresh(t.Context(), stopped{c, sweep}, k, lua.Token{Name: "t", Window: time.Hour}, items)
			if err == nil || lua.Ambiguous(err) || lua.Temporary(err) {
				t.Errorf("part of %s is deleted, and the answer: %v", hash, err)
			}
			redistest.Want(t, "scheduled, kept, or remembered", queuetest.Integer(t, c, "EXISTS", k.Due, k.Payload, k.Meta, k.Seen), 0)
			queuetest.Do(t, c, "DEL", k.Due, k.Payload, k.Meta, k.Seen)
		}
	})
}

// The bodies that a call deletes are freed inside it: 500 bodies of 1 MB would block the server for 50 ms. Bodies that
// are only checked are not freed.
func TestLargeOrphansAreDeletedInSeveralCalls(t *testing.T) {
	const n, size = 200, 1 << 20
	all := func(ripe bool) (watched []lua.Watched) {
		for i := range n {
			watched = append(watched, lua.Watched{Orphan: lua.Orphan{Field: fmt.Sprint(i), Length: size}, Ripe: ripe})
		}
		return watched
	}
	if batches := watchBatches(all(false)); len(batches) != 1 {
		t.Errorf("%d calls, where one is enough to look", len(batches))
	}
	batches := watchBatches(all(true))
	for i, batch := range batches {
		if len(batch)*size > orphanFreed+size {
			t.Errorf("call %d frees %d MiB", i+1, len(batch)*size>>20)
		}
	}
	if got := slices.Concat(batches...); len(got) != n {
		t.Errorf("%d of %d are in a call", len(got), n)
	}
	if batches := watchBatches([]lua.Watched{{Orphan: lua.Orphan{Field: "a", Length: -1}, Ripe: true}}); len(batches) != 1 {
		t.Error("one whose length is not known is in no call")
	}
}
