// Package lmstfyserver runs lmstfy's own server, for comparison with ours. It is built from the module proxy, which
// takes minutes the first time, so only tests under DUESTREAM_TEST_FULL=1 use it.
package lmstfyserver

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Version is the version of the server.
const Version = "v1.0.15"

// Full reports whether tests that need the server should run.
func Full() bool { return os.Getenv("DUESTREAM_TEST_FULL") != "" }

var built struct {
	once   sync.Once
	binary string
	err    error
}

// build builds the server once, in a module of its own, so that our module does not depend on it.
func build() (string, error) {
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "lmstfy")
		if err != nil {
			built.err = err
			return
		}
		built.binary = filepath.Join(dir, "lmstfy")
		for _, args := range [][]string{
			{"mod", "init", "lmstfy"},
			{"get", "github.com/bitleak/lmstfy/server@" + Version},
			{"build", "-o", built.binary, "github.com/bitleak/lmstfy/server"},
		} {
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("lmstfyserver: go %s: %w\n%s", args[0], err, out)
				return
			}
		}
	})
	return built.binary, built.err
}

// Server is a running lmstfy that requires no tokens. Its address is http://127.0.0.1:port.
type Server struct {
	URL  string
	stop func()
}

// Stop ends the server, and returns when it is gone. It may be called again.
func (s *Server) Stop() { s.stop() }

// Start starts a server, and returns when it answers. lmstfy requires a Redis with an append-only file. The server
// ends with the test.
func Start(t testing.TB, redis *redistest.Server) *Server {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	api, admin := freePort(t), freePort(t)
	config := fmt.Sprintf("Host = \"127.0.0.1\"\nPort = %d\nAdminHost = \"127.0.0.1\"\nAdminPort = %d\n"+
		"LogLevel = \"error\"\nLogDir = %q\n[AdminRedis]\nAddr = %q\n[Pool]\n[Pool.default]\nAddr = %q\n", api, admin, dir, redis.Addr(), redis.Addr())
	file := filepath.Join(dir, "lmstfy.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-sv", "-c", file, "-p", filepath.Join(dir, "pid"))
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	s := &Server{URL: fmt.Sprint("http://127.0.0.1:", api), stop: stop}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		answer, err := http.Get(s.URL + "/api/ns/q/size")
		if err != nil {
			return false, err.Error()
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK, answer.Status
	})
	return s
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
