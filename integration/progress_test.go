package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// stepsOfMessage is the number of steps that the work on a message of steppingHandler has.
const stepsOfMessage = 300

// steppingHandler works in steps, and stores the number of the last one. It writes a line at the beginning of each
// attempt, before each step, after each stored step, and at the end.
func steppingHandler(path string) bridge.Handler {
	record := appendTo(path)
	return func(ctx context.Context, m *bridge.Message) error {
		last, _ := strconv.Atoi(string(m.Progress))
		if err := record("begins %d", last); err != nil {
			return err
		}
		for step := last + 1; step <= stepsOfMessage; step++ {
			if err := record("does %d", step); err != nil {
				return err
			}
			if err := m.SaveProgress(ctx, []byte(strconv.Itoa(step))); err != nil {
				return err
			}
			if err := record("saved %d", step); err != nil {
				return err
			}
		}
		return record("ends %d", stepsOfMessage)
	}
}

// Progress that SaveProgress stored is there for the next attempt, also if kill -9 ends the worker, the bridge or the
// server (which writes each command to its disk) at any moment. So each step is done, and a step is done again only if
// the process was killed before SaveProgress returned. In the end nothing of the progress is left.
func TestProgressSurvivesKilledProcesses(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStack(t, server)
	attempts, visibility := 1000, 200*time.Millisecond
	if err := s.operator().WritePolicy(t.Context(), s.queue, "g",
		admin.PolicyUpdate{MaxAttempts: &attempts, VisibilityTimeout: &visibility}); err != nil {
		t.Fatal(err)
	}
	s.groups("g")
	f := newFamily(t, s, child{part: "bridge"}, child{part: "stepping", group: "g"})
	s.schedule(1, "long", func(int) time.Duration { return 0 })
	lines := func() []string {
		text, _ := os.ReadFile(filepath.Join(f.dir, "ledger-g"))
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	kills, killedAt := map[string]int{}, 0
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		all := lines()
		if last := all[len(all)-1]; strings.HasPrefix(last, "ends") {
			return s.empty("g")
		}
		if len(all) < killedAt+20+random.IntN(100) {
			return false, fmt.Sprintf("%d lines, the last one %q, after kills of %v", len(all), all[len(all)-1], kills)
		}
		killedAt = len(all)
		switch c := f.children[random.IntN(2)]; {
		case random.IntN(5) == 0:
			server.Kill()
			server.Start()
			kills["server"]++
		default:
			f.kill(c)
			f.start(c)
			kills[c.part]++
		}
		return false, ""
	})
	t.Logf("kills: %v", kills)
	done, saved, begun := map[int]int{}, 0, 0
	for _, line := range lines() {
		word, number, _ := strings.Cut(line, " ")
		step, _ := strconv.Atoi(number)
		switch word {
		case "begins":
			begun++
			if step < saved || step > saved+1 {
				t.Errorf("an attempt begins after step %d, and step %d was saved last", step, saved)
			}
		case "does":
			done[step]++
		case "saved":
			saved = step
		}
	}
	again := 0
	for step := 1; step <= stepsOfMessage; step++ {
		if done[step] == 0 {
			t.Errorf("step %d was not done", step)
		}
		again += max(0, done[step]-1)
	}
	if begun < 2 || again > begun {
		t.Errorf("%d attempts, and %d steps were done again", begun, again)
	}
	redistest.Want(t, "progress that is left", s.number("EXISTS", s.keys().Progress), int64(0))
}
