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

// pausedBeforeLast is a client that calls meanwhile before the last command of each request, as if its process had been
// stopped for that time.
type pausedBeforeLast struct {
	rueidis.Client
	meanwhile func()
}

func (s pausedBeforeLast) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	last := len(cmds) - 1
	replies := s.Client.DoMulti(ctx, cmds[:last]...)
	s.meanwhile()
	return append(replies, s.Client.Do(ctx, cmds[last]))
}

// A producer may be stopped for minutes between writing payloads and calling the script that schedules them. Meanwhile
// a sweep deletes some of the payloads as orphans. It has not come to the others, because it finds the fields of a
// large hash in several passes. The script must then refuse the call: no message may be scheduled without its payload.
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
			_, err := lua.EnqueueFresh(t.Context(), pausedBeforeLast{c, sweep}, k,
				lua.Token{Name: "t", Window: time.Hour}, items)
			if err == nil || lua.Ambiguous(err) || lua.Temporary(err) {
				t.Errorf("a part of %s is deleted, and the error is: %v", hash, err)
			}
			redistest.Want(t, "scheduled, kept, or remembered", queuetest.Integer(t, c, "EXISTS", k.Due, k.Payload, k.Meta, k.Seen), 0)
			queuetest.Do(t, c, "DEL", k.Due, k.Payload, k.Meta, k.Seen)
		}
	})
}

// The server frees the bodies that a call deletes during that call: 500 bodies of 1 MB would block it for 50 ms. So the
// bytes that one call deletes are limited. Bodies that are only checked (not ripe) are not freed, and have no limit.
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
		t.Error("an orphan whose length is not known is in no call")
	}
}
