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

// Variables that make this test binary a part of duestream in a process of its own, to be killed.
const (
	childPart   = "DUESTREAM_TEST_CHILD" // "bridge", "worker", "fated", "fixed", "keyed", "hanging", "stubborn" or "producer"
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
	run := func(context.Context) error { return errors.New("unknown part") }
	switch part {
	case "bridge":
		b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: os.Getenv(childPrefix), Defaults: quick()})
		if err != nil {
			return 1
		}
		run = b.Run
	case "worker":
		file, err := os.OpenFile(os.Getenv(childLedger), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return 1
		}
		w, err := bridge.NewWorker(bridge.WorkerConfig{
			Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue), Group: os.Getenv(childGroup),
			Handler: func(_ context.Context, m *bridge.Message) error {
				_, err := fmt.Fprintf(file, "%s %s %d %d\n", m.Group, m.ID, lua.EntryTime(m.EntryID).UnixMilli(),
					m.Due.UnixMilli())
				return err
			},
		})
		if err != nil {
			return 1
		}
		run = w.Run
	case "fated":
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue),
			Group: os.Getenv(childGroup), Handler: fated(os.Getenv(childLedger))})
		if err != nil {
			return 1
		}
		run = w.Run
	case "fixed":
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue),
			Group: os.Getenv(childGroup), Consumer: "worker-0", Handler: func(context.Context, *bridge.Message) error {
				os.Exit(3)
				return nil
			}})
		if err != nil {
			return 1
		}
		run = w.Run
	case "keyed":
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue),
			Group: os.Getenv(childGroup), Handler: keyedHandler(os.Getenv(childLedger), longestOfKeyed)})
		if err != nil {
			return 1
		}
		run = w.Run
	case "hanging":
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue),
			Group: os.Getenv(childGroup), Handler: hangingHandler(os.Getenv(childLedger)), HandlerTimeout: 150 * time.Millisecond,
			AbandonAfter: 150 * time.Millisecond, MaxAbandoned: 1000})
		if err != nil {
			return 1
		}
		run = w.Run
	case "stubborn":
		w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: os.Getenv(childPrefix), Queue: os.Getenv(childQueue),
			Group: os.Getenv(childGroup), Handler: stubbornHandler(os.Getenv(childLedger))})
		if err != nil {
			return 1
		}
		run = w.Run
	case "producer":
		run = func(ctx context.Context) error { return produceForever(ctx, r) }
	}
	if run(ctx) != nil {
		return 1
	}
	return 0
}

// family holds child processes that die and are replaced.
type family struct {
	t        *testing.T
	s        *stack
	dir      string
	children []*child
}

type child struct {
	part, group string
	cmd         *exec.Cmd
}

// newFamily starts processes. They end with the test.
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

// G1 under kill -9: bridges, workers and the server die at random times and come back. No accepted message is lost,
// and none is early. The seed is printed; DUESTREAM_TEST_SEED repeats a run.
func TestG1KilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	seed, _ := strconv.ParseUint(os.Getenv("DUESTREAM_TEST_SEED"), 10, 64)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

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
				bridge.In(within(time.Second)(i)))
			switch {
			case err == nil:
				s.ledger.Sent(id, receipt.Due.UnixMilli())
			case errors.Is(err, bridge.ErrDuplicate):
				s.ledger.Sent(id, 0)
			default:
				s.ledger.MaybeSent(id, 0)
			}
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

// audit reads the workers' ledgers from the begin, into a new set of deliveries.
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
				continue // a line that a kill cut short was not acknowledged either
			}
			at, _ := strconv.ParseInt(cells[2], 10, 64)
			due, _ := strconv.ParseInt(cells[3], 10, 64)
			f.s.ledger.Delivered(cells[0], cells[1], at, due)
		}
		file.Close()
	}
}

// The bug: a message killed its worker, which started again under the same name at once. Each start took the entry
// over and extended it, so the message was delivered for ever as attempt 1, and no crash was counted.
func TestMessageThatKillsANamedWorkerEndsAsADeadLetter(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, c := range []struct {
		name    string
		crashes int
		want    string // reason and attempt
	}{{"by attempts", 0, "visibility_timeout 3"}, {"by crashes", 2, "crashes 1"}} {
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
