package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// CancelRunning cancels messages in every state, in a queue whose partitions are on three masters: messages that a
// worker holds, ready ones and scheduled ones. The context of each handler is cancelled with ErrCancelled. Then the
// next message of each ordering key is delivered. Nothing is retried or left behind.
func TestCancelRunningOnAClusterWithPartitions(t *testing.T) {
	t.Parallel()
	const keys, partitions = 8, 4
	p := newParted(t, redistest.Cluster(t, 3, 0), partitions)
	policy := quick()
	policy.VisibilityTimeout = 15 * time.Second // extended every 5 s
	p.bridge(policy)

	var mu sync.Mutex
	begun, causes := map[string]int{}, map[string]error{}
	_, _ = p.worker("g", keys, func(ctx context.Context, m *bridge.Message) error {
		mu.Lock()
		begun[m.ID]++
		mu.Unlock()
		if !strings.HasPrefix(m.ID, "held-") {
			return nil
		}
		<-ctx.Done()
		mu.Lock()
		defer mu.Unlock()
		causes[m.ID] = context.Cause(ctx)
		return ctx.Err()
	})
	seen := func(kind string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for id := range begun {
			if strings.HasPrefix(id, kind) {
				n++
			}
		}
		return n
	}
	id := func(kind string, i int) string { return fmt.Sprint(kind, "-", i) }
	send := func(kind string, key bool, delay time.Duration) {
		t.Helper()
		for i := range keys {
			options := []bridge.Option{bridge.WithID(id(kind, i)), bridge.In(delay)}
			if key {
				options = append(options, bridge.Key(fmt.Sprint("key ", i)))
			}
			if _, err := p.client.Schedule(t.Context(), p.queue, nil, options...); err != nil {
				t.Fatal(err)
			}
		}
	}
	send("held", true, 0)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := seen("held-")
		return n == keys, fmt.Sprint(n, " are held")
	})
	send("next", true, 0)   // waits for its key
	send("ready", false, 0) // the worker has no free slot
	send("later", false, time.Hour)
	used := 0
	for i := range partitions {
		used += int(min(1, p.number("XLEN", p.keysOf(i).Stream)))
	}
	redistest.Want(t, "partitions with entries", used, partitions)

	var ids []string
	for _, kind := range []string{"held", "ready", "later"} {
		for i := range keys {
			ids = append(ids, id(kind, i))
		}
	}
	done, err := p.client.CancelRunning(t.Context(), p.queue, "", append(ids, "nobody")...)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range done {
		// Verdicts are in the order of ids: those held, those ready, those due later, and "nobody".
		want := []bridge.CancelVerdict{bridge.VerdictCancelling, bridge.VerdictCancelled, bridge.VerdictCancelled,
			bridge.VerdictNotFound}[i/keys]
		if c.Verdict != want || (want == bridge.VerdictCancelling) != (len(c.Holders) == 1) {
			t.Errorf("%s: %s, held by %v, want %s", c.ID, c.Verdict, c.Holders, want)
		}
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := seen("next-")
		return n == keys, fmt.Sprint(n, " of those that wait for a key were delivered")
	})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return p.partsEmpty(partitions, "g") })
	mu.Lock()
	defer mu.Unlock()
	redistest.Want(t, "messages delivered", len(begun), 2*keys)
	for id, n := range begun {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	for id, cause := range causes {
		if !errors.Is(cause, bridge.ErrCancelled) {
			t.Errorf("%s ended with %v", id, cause)
		}
	}
	redistest.Want(t, "handlers that were told", len(causes), keys)
	for l, err := range p.operator().DeadLetters().List(t.Context(), p.queue, admin.LetterFilter{}) {
		t.Errorf("dead letter %+v, %v", l, err)
	}
}

// A message is cancelled, and the process that holds it is killed before its handler ends. The message ends all the
// same: no other worker gets it, it does not become a dead letter, and the next message of its ordering key is
// delivered. Another message that the process held, and that was not cancelled, is delivered again.
func TestCancelledMessageOfAKilledHolderEnds(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	policy := quick()
	policy.RetryMin, policy.RetryMax = time.Millisecond, time.Millisecond
	s.bridge(policy)
	f := newFamily(t, s, child{part: "stubborn", group: "g"})
	lines := func() string {
		text, err := os.ReadFile(filepath.Join(f.dir, "ledger-g"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
	awaitLine := func(line string) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			text := lines()
			return strings.Contains(text, line), text
		})
	}
	for _, m := range []bridge.NewMessage{{ID: "hangs-cancelled", Key: "k"}, {ID: "hangs-other"}} {
		if _, err := s.client.Send(t.Context(), s.queue, m); err != nil {
			t.Fatal(err)
		}
		awaitLine(m.ID + " 1\n") // ID and attempt
	}
	if _, err := s.client.Schedule(t.Context(), s.queue, nil, bridge.WithID("next"), bridge.Key("k")); err != nil {
		t.Fatal(err)
	}
	done, err := s.client.CancelRunning(t.Context(), s.queue, "", "hangs-cancelled")
	if err != nil || len(done) != 1 || done[0].Verdict != bridge.VerdictCancelling {
		t.Fatalf("%+v, %v", done, err)
	}
	if text := lines(); strings.Contains(text, "next") {
		t.Errorf("the next message of the key was delivered while the cancelled one was held:\n%s", text)
	}
	f.kill(f.children[0])
	f.start(f.children[0])
	awaitLine("next 1\n")
	awaitLine("hangs-other 2\n")
	if text := lines(); strings.Count(text, "hangs-cancelled ") != 1 {
		t.Errorf("delivered again although it was cancelled:\n%s", text)
	}
	k := s.keys()
	redistest.Want(t, "dead letters", s.number("XLEN", k.Dead), int64(0))
	redistest.Want(t, "scheduled", s.number("ZCARD", k.Due), int64(0))
	redistest.Want(t, "entries left", s.number("XLEN", k.Stream), int64(1)) // hangs-other
}
