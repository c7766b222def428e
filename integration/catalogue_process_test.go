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

// caseChild makes this test binary a worker that misbehaves: "poison" dies of the message with that name, "held" does
// not return from its handlers.
const caseChild = "DUESTREAM_TEST_CASE_CHILD"

// This runs before the tests, because a child has none to run.
func init() {
	if part := os.Getenv(caseChild); part != "" {
		os.Exit(runCaseChild(part))
	}
}

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
			if m.ID == "poison" {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
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

// misbehaving starts such a worker. book is the file that it writes to.
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

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// A message that kills its worker is delivered as often as its attempts allow, and then becomes a dead letter with
// the reason. No other message is affected.
func poisonKillsItsWorker(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	policy := quick()
	policy.MaxAttempts = 3
	s.bridge(policy)
	book := filepath.Join(t.TempDir(), "book")
	s.schedule(20, "fine-", within(0))
	if _, err := s.client.Schedule(context.Background(), s.queue, []byte("x"), bridge.WithID("poison")); err != nil {
		t.Fatal(err)
	}
	s.schedule(20, "later-", within(0))
	died, gone := 0, make(chan error, 1)
	start := func() *exec.Cmd {
		cmd := s.misbehaving("poison", book)
		go func() { gone <- cmd.Wait() }()
		return cmd
	}
	cmd := start()
	defer func() {
		_ = cmd.Process.Kill()
		<-gone
	}()
	redistest.Eventually(t, 40*time.Second, func() (bool, string) {
		select {
		case <-gone:
			died++
			cmd = start()
		default:
		}
		dead := s.number("XLEN", s.keys().Dead)
		return dead == 1, fmt.Sprint(dead, " dead letters, died ", died)
	})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		s.readLog("g", book)
		if r := s.ledger.Summary("g"); r.Lost > 0 {
			return false, r.String()
		}
		return s.empty("g")
	})
	s.ledger.Check(t, "g")
	letters, err := s.raw("XRANGE", s.keys().Dead, "-", "+").AsXRange()
	if err != nil || len(letters) != 1 {
		t.Fatal(letters, err)
	}
	f := letters[0].FieldValues
	if f["id"] != "poison" || f["reason"] != lua.ReasonVisibilityTimeout || f["attempt"] != "3" || f["group"] != "g" ||
		died != 3 {
		t.Errorf("killed %d workers; dead letter %v", died, f)
	}
}

var zombieMessages = []string{"heeds", "acknowledges", "fails", "buries"}

// A worker process is stopped for longer than its visibility timeout, and continues. By then its messages belong to
// another worker. The results of its handlers have no effect, whether success, failure or dead letter, and it is told
// so.
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
	if r := s.settled(20*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%s: the late effects of the stopped worker counted", r)
	}
	if dead := s.number("XLEN", s.keys().Dead); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
}

// A bridge process is stopped for longer than its heartbeat timeout. Other bridges take over its queues within
// seconds. It recovers when it continues, and nothing is drained twice.
func TestBridgeStoppedPastItsHeartbeatIsReplaced(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	stopped := &child{part: "bridge"}
	f := &family{t: t, s: s, dir: t.TempDir()}
	f.start(stopped)
	defer f.kill(stopped)
	s.bridge(quick())
	bridges := func(n int64) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return s.alive() == n,
				fmt.Sprint(s.alive(), " bridges")
		})
	}
	bridges(2)
	const queues, each = 16, 20
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
	// drained records every entry of every stream in the ledger. Nobody reads or acknowledges here.
	drained := func(want int) (latest time.Duration) {
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
	drained(queues * each)
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	phase("stopped", 500*time.Millisecond)
	t.Logf("after the stop: at most %s late", drained(2*queues*each))
	bridges(1)
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	phase("back", 500*time.Millisecond)
	bridges(2)
	drained(3 * queues * each)
	if r := s.ledger.Check(t, "stream"); r.Duplicated != 0 {
		t.Errorf("%s: something was drained twice", r)
	}
}
