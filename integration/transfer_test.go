package integration

import (
	"context"
	"fmt"
	"os/exec"
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

// A queue whose partitions are on several masters of a cluster is exported, and imported into a queue of another name
// that has fewer partitions. Scheduled messages and dead letters are delivered from the copy, once and on time.
func TestExportAndImportOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	from := newStack(t, cluster.Server())
	to := newStack(t, cluster.Server())
	duestream := build(t)
	command := func(s *stack, stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(duestream, append([]string{"--redis", cluster.URL(), "--prefix", s.prefix}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s%s", args, err, out, &errOut)
		}
		return string(out)
	}
	command(from, "", "queue", "partitions", from.queue, "--create", "5")
	command(to, "", "queue", "partitions", to.queue, "--create", "3")
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
	export := command(from, "", "export", from.queue)
	if !strings.Contains(export, `{"kind":"end","count":320,"ready":0,"scheduled":300,"dead":20,"left_out":0}`) {
		t.Fatal(export)
	}
	if out := command(to, export, "import", to.queue); !strings.HasPrefix(out, "imported 320,") ||
		!strings.Contains(out, "created 1 group: g\n") {
		t.Fatal(out)
	}
	command(to, "", "dead", "redrive", to.queue, "--all")
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

// A recurrence continues in the queue into which it is imported. The bridge of the original queue has already scheduled
// some occurrences before the export. Each occurrence is delivered once, from either queue, and missed occurrences are
// delivered late. An existing recurrence of the same name is not overwritten.
func TestARecurrenceGoesOnWhereItIsImported(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	from, to := newStack(t, server), newStack(t, server)
	duestream := build(t)
	command := func(s *stack, stdin string, args ...string) (string, error) {
		cmd := exec.Command(duestream, append([]string{"--redis", server.URL(), "--prefix", s.prefix}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		return string(out), err
	}
	var mu sync.Mutex
	seen := map[string]int{}
	count := func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen[m.ID]++
		return nil
	}
	delivered := func(n int) {
		t.Helper()
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= n, fmt.Sprint(len(seen), " delivered")
		})
	}
	// A recurrence begins when it is written. So its first occurrence must still be ahead then, also on a busy machine.
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
	delivered(2)
	if _, err := command(from, "", "queue", "set", from.queue, "--create", "held=true"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { // the queue is held, and no message is in flight
		left := from.number("XLEN", from.keys().Stream)
		return left == 0, fmt.Sprint(left, " entries")
	})
	export, err := command(from, "", "export", from.queue)
	if err != nil || !strings.Contains(export, `"recurrences":2,"left_out":0}`) {
		t.Fatal(export, err)
	}
	stop()
	if out, err := command(to, export, "import", to.queue); !strings.Contains(out, "duplicates 0,") || err != nil {
		t.Fatal(out, err)
	}
	if out, err := command(to, export, "import", to.queue); !strings.Contains(out, "imported 0,") || err == nil {
		t.Fatal(out, err)
	}
	to.bridge(quick())
	to.worker("g", 4, count)
	delivered(n)
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

// Occurrences that were already scheduled at the export are removed with the imported recurrence, also in a queue with
// partitions. An import once put each occurrence into the partition of its ID, where the removal did not look for it.
// The previous release reads this release's export, and this release reads the previous one's.
func TestRemovingAnImportedRecurrenceRemovesItsOccurrences(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	current, previous := build(t), before.Build(t, before.Release)
	command := func(s *stack, program, stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--redis", server.URL(), "--prefix", s.prefix}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
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
	if err := from.schedule1(own, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	replaced := occurrences[0] // an unrelated message with a key has the ID of this occurrence
	if err := from.bold().Cancel(t.Context(), from.queue, replaced); err != nil {
		t.Fatal(err)
	}
	if _, err := from.bold().Schedule(t.Context(), from.queue, nil, bridge.WithID(replaced), bridge.Key(key),
		bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, by := range []struct{ exports, imports string }{{current, current}, {current, previous}, {previous, current}} {
		to := newStack(t, server)
		command(to, current, "", "queue", "partitions", to.queue, "--create", "4")
		export := command(from, by.exports, "", "export", from.queue)
		out := command(to, by.imports, export, "import", to.queue)
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
			command(to, current, "", "recur", "rm", to.queue, name(i))
		}
		redistest.Want(t, "members left in partition 0", to.number("ZCARD", to.keys().Due), int64(0))
		redistest.Want(t, "members left in partition 3", to.number("ZCARD", to.part(3).keys().Due),
			int64(2))
	}
}
