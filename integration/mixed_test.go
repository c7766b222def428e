package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// releaseProcess is the duestream command of any release, running in a process of its own: mostly as a bridge.
type releaseProcess struct {
	t   *testing.T
	cmd *exec.Cmd

	mu       sync.Mutex
	assigned map[string]int // numbers of the last line "queues assigned" in its log
	ended    chan struct{}
}

// serve runs a bridge with the duestream command at this path, of any release.
func (s *stack) serve(t *testing.T, command string) *releaseProcess {
	t.Helper()
	return s.startProgram(t, command, "serve")
}

// startProgram does the same for any command that runs until it is stopped.
func (s *stack) startProgram(t *testing.T, command string, args ...string) *releaseProcess {
	t.Helper()
	b := &releaseProcess{t: t, cmd: exec.Command(command, args...), ended: make(chan struct{})}
	b.cmd.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+s.server.URL(), "DUESTREAM_PREFIX="+s.prefix,
		"DUESTREAM_LOG_FORMAT=json", "DUESTREAM_ANY_SERVER=true")
	var log bytes.Buffer
	out, err := b.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			b.read(lines.Bytes())
			fmt.Fprintln(&log, lines.Text())
		}
		_ = b.cmd.Wait()
	}()
	t.Cleanup(func() {
		b.stop()
		if t.Failed() {
			t.Logf("%s: %.4000s", command, log.String())
		}
	})
	return b
}

// awaitBridges waits until exactly n bridges have a heartbeat.
func (s *stack) awaitBridges(n int64) {
	s.t.Helper()
	redistest.Eventually(s.t, 20*time.Second, func() (bool, string) {
		return s.number("ZCARD", lua.NewGlobals(s.prefix).Bridges) == n, "not all bridges have started"
	})
}

// read takes the numbers out of a log line "queues assigned".
func (b *releaseProcess) read(line []byte) {
	var said struct {
		Msg                                string
		Queues, Partitions, Owned, Bridges int
	}
	if json.Unmarshal(line, &said) != nil || said.Msg != "queues assigned" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.assigned = map[string]int{"partitions": said.Partitions, "owned": said.Owned, "bridges": said.Bridges}
}

// lastAssigned returns a number of the last line "queues assigned": "partitions", "owned" or "bridges".
func (b *releaseProcess) lastAssigned(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.assigned[what]
}

func (b *releaseProcess) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-b.ended:
	case <-time.After(30 * time.Second):
		b.t.Error("a bridge does not stop")
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
}

// Bridges of this release and of older ones agree on the owners of queues: each queue has one owner. The heartbeats of
// this release have a protocol level, which older bridges do not know. A bridge that did not recognize such a heartbeat
// would also serve the queues of the bridge that sent it.
func TestBridgesOfAllReleasesAgreeOnOwners(t *testing.T) {
	t.Parallel()
	now := build(t)
	for _, release := range []string{before.Release, before.Keyless} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, redistest.Shared(t))
			const queues = 40
			names := map[string]lua.Counts{}
			for i := range queues {
				names[fmt.Sprint("q", i)] = lua.Counts{1}
			}
			if _, err := lua.RegisterCounts(t.Context(), s.redis.Client, lua.NewGlobals(s.prefix), names); err != nil {
				t.Fatal(err)
			}
			bridges := []*releaseProcess{s.serve(t, before.Build(t, release)), s.serve(t, now), s.serve(t, now)}
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				owned, agree := 0, true
				for _, b := range bridges {
					owned += b.lastAssigned("owned")
					agree = agree && b.lastAssigned("bridges") == len(bridges) && b.lastAssigned("partitions") == queues
				}
				return agree && owned == queues, fmt.Sprintf("%d queues are owned; agree: %v", owned, agree)
			})
			for i, b := range bridges {
				if b.lastAssigned("owned") == 0 || b.lastAssigned("owned") == queues {
					t.Errorf("bridge %d owns %d of %d queues", i, b.lastAssigned("owned"), queues)
				}
			}
		})
	}
}

// While an older bridge runs, a write that it does not support is refused, with an error that names the bridge. Other
// writes are accepted. When the older bridge is gone, all writes are accepted.
func TestWritesThatAnOldBridgeDoesNotServeAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	old := s.serve(t, before.Build(t, before.Keyless))
	s.awaitBridges(1)
	op := s.operator()
	rate, limit := bridge.Rate("10/s"), 100
	// writes tries the writes that an older bridge does not support, and returns their errors.
	writes := func(client *bridge.Client, op *admin.Admin) map[string]error {
		_, keyed := client.Schedule(t.Context(), s.queue, nil, bridge.WithID("keyed"), bridge.Key("k"), bridge.In(time.Hour))
		recurrence := bridge.Recurrence{Queue: s.queue, Name: "tick", Every: time.Hour}
		_, recurs := client.Recur(t.Context(), recurrence)
		_, operated := op.Recur(t.Context(), recurrence)
		_, cancelled := client.CancelRunning(t.Context(), s.queue, "", "running")
		return map[string]error{"a message with a key": keyed, "a recurrence": recurs, "a recurrence of an operator": operated,
			"a cancellation of what runs": cancelled}
	}
	for what, err := range writes(s.client, op) {
		var refused *bridge.OldBridgeError
		if !errors.Is(err, bridge.ErrOldBridge) || !errors.As(err, &refused) || refused.Bridge.PID != old.cmd.Process.Pid {
			t.Errorf("%s beside an older bridge: %v", what, err)
		}
	}
	for what, u := range map[string]admin.PolicyUpdate{"a rate": {Rate: &rate}, "a ready limit": {ReadyLimit: &limit}} {
		if err := op.WritePolicy(t.Context(), s.queue, "", u); !errors.Is(err, bridge.ErrOldBridge) {
			t.Errorf("%s beside an older bridge: %v", what, err)
		}
	}
	moved := scheduler.Gather(t.Context(), s.redis.Client, s.prefix, s.queue, 7)
	if !errors.Is(moved, bridge.ErrOldBridge) {
		t.Errorf("moves between partitions beside an older bridge: %v", moved)
	}
	for _, key := range s.keys().All() {
		if n := s.number("EXISTS", key); n != 0 {
			t.Errorf("%s was written", key)
		}
	}
	results, err := s.client.ScheduleBatch(t.Context(), s.queue, []bridge.NewMessage{{ID: "plain"}, {ID: "keyed", Key: "k"}})
	if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, bridge.ErrOldBridge) {
		t.Errorf("in a batch: %+v %v", results, err)
	}
	allowing, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, AllowOldBridges: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = allowing.Close() })
	for what, err := range writes(allowing, op.AllowOldBridges()) {
		if err != nil {
			t.Errorf("%s, with AllowOldBridges: %v", what, err)
		}
	}
	old.stop()
	s.bridge(quick())
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.client.Schedule(t.Context(), s.queue, nil, bridge.Key("k"), bridge.In(time.Hour))
		return err == nil, fmt.Sprint(err)
	})
}

// A bridge also plans the recurrences of queues whose owner is an older bridge that does not support recurrences.
// Regression: nobody planned them, so they stopped for good.
func TestRecurrencesOfAnOldOwnerArePlanned(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	const queues = 10
	old := s.serve(t, before.Build(t, before.Planless))
	s.awaitBridges(1)
	b, err := bridge.NewBridge(bridge.Config{Redis: s.redis, Prefix: s.prefix, AnyServer: true})
	if err != nil {
		t.Fatal(err)
	}
	s.run("bridge", b.Run)
	op := s.operator().AllowOldBridges()
	for i := range queues {
		recurrence := bridge.Recurrence{Queue: fmt.Sprint("q", i), Name: "tick", Every: time.Second}
		if _, err := op.Recur(t.Context(), recurrence); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return old.lastAssigned("owned") > 0, "the old bridge owns none of the queues"
	})
	// Occurrences that are planned in the first seconds reach 20 s ahead. So an occurrence more than 25 s after begin
	// was planned later, by a bridge.
	begin := time.Now()
	redistest.Eventually(t, 90*time.Second, func() (bool, string) {
		for i := range queues {
			state, err := op.Recurrence(t.Context(), fmt.Sprint("q", i), "tick")
			if err != nil || state.Last.Sub(begin) < 25*time.Second {
				return false, fmt.Sprintf("q%d: the last occurrence was %s after the beginning (%v)", i,
					state.Last.Sub(begin), err)
			}
		}
		return true, ""
	})
}
