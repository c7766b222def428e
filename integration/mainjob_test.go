package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// TestMainJob runs everything together, as a user would: it pipes NDJSON into the duestream command, beside two bridge
// processes. One group has a worker in Go, a Python script, and a shell script that uses only redis-cli; one message in
// a hundred fails there once. A second group reads the same queue. Each message is acknowledged in both groups, nothing
// is left, and piping the file again schedules nothing. DUESTREAM_TEST_FULL=1 runs it at full size: 100,000 messages
// over 60 s.
func TestMainJob(t *testing.T) {
	t.Parallel() // other tests run while the command is built
	n, spread := 2_000, 2*time.Second
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		n, spread = 100_000, 60*time.Second
	}
	duestream := build(t)
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "everysec")
	s := newStack(t, server)
	s.groups("orders", "audit")
	dir := t.TempDir()
	env := append(os.Environ(), "DUESTREAM_REDIS_URL="+server.URL(), "DUESTREAM_PREFIX="+s.prefix,
		"DUESTREAM_VISIBILITY_TIMEOUT=2s",
		"DUESTREAM_RETRY_MIN=100ms", "DUESTREAM_RETRY_MAX=1s", "DUESTREAM_LOG_LEVEL=warn", "QUEUE="+s.queue, "GROUP=orders", "FAIL_ONCE_PERCENT=1")

	for range 2 {
		s.process(exec.Command(duestream, "serve"), env)
	}
	python, shell := filepath.Join(dir, "python"), filepath.Join(dir, "shell")
	s.process(exec.Command(redistest.PythonWithRedis(t), "../examples/python/worker.py"), append(env, "ACK_LOG="+python))
	s.process(exec.Command("bash", "../examples/shell/worker.sh"), append(env, "ACK_LOG="+shell))
	var mu sync.Mutex
	retried := 0
	goWorker, _ := s.worker("orders", 64, func(_ context.Context, m *bridge.Message) error {
		if m.Attempt == 1 && rand.IntN(100) == 0 {
			mu.Lock()
			retried++
			mu.Unlock()
			return errors.New("failing once, as asked")
		}
		return nil
	})
	s.worker("audit", 64, nil)

	begin := time.Now()
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	for i := range n {
		// 7919 is a prime number, so the delays are spread evenly and are not in the order of the lines.
		id, in := fmt.Sprintf("order-%06d", i), int64(i*7919%n)*spread.Milliseconds()/int64(n)
		if err := lines.Encode(map[string]any{"id": id, "payload": map[string]any{"order": i}, "in_ms": in,
			"headers": map[string]string{"kind": "order"}}); err != nil {
			t.Fatal(err)
		}
		s.ledger.Sent(id, begin.UnixMilli()+in)
	}
	summary := s.pipe(duestream, file.Bytes())
	t.Logf("scheduled %d messages in %s: %s", n, time.Since(begin).Round(time.Millisecond), summary)

	acknowledged := map[string]int{}
	redistest.Eventually(t, spread+90*time.Second, func() (bool, string) {
		if ok, left := s.empty("orders", "audit"); !ok {
			return false, left
		}
		acknowledged = map[string]int{"go": int(goWorker.Stats().Acknowledged)}
		for name, path := range map[string]string{"python": python, "shell": shell} {
			acknowledged[name] = s.readLog("orders", path)
		}
		r := s.ledger.Summary("orders", "audit")
		return r.Lost == 0, fmt.Sprintf("%+v, missing: %v", r, s.ledger.Missing("orders", 5))
	})
	took := time.Since(begin)
	s.ledger.Check(t, "orders", "audit")
	if total := acknowledged["go"] + acknowledged["python"] + acknowledged["shell"]; total != n {
		t.Errorf("%d acknowledgements of %d messages", total, n)
	}
	for name, count := range acknowledged {
		if count == 0 {
			t.Errorf("the %s worker got nothing", name)
		}
	}
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	again := s.pipe(duestream, file.Bytes())
	if ok, left := s.empty("orders", "audit"); !ok {
		t.Errorf("piping the file again scheduled something: %s", left)
	}
	t.Logf("%d messages due over %s, 2 bridges, 3 workers in one group and 1 in another: all acknowledged after %s; by worker: "+
		"%v (of the Go worker's, %d failed once)",
		n, spread, took.Round(time.Millisecond), acknowledged, retried)
	t.Logf("the same file again: %s", again)
}

// process runs a child process until the test ends.
func (s *stack) process(cmd *exec.Cmd, env []string) {
	s.t.Helper()
	redistest.Process(s.t, cmd, env)
}

// pipe sends NDJSON through `duestream schedule`, and returns its output.
func (s *stack) pipe(duestream string, ndjson []byte) string {
	s.t.Helper()
	return strings.TrimSpace(s.mustRun(duestream, string(ndjson), "schedule", s.queue, "--file", "-", "--json"))
}

// readLog reads the log of an example's worker, which has a line "ID attempt entry" for each acknowledged message. It
// records the lines that it has not read before as deliveries in the ledger, and returns the number of all lines.
func (s *stack) readLog(group, path string) int {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	count := 0
	for lines := bufio.NewScanner(file); lines.Scan(); count++ {
		cells := strings.Fields(lines.Text())
		if len(cells) != 3 {
			s.t.Fatalf("%s: line %q", path, lines.Text())
		}
		if count >= s.logged[path] {
			s.ledger.Delivered(group, cells[0], lua.EntryTime(cells[2]).UnixMilli(), 0)
			s.logged[path] = count + 1
		}
	}
	return count
}
