package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// served is a bridge in a process of its own, of whatever release.
type served struct {
	t   *testing.T
	cmd *exec.Cmd

	mu       sync.Mutex
	assigned map[string]int // the last "queues assigned" of its log
	ended    chan struct{}
}

// serve runs a bridge of a command.
func (s *stack) serve(t *testing.T, command string, env ...string) *served {
	t.Helper()
	b := &served{t: t, cmd: exec.Command(command, "serve"), ended: make(chan struct{})}
	b.cmd.Env = append(append(os.Environ(), "DUESTREAM_REDIS_URL="+s.server.URL(), "DUESTREAM_PREFIX="+s.prefix,
		"DUESTREAM_LOG_FORMAT=json", "DUESTREAM_ANY_SERVER=true"), env...)
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

// Bridges of this release and of those before agree on who owns what: each queue has one owner. The word for the level is new in
// the heartbeats, and a bridge that did not take such a member for a bridge would own the queues of the other one as well.
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
