package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A queue whose partitions are on several masters of a cluster is exported, and imported into another queue with fewer
// partitions. Scheduled messages and dead letters are delivered from the copy, once and not early.
func TestExportAndImportOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	from := newStack(t, cluster.Server())
	to := newStack(t, cluster.Server())
	duestream := build(t)
	from.mustRun(duestream, "", "queue", "partitions", from.queue, "--create", "5")
	to.mustRun(duestream, "", "queue", "partitions", to.queue, "--create", "3")
	from.groups("g")
	const n = 300
	from.schedule(n, "m", func(int) time.Duration { return 15 * time.Second })
	to.ledger = from.ledger
	for i := range 20 {
		id := fmt.Sprint("dead-", i)
		key := fmt.Sprintf("%s:{%s/%d}:dead", from.prefix, from.queue, 1+i%4)
		if err := from.raw("XADD", key, "*", "id", id, "payload", "payload of "+id, "group", "g", "reason",
			"max_attempts").Error(); err != nil {
			t.Fatal(err)
		}
		to.ledger.Sent(id, 0)
	}
	export := from.mustRun(duestream, "", "export", from.queue)
	if !strings.Contains(export, `{"kind":"end","count":320,"ready":0,"scheduled":300,"dead":20,"left_out":0}`) {
		t.Fatal(export)
	}
	if out := to.mustRun(duestream, export, "import", to.queue); !strings.HasPrefix(out, "imported 320,") ||
		!strings.Contains(out, "created 1 group: g\n") {
		t.Fatal(out)
	}
	to.mustRun(duestream, "", "dead", "redrive", to.queue, "--all")
	to.bridge(quick())
	to.worker("g", 32, func(_ context.Context, m *bridge.Message) error {
		if string(m.Payload) != "payload of "+m.ID || m.Attempt != 1 {
			t.Errorf("%s, attempt %d: %q", m.ID, m.Attempt, m.Payload)
		}
		return nil
	})
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		sum := to.ledger.Summary("g")
		return sum.Delivered == n+20, sum.String()
	})
	if sum := to.ledger.Check(t, "g"); sum.Duplicated > 0 {
		t.Error(sum)
	}
}

// A recurrence continues in the queue into which it is imported, although the bridge of the original queue has already
// scheduled some occurrences before the export. Each occurrence is delivered once, from one of the two queues, and
// missed occurrences are delivered late. An import does not overwrite a recurrence of the same name.
func TestARecurrenceGoesOnWhereItIsImported(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	from, to := newStack(t, server), newStack(t, server)
	duestream := build(t)
	var mu sync.Mutex
	seen := map[string]int{}
	count := func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen[m.ID]++
		return nil
	}
	awaitOccurrences := func(n int) {
		t.Helper()
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= n, fmt.Sprint(len(seen), " delivered")
		})
	}
	// Occurrences before the moment when a recurrence is written do not count. So the first one is 4 to 5 s ahead,
	// which is enough on a busy machine too.
	first := from.serverNow()/1000*1000 + 5000
	const n = 6
	r := bridge.Recurrence{Queue: from.queue, Name: "tick", Every: time.Second, Start: time.UnixMilli(first),
		End: time.UnixMilli(first + 1000*(n-1)), Missed: bridge.MissedAll, Payload: []byte("p")}
	if _, err := from.client.Recur(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.Name, r.Paused, r.Payload = "paused", true, []byte("\xff")
	if _, err := from.client.Recur(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	stop := from.bridge(quick())
	from.worker("g", 4, count)
	awaitOccurrences(2)
	from.mustRun(duestream, "", "queue", "set", from.queue, "--create", "held=true")
	// The queue is paused. Wait until no message is ready or pending.
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		left := from.number("XLEN", from.keys().Stream)
		return left == 0, fmt.Sprint(left, " entries")
	})
	export := from.mustRun(duestream, "", "export", from.queue)
	if !strings.Contains(export, `"recurrences":2,"left_out":0}`) {
		t.Fatal(export)
	}
	stop()
	if out := to.mustRun(duestream, export, "import", to.queue); !strings.Contains(out, "duplicates 0,") {
		t.Fatal(out)
	}
	out, _, code := to.runWithInput(duestream, export, "import", to.queue)
	if !strings.Contains(out, "imported 0,") || code == 0 {
		t.Fatal(out, code)
	}
	to.bridge(quick())
	to.worker("g", 4, count)
	awaitOccurrences(n)
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return to.serverNow() > first+1000*n, "waiting past the end, for an occurrence too many"
	})
	mu.Lock()
	defer mu.Unlock()
	for i := range n {
		if id := fmt.Sprint("tick@", first+int64(1000*i)); seen[id] != 1 {
			t.Errorf("%s was delivered %d times", id, seen[id])
		}
	}
	states, err := to.client.Recurrences(t.Context(), to.queue)
	if err != nil || len(states) != 2 || len(seen) != n || states[1].Used != n || !states[0].Spec.Paused ||
		string(states[0].Spec.Payload) != "\xff" {
		t.Errorf("%+v %v, delivered %v", states, err, seen)
	}
}

// Removing an imported recurrence also removes its occurrences that were already scheduled at the export, in a queue
// with partitions too. Regression: an import put each occurrence into the partition of its ID, where the removal did
// not look for it. The test also imports with the previous release what this release exported, and the other way round.
func TestRemovingAnImportedRecurrenceRemovesItsOccurrences(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	current, previous := build(t), before.Build(t, before.Release)
	scheduled := func(s *stack) []string {
		t.Helper()
		ids, err := s.raw("ZRANGE", s.keys().Due, "0", "-1").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return ids
	}
	from := newStack(t, server)
	const n = 12
	name := func(i int) string { return fmt.Sprint("tick-", i) }
	start := time.UnixMilli(from.serverNow()).Add(time.Hour)
	for i := range n {
		r := bridge.Recurrence{Queue: from.queue, Name: name(i), Every: time.Hour, Start: start, Payload: []byte("p")}
		if _, err := from.client.Recur(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	occurrences := scheduled(from)
	counts := lua.Counts{1, 4}
	isOf := func(partition int) func(string) bool {
		return func(text string) bool { return counts.Of(text) == partition }
	}
	if len(occurrences) != n || !slices.ContainsFunc(occurrences, func(id string) bool { return !isOf(0)(id) }) {
		t.Fatal(occurrences)
	}
	inPartition3 := func(prefix string) string { // returns an ID or a key that belongs to partition 3
		for i := 0; ; i++ {
			if text := fmt.Sprint(prefix, i); isOf(3)(text) {
				return text
			}
		}
	}
	own, key := inPartition3("own@"), inPartition3("key-")
	if err := from.scheduleOne(own, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	replaced := occurrences[0] // an unrelated message with a key has the ID of this occurrence
	if err := from.clientBesideOldBridges().Cancel(t.Context(), from.queue, replaced); err != nil {
		t.Fatal(err)
	}
	if _, err := from.clientBesideOldBridges().Schedule(t.Context(), from.queue, nil, bridge.WithID(replaced),
		bridge.Key(key), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, by := range []struct{ exports, imports string }{{current, current}, {current, previous}, {previous, current}} {
		to := newStack(t, server)
		to.mustRun(current, "", "queue", "partitions", to.queue, "--create", "4")
		export := from.mustRun(by.exports, "", "export", from.queue)
		out := to.mustRun(by.imports, export, "import", to.queue)
		// Recurrences, occurrences (one of them replaced), and the message own.
		if !strings.Contains(out, fmt.Sprint("imported ", n+len(occurrences)+1, ",")) {
			t.Errorf("by %+v: %s", by, out)
		}
		if by.exports != current || by.imports != current {
			continue
		}
		if ids := scheduled(to); !slices.Equal(ids, occurrences[1:]) {
			t.Errorf("in partition 0: %q", ids)
		}
		for i := range n {
			to.mustRun(current, "", "recur", "rm", to.queue, name(i))
		}
		redistest.Want(t, "members left in partition 0", to.number("ZCARD", to.keys().Due), int64(0))
		redistest.Want(t, "members left in partition 3", to.number("ZCARD", to.part(3).keys().Due),
			int64(2)) // own, and the unrelated message with a key
	}
}
