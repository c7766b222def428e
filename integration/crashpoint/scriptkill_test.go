package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// killServers is how many servers are killed concurrently.
const killServers = 4

// The server is killed with SIGKILL at each command of each script in turn, and once after the reply. It restarts
// from its append-only file. Writes of the killed script are gone, and answered ones are there. Then the caller
// repeats the call, and the system comes to rest with nothing lost.
func TestServerDiesAtEveryScriptStep(t *testing.T) {
	t.Parallel()
	work := make(chan scenario)
	var servers sync.WaitGroup
	for range killServers {
		server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always", "--busy-reply-threshold", "1")
		servers.Go(func() {
			for sc := range work {
				t.Run(sc.script, func(t *testing.T) {
					n := 1
					for ; killAt(t, server, sc, n); n++ {
					}
					t.Logf("killed at %d steps, and after the reply", n-1)
				})
			}
		})
	}
	seen := map[string]bool{}
	for _, sc := range scenarios() {
		if !seen[sc.script] { // the first state of a script has the most branches
			seen[sc.script] = true
			work <- sc
		}
	}
	close(work)
	servers.Wait()
	for _, name := range scriptNames() {
		if !seen[name] {
			t.Errorf("no scenario of %s", name)
		}
	}
}

// killAt kills the server at the n-th command. If there are fewer, it kills it after the reply, and returns false.
func killAt(t *testing.T, server *redistest.Server, sc scenario, n int) bool {
	c := server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	s := newScene(t, server, c)
	call := sc.prepare(s)
	want := s.snapshot()
	answered := make(chan error, 1)
	go func() {
		err := errors.New("the scenario ended its test")
		defer func() { answered <- err }()
		err = call(interrupt(c, sc.script, n, stand))
	}()
	standing := awaitBusyOrAnswer(t, server, answered)
	if !standing {
		want = s.snapshot()
	}
	server.Kill()
	if standing {
		if err := <-answered; err == nil && sc.script != "signal" { // the caller of signal does not wait for it
			t.Errorf("step %d: a script that was killed has answered", n)
		}
	}
	server.Start()
	c.Close()
	s.c = server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	if sc.bodies && standing { // commands before the script have stored payloads and metas, which may be orphans now
		s.do("DEL", s.k.Payload, s.k.Meta)
	}
	if got := s.snapshot(); got != want {
		t.Errorf("step %d, standing=%v: stored after the restart is\n%s\nand was before\n%s", n, standing, got, want)
	}
	if standing {
		if err := call(s.c); err != nil {
			t.Errorf("step %d: the repeated call: %v", n, err)
		}
	}
	if sc.after != nil {
		sc.after(s)
	}
	s.settle()
	if debts, left := s.broken(true); len(debts) > 0 || left != "" {
		t.Errorf("step %d, standing=%v: %s %s", n, standing, strings.Join(debts, "; "), left)
	}
	return standing
}

// awaitBusyOrAnswer waits until the server reports a busy script, and returns true, or until the call was answered, and
// returns false.
func awaitBusyOrAnswer(t *testing.T, server *redistest.Server, answered chan error) bool {
	probe := server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	defer probe.Close()
	standing := false
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := probe.Do(ctx, probe.B().Ping().Build()).Error()
		if err != nil && strings.HasPrefix(err.Error(), "BUSY") {
			standing = true
			return true, ""
		}
		select {
		case err := <-answered:
			if err != nil {
				t.Fatalf("the call that was not interrupted: %v", err)
			}
			return true, ""
		default:
			return false, fmt.Sprintf("the server answers %v", err)
		}
	})
	return standing
}
