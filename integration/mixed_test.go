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
)

// served is a bridge of any release in a process of its own.
type served struct {
	t   *testing.T
	cmd *exec.Cmd

	mu       sync.Mutex
	assigned map[string]int // from the last "queues assigned" in its log
	ended    chan struct{}
}

// serve runs a bridge with the given command.
func (s *stack) serve(t *testing.T, command string) *served {
	t.Helper()
	return s.goesOn(t, command, "serve")
}

// goesOn runs a command that runs until it is stopped.
func (s *stack) goesOn(t *testing.T, command string, args ...string) *served {
	t.Helper()
	b := &served{t: t, cmd: exec.Command(command, args...), ended: make(chan struct{})}
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

// beats waits until n bridges have sent a heartbeat.
func (s *stack) beats(n int64) {
	s.t.Helper()
	redistest.Eventually(s.t, 20*time.Second, func() (bool, string) {
		return s.number("ZCARD", lua.NewGlobals(s.prefix).Bridges) == n, "not all bridges have started"
	})
}

func (b *served) read(line []byte) {
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

func (b *served) last(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.assigned[what]
}

func (b *served) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-b.ended:
	case <-time.After(30 * time.Second):
		b.t.Error("a bridge does not stop")
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
}

// Bridges of this and of former releases agree on the owners of queues: each queue has one. The protocol level in
// heartbeats is new. A bridge that did not recognize such a heartbeat would own the queues of the other bridge as
// well.
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
			bridges := []*served{s.serve(t, before.Build(t, release)), s.serve(t, now), s.serve(t, now)}
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				owned, agree := 0, true
				for _, b := range bridges {
					owned += b.last("owned")
					agree = agree && b.last("bridges") == len(bridges) && b.last("partitions") == queues
				}
				return agree && owned == queues, fmt.Sprintf("%d queues are owned; agree: %v", owned, agree)
			})
			for i, b := range bridges {
				if b.last("owned") == 0 || b.last("owned") == queues {
					t.Errorf("bridge %d owns %d of %d queues", i, b.last("owned"), queues)
				}
			}
		})
	}
}

// A write that an older live bridge does not support is refused, with an error that names the bridge. Other writes
// are accepted, and all writes once it is gone.
func TestWritesThatAnOldBridgeDoesNotServeAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	old := s.serve(t, before.Build(t, before.Keyless))
	s.beats(1)
	op := s.operator()
	rate, limit := bridge.Rate("10/s"), 100
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
	for _, key := range s.keys().All() {
		if n := s.number("EXISTS", key); n != 0 {
			t.Errorf("%s was written", key)
		}
	}
	results, err := s.client.ScheduleBatch(t.Context(), s.queue, []bridge.NewMessage{{ID: "plain"}, {ID: "keyed", Key: "k"}})
	if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, bridge.ErrOldBridge) {
		t.Errorf("in a batch: %+v %v", results, err)
	}
	bold, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, AllowOldBridges: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bold.Close() })
	for what, err := range writes(bold, op.AllowOldBridges()) {
		if err != nil {
			t.Errorf("%s for whoever allows old bridges: %v", what, err)
		}
	}
	old.stop()
	s.bridge(quick())
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.client.Schedule(t.Context(), s.queue, nil, bridge.Key("k"), bridge.In(time.Hour))
		return err == nil, fmt.Sprint(err)
	})
}

// A bridge plans the recurrences of queues whose owner does not support recurrences. The bug: beside an older bridge,
// the recurrences of its queues stopped for good.
func TestRecurrencesOfAnOldOwnerArePlanned(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	const queues = 10
	old := s.serve(t, before.Build(t, before.Planless))
	s.beats(1)
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
		return old.last("owned") > 0, "the old bridge owns none of the queues"
	})
	// Occurrences planned in the first seconds reach 20 s ahead. So an occurrence more than 25 s after the begin was
	// planned by a bridge.
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
