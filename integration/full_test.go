package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// A full Redis still drains (guarantee G9). At maxmemory, a call to schedule is refused as a whole with ErrFull.
// Messages that were scheduled before are delivered, retried, acknowledged and freed. Bridges keep their queues, a new
// bridge can join, and a lost group is created again.
func TestG9FullRedisStillDrains(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	const n = 3000
	batch := make([]bridge.NewMessage, n)
	for i := range batch {
		batch[i] = bridge.NewMessage{ID: fmt.Sprint("m", i), Payload: make([]byte, 512), Delay: 2*time.Second +
			spreadOver(time.Second)(i)}
	}
	s.send(batch)

	// From here on the server is full, because its limit of 1 MiB is below the memory that the payloads take.
	used := s.number("MEMORY", "USAGE", s.keys().Payload)
	if used < 1<<20 {
		t.Fatalf("payloads take %d bytes: this run proves nothing", used)
	}
	if err := s.raw("CONFIG", "SET", "maxmemory", "1mb").Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Schedule(context.Background(), s.queue, []byte("x"), bridge.WithID("refused")); !errors.Is(err,
		bridge.ErrFull) {
		t.Fatalf("Schedule at maxmemory: %v", err)
	}
	results, err := s.client.ScheduleBatch(context.Background(), s.queue, []bridge.NewMessage{{ID: "refused"},
		{ID: "refused-2", Delay: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if !errors.Is(r.Err, bridge.ErrFull) {
			t.Errorf("ScheduleBatch at maxmemory: %v", r.Err)
		}
	}
	s.ledger.NotExpected("refused")
	s.ledger.NotExpected("refused-2")

	if err := s.raw("XGROUP", "DESTROY", s.keys().Stream, "g").Error(); err != nil {
		t.Fatal(err)
	}
	var failures atomic.Int64
	s.worker("g", 50, func(_ context.Context, m *bridge.Message) error {
		if m.Attempt == 1 && failures.Add(1)%10 == 0 {
			return errors.New("every tenth fails once")
		}
		return nil
	})
	s.bridge(quick()) // joins while the server is full
	s.awaitSettled(60*time.Second, "g")
	if live := s.number("ZCARD", s.prefix+":bridges"); live != 2 {
		t.Errorf("%d bridges live", live)
	}
	if left := s.number("ZCARD", s.keys().Due); left != 0 {
		t.Errorf("%d members left", left)
	}
	if _, err := s.client.Schedule(context.Background(), s.queue, []byte("x"), bridge.WithID("refused")); !errors.Is(err,
		bridge.ErrFull) {
		t.Errorf("the server was not full all the time: %v", err)
	}
	if err := s.raw("CONFIG", "SET", "maxmemory", "0").Error(); err != nil {
		t.Fatal(err)
	}
	s.schedule(100, "after-", spreadOver(100*time.Millisecond))
	s.awaitSettled(20*time.Second, "g")
}
