package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// upgradeSteps returns the lines of all code blocks of docs/operations/upgrade.md. A line is a command ("$ duestream
// …") or a comment ("# …") that asks the reader to do something.
func upgradeSteps(t *testing.T) (steps []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/operations/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```") {
		if i%2 == 1 {
			_, lines, _ := strings.Cut(block, "\n")
			steps = append(steps, strings.Split(strings.TrimSpace(lines), "\n")...)
		}
	}
	return steps
}

// The steps of docs/operations/upgrade.md, from the previous release to this one and back, work as documented while
// messages with and without ordering keys, and a recurrence, are in use. The test executes the commands of the page,
// and does what its comments ask for. Every message is delivered, and no occurrence is missing.
func TestUpgradeAndRollbackAsDocumented(t *testing.T) {
	t.Parallel()
	oldProgram, newProgram := before.Build(t, before.Release), build(t)
	s := newStack(t, redistest.Own(t, "--appendonly", "yes", "--maxmemory", "1gb"))
	s.queue = "emails"
	s.groups("g")
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, AllowOldBridges: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s.client = client

	hold, held := make(chan struct{}), make(chan struct{})
	s.worker("g", 20, func(ctx context.Context, m *bridge.Message) error {
		if m.ID != "hold" {
			return nil
		}
		close(held)
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	occurrences := ticks(t, s)
	batch := func(name string) {
		t.Helper()
		var some []bridge.NewMessage
		for i := range 40 {
			some = append(some, bridge.NewMessage{ID: fmt.Sprint(name, "-", i), Delay: time.Duration(i) * 50 * time.Millisecond})
			some = append(some, bridge.NewMessage{ID: fmt.Sprint(name, "-keyed-", i), Key: fmt.Sprint("k", i%3),
				Delay: time.Duration(i) * 50 * time.Millisecond})
		}
		s.send(some)
	}
	run := func(command ...string) (string, int) {
		out, complaints, code := s.runWithInput(newProgram, "", command...)
		return out + complaints, code
	}
	parked := func() int64 { return s.number("ZCOUNT", s.keys().Due, lua.ParkedFrom, lua.ParkedTo) }

	old := s.serve(t, oldProgram)
	s.awaitBridges(1)
	s.send([]bridge.NewMessage{{ID: "hold", Key: "k0"}})
	<-held
	batch("before")
	var bridges []*releaseProcess
	does := map[string]func(){ // by comment of the page: what it asks for
		"Start bridges of the new release beside the old ones, and stop the old ones.": func() {
			bridges = []*releaseProcess{s.serve(t, newProgram), s.serve(t, newProgram)}
			s.awaitBridges(3)
			if out, _ := run("doctor"); !strings.Contains(out, "D210") {
				t.Errorf("doctor does not name bridges of two levels:\n%s", out)
			}
			old.stop()
			s.awaitBridges(2)
		},
		"Take producers and workers back to the old release, and stop the bridges of the new one.": func() {
			batch("after")
			redistest.Eventually(t, 30*time.Second, func() (bool, string) { return parked() > 0, "no message waits for its key" })
			if out, code := run("queue", "rollback", "emails"); code == 0 {
				t.Errorf("a queue is rolled back beside new bridges:\n%s", out)
			}
			for _, b := range bridges {
				b.stop()
			}
			s.awaitBridges(0)
		},
		"Start bridges of the old release.": func() {
			if n := parked(); n != 0 {
				t.Errorf("%d messages wait for a key after the rollback", n)
			}
			old = s.serve(t, oldProgram)
			s.awaitBridges(1)
		},
	}
	for _, step := range upgradeSteps(t) {
		if said, ok := strings.CutPrefix(step, "# "); ok {
			if does[said] == nil {
				t.Fatalf("the page says %q, and this test does not know how", said)
			}
			does[said]()
			delete(does, said)
			continue
		}
		words := strings.Fields(step)
		if len(words) < 3 || words[0] != "$" || words[1] != "duestream" {
			t.Fatalf("the page has a line that is no command: %q", step)
		}
		out, code := run(words[2:]...)
		if code != 0 && words[2] != "doctor" {
			t.Errorf("%s ends with %d:\n%s", step, code, out)
		}
		for _, finding := range []string{"D201", "D210", "D314", "D601"} {
			if strings.Contains(out, finding) {
				t.Errorf("%s finds %s:\n%s", step, finding, out)
			}
		}
	}
	for said := range does {
		t.Errorf("the page does not say %q", said)
	}
	close(hold)
	batch("rolled back")
	s.awaitSettled(90*time.Second, "g")
	occurrences()
}

// ticks starts a recurrence of one second in a queue of its own. The returned function checks that no occurrence is
// missing between the first and the last that were delivered.
func ticks(t *testing.T, s *stack) (check func()) {
	t.Helper()
	var mu sync.Mutex
	seen := map[int64]bool{}
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis, Prefix: s.prefix, Queue: "ticks", Group: "g",
		Handler: func(_ context.Context, m *bridge.Message) error {
			_, at, _ := strings.Cut(m.ID, "@")
			ms, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			seen[ms] = true
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	s.run("worker of ticks", w.Run)
	if _, err := s.client.Recur(t.Context(), bridge.Recurrence{Queue: "ticks", Name: "tick", Every: time.Second}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		var times []int64
		// Bridges plan up to 20 s ahead. So an occurrence 25 s from now was planned by bridges that run after the last
		// step.
		until := time.Now().Add(25 * time.Second).UnixMilli()
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			times = slices.Sorted(maps.Keys(seen))
			return len(times) > 0 && times[len(times)-1] > until, fmt.Sprintf("%d occurrences were delivered", len(times))
		})
		for i := 1; i < len(times); i++ {
			if times[i]-times[i-1] != 1000 {
				t.Errorf("after %d comes %d", times[i-1], times[i])
			}
		}
	}
}
