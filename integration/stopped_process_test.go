package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The environment variable caseChild makes this test binary a worker that misbehaves, instead of running the tests.
// With "held", its handlers do not return until they are released or, for the message "heeds", their context is
// cancelled.
const caseChild = "DUESTREAM_TEST_CASE_CHILD"

// init runs the worker before the tests would run, because the child process has no tests to run.
func init() {
	if part := os.Getenv(caseChild); part != "" {
		os.Exit(runCaseChild(part))
	}
}

// runCaseChild runs the worker. It writes what happens to its book, the file in childLedger.
func runCaseChild(part string) int {
	ctx := context.Background()
	r, err := bridge.DialWait(ctx, os.Getenv(childURL), slog.New(slog.DiscardHandler))
	if err != nil {
		return 1
	}
	book, err := os.OpenFile(os.Getenv(childLedger), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 1
	}
	cfg := bridge.WorkerConfig{
		Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue), Group: "g", Concurrency: 1,
		Handler: func(_ context.Context, m *bridge.Message) error {
			_, err := fmt.Fprintf(book, "%s %d %s\n", m.ID, m.Attempt, m.EntryID)
			return err
		},
	}
	if part == "held" {
		cfg.Concurrency = len(zombieMessages)
		cfg.Settled = func(m *bridge.Message, how bridge.Settlement) { fmt.Fprintf(book, "settled %s %s\n", m.ID, how) }
		cfg.Handler = func(ctx context.Context, m *bridge.Message) error {
			fmt.Fprintf(book, "started %s\n", m.ID)
			if m.ID == "heeds" {
				<-ctx.Done()
				fmt.Fprintf(book, "cause %s %t\n", m.ID, errors.Is(context.Cause(ctx), bridge.ErrLost))
				return ctx.Err()
			}
			for { // ignores its context until it is released
				if _, err := os.Stat(os.Getenv(childLedger) + ".release"); err == nil {
					break
				}
				<-time.After(10 * time.Millisecond)
			}
			switch m.ID {
			case "fails":
				return errors.New("too late")
			case "buries":
				return bridge.DeadLetter(errors.New("too late"))
			}
			return nil
		}
	}
	w, err := bridge.NewWorker(cfg)
	if err != nil || w.Run(ctx) != nil {
		return 1
	}
	return 0
}

// misbehaving starts such a worker in a child process. book is the file that the worker writes to.
func (s *stack) misbehaving(part, book string) *exec.Cmd {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), caseChild+"="+part, childURL+"="+s.server.URL(), childPrefix+"="+s.prefix,
		childQueue+"="+s.queue,
		childLedger+"="+book)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return cmd
}

// end kills a child process.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// zombieMessages are the IDs of the messages that the stopped worker holds. The ID says what its handler does: it heeds
// the end of its context, acknowledges, fails, or asks for a dead letter ("buries").
var zombieMessages = []string{"heeds", "acknowledges", "fails", "buries"}

// A worker process is stopped for longer than its visibility timeout, so that its messages go to another worker, and
// then continues. The results of its handlers have no effect, whether success, failure or dead letter, and the worker
// is told so: contexts are cancelled with ErrLost, and Settled reports Lost.
func TestWorkerStoppedPastItsVisibilityTimeoutIsTold(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(quick())
	book := filepath.Join(t.TempDir(), "book")
	zombie := s.misbehaving("held", book)
	defer end(zombie)
	var batch []bridge.NewMessage
	for _, id := range zombieMessages {
		batch = append(batch, bridge.NewMessage{ID: id})
	}
	s.send(batch)
	// wrote returns a condition for Eventually: the worker has written these lines.
	wrote := func(lines ...string) func() (bool, string) {
		return func() (bool, string) {
			text, _ := os.ReadFile(book)
			for _, line := range lines {
				if !strings.Contains(string(text), line+"\n") {
					return false, fmt.Sprintf("no %q in:\n%s", line, text)
				}
			}
			return true, ""
		}
	}
	var started, settled []string
	for _, id := range zombieMessages {
		started, settled = append(started, "started "+id), append(settled, "settled "+id+" lost")
	}
	redistest.Eventually(t, 20*time.Second, wrote(started...))
	if err := zombie.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w, _ := s.worker("g", 4, nil)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == uint64(len(zombieMessages)), fmt.Sprintf("%+v", w.Stats())
	})
	if err := zombie.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 20*time.Second, wrote("cause heeds true"))
	if err := os.WriteFile(book+".release", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 20*time.Second, wrote(settled...))
	if r := s.awaitSettled(20*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%s: the late effects of the stopped worker counted", r)
	}
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
}

// A bridge process is stopped for longer than its heartbeat timeout. Another bridge takes over its queues within
// seconds. When the stopped bridge continues, it becomes a member again, and nothing is drained twice.
func TestBridgeStoppedPastItsHeartbeatIsReplaced(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	stopped := &child{part: "bridge"}
	f := &family{t: t, s: s, dir: t.TempDir()}
	f.start(stopped)
	defer f.kill(stopped)
	s.bridge(quick())
	awaitLive := func(n int64) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return s.liveBridges() == n,
				fmt.Sprint(s.liveBridges(), " bridges")
		})
	}
	awaitLive(2)
	const queues, each = 16, 20
	// phase schedules messages in all queues. Their IDs begin with the name.
	phase := func(name string, delay time.Duration) {
		for q := range queues {
			for i := range each {
				id := fmt.Sprintf("%s-%d-%d", name, q, i)
				receipt, err := s.client.Schedule(context.Background(), fmt.Sprint(s.queue, ".", q), nil, bridge.WithID(id),
					bridge.In(delay))
				if err != nil {
					t.Fatal(err)
				}
				s.ledger.Sent(id, receipt.Due.UnixMilli())
			}
		}
	}
	// awaitDrained waits until all messages are in the streams, records each entry in the ledger, and returns the
	// lateness of the latest one. No worker reads here, so all entries stay.
	awaitDrained := func(want int) (latest time.Duration) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			s.ledger.ForgetDeliveries()
			latest = 0
			for q := range queues {
				entries, err := s.raw("XRANGE", lua.NewKeys(s.prefix, fmt.Sprint(s.queue, ".", q)).Stream, "-",
					"+").AsXRangeSlices()
				if err != nil {
					return false, err.Error()
				}
				for _, e := range entries {
					m := lua.ParseEntry(e.ID, e.FieldValues)
					s.ledger.Delivered("stream", m.ID, lua.EntryTime(e.ID).UnixMilli(), m.Due.UnixMilli())
					latest = max(latest, lua.EntryTime(e.ID).Sub(m.Due))
				}
			}
			r := s.ledger.Summary("stream")
			return r.Lost == 0 && r.Sent == want, r.String()
		})
		return latest
	}
	phase("together", 0)
	awaitDrained(queues * each)
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	phase("stopped", 500*time.Millisecond)
	t.Logf("after the stop: at most %s late", awaitDrained(2*queues*each))
	awaitLive(1)
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	phase("back", 500*time.Millisecond)
	awaitLive(2)
	awaitDrained(3 * queues * each)
	if r := s.ledger.Check(t, "stream"); r.Duplicated != 0 {
		t.Errorf("%s: something was drained twice", r)
	}
}
