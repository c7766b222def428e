package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// These environment variables make this test binary run one part of duestream instead of the tests, so that a test can
// kill that part as a process.
const (
	childPart   = "DUESTREAM_TEST_CHILD" // a part, as runOf names it
	childURL    = "DUESTREAM_TEST_CHILD_URL"
	childPrefix = "DUESTREAM_TEST_CHILD_PREFIX"
	childQueue  = "DUESTREAM_TEST_CHILD_QUEUE"
	childGroup  = "DUESTREAM_TEST_CHILD_GROUP"
	childLedger = "DUESTREAM_TEST_CHILD_LEDGER"
)

// runChild runs a part. Workers write each delivery to their ledger file before they acknowledge.
func runChild(part string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r, err := bridge.DialWait(ctx, os.Getenv(childURL), slog.New(slog.DiscardHandler))
	if err != nil {
		return 1
	}
	defer r.Close()
	run, err := runOf(part, r)
	if err != nil || run(ctx) != nil {
		return 1
	}
	return 0
}

// runOf returns the Run function of a part.
func runOf(part string, r *bridge.Redis) (func(context.Context) error, error) {
	prefix, ledger := os.Getenv(childPrefix), os.Getenv(childLedger)
	worker := bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: os.Getenv(childQueue), Group: os.Getenv(childGroup)}
	switch part {
	case "bridge":
		b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, Defaults: quick()})
		if err != nil {
			return nil, err
		}
		return b.Run, nil
	case "producer":
		return func(ctx context.Context) error { return produceForever(ctx, r) }, nil
	case "worker":
		worker.Handler = recordingHandler(ledger)
	case "fated":
		worker.Handler = fated(ledger)
	case "fixed": // a worker with a fixed consumer name, which dies of every message
		worker.Consumer = "worker-0"
		worker.Handler = func(context.Context, *bridge.Message) error {
			os.Exit(3)
			return nil
		}
	case "keyed":
		worker.Handler = keyedHandler(ledger, longestOfKeyed)
	case "hanging":
		worker.Handler = hangingHandler(ledger)
		worker.HandlerTimeout, worker.AbandonAfter = 150*time.Millisecond, 150*time.Millisecond
		worker.MaxAbandoned = 1000
	case "stepping":
		worker.Handler = steppingHandler(ledger)
	case "stubborn":
		worker.Handler = hangingHandler(ledger)
	default:
		return nil, errors.New("unknown part")
	}
	w, err := bridge.NewWorker(worker)
	if err != nil {
		return nil, err
	}
	return w.Run, nil
}

// appendTo opens a ledger file. It returns a function that appends a line in one write, so that a kill tears no line.
func appendTo(path string) func(format string, args ...any) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	return func(format string, args ...any) error {
		_, err := fmt.Fprintf(file, format+"\n", args...)
		return err
	}
}

// recordingHandler writes a line for each delivery, with its group, ID, entry time and due time.
func recordingHandler(path string) bridge.Handler {
	record := appendTo(path)
	return func(_ context.Context, m *bridge.Message) error {
		return record("%s %s %d %d", m.Group, m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
	}
}

// hangingHandler writes a line for each call, and hangs for ever if the message's ID says so.
func hangingHandler(path string) bridge.Handler {
	record := appendTo(path)
	return func(_ context.Context, m *bridge.Message) error {
		if err := record("%s %d", m.ID, m.Attempt); err != nil {
			return err
		}
		if strings.HasPrefix(m.ID, "hangs-") {
			select {}
		}
		return nil
	}
}

// family holds child processes that a test kills and starts again.
type family struct {
	t        *testing.T
	s        *stack
	dir      string // where workers write their ledgers: a file "ledger-<group>" for each group
	children []*child
}

// child is a process that runs one part of duestream.
type child struct {
	part, group string // part: a value of the variable childPart
	cmd         *exec.Cmd
}

// newFamily starts child processes. They are killed when the test ends.
func newFamily(t *testing.T, s *stack, children ...child) *family {
	t.Helper()
	f := &family{t: t, s: s, dir: t.TempDir()}
	t.Cleanup(func() {
		for _, c := range f.children {
			f.kill(c)
		}
	})
	for _, c := range children {
		f.children = append(f.children, &c)
		f.start(&c)
	}
	return f
}

func (f *family) start(c *child) {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	c.cmd = exec.Command(self)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Env = append(os.Environ(), childPart+"="+c.part, childURL+"="+f.s.server.URL(), childPrefix+"="+f.s.prefix,
		childQueue+"="+f.s.queue, childGroup+"="+c.group, childLedger+"="+filepath.Join(f.dir, "ledger-"+c.group))
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *family) kill(c *child) {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// seeded returns a source of random numbers, and logs its seed. DUESTREAM_TEST_SEED sets the seed, to repeat a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed, _ := strconv.ParseUint(os.Getenv("DUESTREAM_TEST_SEED"), 10, 64)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// No accepted message is lost (guarantee G1), and none is early, while bridges, workers and the server are killed by
// kill -9 at random times and started again. DUESTREAM_TEST_SEED repeats a run.
func TestG1KilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	random := seeded(t)

	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStack(t, server)
	s.groups("a", "b")
	f := newFamily(t, s, child{part: "bridge"}, child{part: "bridge"}, child{part: "worker", group: "a"},
		child{part: "worker", group: "a"}, child{part: "worker", group: "b"})

	const n = 6000
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for i := range n {
			id := fmt.Sprint("m", i)
			receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), bridge.WithID(id),
				bridge.In(spreadOver(time.Second)(i)))
			s.record(id, receipt, err)
		}
	}()
	kills := map[string]int{}
	for producing := true; producing; {
		select {
		case <-produced:
			producing = false
		case <-time.After(time.Duration(50+random.IntN(400)) * time.Millisecond): // time until the next kill
		}
		if random.IntN(8) == 0 {
			server.Kill()
			server.Start()
			kills["server"]++
			continue
		}
		c := f.children[random.IntN(len(f.children))]
		f.kill(c)
		f.start(c)
		kills[c.part]++
	}
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		f.audit("a", "b")
		if r := s.ledger.Summary("a", "b"); r.Lost > 0 {
			return false, fmt.Sprintf("%+v, missing in a: %v, in b: %v", r, s.ledger.Missing("a", 5), s.ledger.Missing("b", 5))
		}
		return s.empty("a", "b")
	})
	t.Logf("kills: %v", kills)
	s.ledger.Check(t, "a", "b")
}

// audit reads the ledger files of these groups from their beginning. What it reads replaces the deliveries that are in
// the stack's ledger.
func (f *family) audit(groups ...string) {
	f.s.ledger.ForgetDeliveries()
	for _, group := range groups {
		file, err := os.Open(filepath.Join(f.dir, "ledger-"+group))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			cells := strings.Fields(lines.Text())
			if len(cells) != 4 {
				continue // a kill cut this line short, so the worker did not acknowledge the message
			}
			at, _ := strconv.ParseInt(cells[2], 10, 64)
			due, _ := strconv.ParseInt(cells[3], 10, 64)
			f.s.ledger.Delivered(cells[0], cells[1], at, due)
		}
		file.Close()
	}
}

// A message that kills its worker becomes a dead letter, also if the worker starts again at once under the same
// consumer name. Regression: each start took the entry over and extended it, so the message was delivered as attempt 1
// for ever, and no crash was counted.
func TestMessageThatKillsANamedWorkerEndsAsADeadLetter(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, c := range []struct {
		name    string
		crashes int
		want    string // reason and attempt of the dead letter
	}{
		{"by attempts", 0, "visibility_timeout 3"}, // three attempts, and no limit for crashes
		{"by crashes", 2, "crashes 1"},             // a limit of two crashes, which is reached first
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, server)
			s.bridge(quick())
			attempts, visibility := 3, 400*time.Millisecond
			if err := s.operator().WritePolicy(t.Context(), s.queue, "g", admin.PolicyUpdate{
				MaxAttempts: &attempts, MaxCrashes: &c.crashes, VisibilityTimeout: &visibility}); err != nil {
				t.Fatal(err)
			}
			s.groups("g")
			s.schedule(1, "poison", func(int) time.Duration { return 0 })
			f := &family{t: t, s: s, dir: t.TempDir()}
			worker, exits := &child{part: "fixed", group: "g"}, 0
			f.start(worker)
			defer func() { f.kill(worker) }()
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				var status syscall.WaitStatus
				if pid, _ := syscall.Wait4(worker.cmd.Process.Pid, &status, syscall.WNOHANG, nil); pid > 0 {
					exits++
					f.start(worker)
				}
				return s.number("XLEN", s.keys().Dead) == 1, fmt.Sprint(exits, " workers have exited")
			})
			letters, err := s.raw("XRANGE", s.keys().Dead, "-", "+").AsXRange()
			if err != nil {
				t.Fatal(err)
			}
			fields := letters[0].FieldValues
			redistest.Want(t, "dead letter", fields[lua.FieldReason]+" "+fields[lua.FieldAttempt], c.want)
			redistest.Want(t, "pending", s.number("XLEN", s.keys().Stream), int64(0))
			t.Logf("%d workers exited", exits)
		})
	}
}
