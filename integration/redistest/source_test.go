package redistest

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const envChild = "DUESTREAM_REDISTEST_CHILD"

// TestChildProcess runs in the processes that the tests below start. In an ordinary run it does nothing.
func TestChildProcess(t *testing.T) {
	switch os.Getenv(envChild) {
	case "shared":
		os.Stdout.WriteString("name: " + Shared(t).Name() + "\n")
	case "own":
		os.Stdout.WriteString("name: " + Own(t).Name() + "\n")
	case "hang":
		s := Own(t)
		os.Stdout.WriteString("pid: " + strconv.Itoa(s.inst.(*process).cmd.Process.Pid) + "\n")
		<-t.Context().Done()
	}
}

// child returns a command that runs TestChildProcess in a process of its own, without the settings of this process.
func child(t *testing.T, mode string, env ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChildProcess$", "-test.timeout=50s")
	settings := []string{envChild + "=" + mode, "TMPDIR=" + t.TempDir(), EnvURL + "=", EnvImage + "=", EnvOwnImage + "="}
	cmd.Env = slices.Concat(os.Environ(), settings, env)
	return cmd
}

// The shared server comes from the first source that works. An image or a URL that is asked for, and does not work, is
// an error. An error never repeats a password, and no test is skipped.
func TestSharedServerComesFromTheFirstSourceThereIs(t *testing.T) {
	t.Parallel()
	own := Own(t)
	const noEngine = "DOCKER_HOST=unix:///nonexistent/docker.sock"
	for _, tc := range []struct {
		name string
		env  []string
		want string
		ok   bool
	}{
		{"url", []string{EnvURL + "=" + own.URL()}, "name: " + own.product + " " + own.Version() + " (url)", true},
		{"url that does not answer", []string{EnvURL + "=redis://127.0.0.1:1"}, EnvURL +
			": the server at 127.0.0.1:1 does not answer", false},
		{"url with a secret", []string{EnvURL + "=http://u:secret@127.0.0.1:1"}, "not understood", false},
		{"no engine", []string{noEngine}, "(process)", true},
		{"engine elsewhere", []string{"DOCKER_HOST=tcp://192.0.2.1:2375"}, "(process)", true},
		{"image asked for, no engine", []string{noEngine, EnvImage + "=redis:8.0"}, EnvImage + "=redis:8.0: no Docker engine",
			false},
		{"nothing", []string{noEngine, "PATH=/nonexistent"}, "Do one of these", false},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			out, err := child(t, "shared", tc.env...).CombinedOutput()
			if !strings.Contains(string(out), tc.want) || strings.Contains(string(out), "secret") {
				t.Fatalf("want %q in (%v)\n%s", tc.want, err, out)
			}
			if tc.ok != (err == nil) {
				t.Fatalf("%v\n%s", err, out)
			}
			if strings.Contains(string(out), "SKIP") {
				t.Fatalf("it was skipped\n%s", out)
			}
		})
	}
}

// A server of its own runs the image that is asked for, or the test fails.
func TestOwnServerRunsTheImageThatIsAskedFor(t *testing.T) {
	t.Parallel()
	out, err := child(t, "own", "DOCKER_HOST=unix:///nonexistent/docker.sock", EnvOwnImage+"=redis:8.0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), EnvOwnImage+"=redis:8.0: no Docker engine") {
		t.Errorf("without an engine: %v\n%s", err, out)
	}
	for _, image := range Images() {
		if !hasImage(image) {
			continue
		}
		out, err := child(t, "own", EnvOwnImage+"="+image).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "(docker "+image+")") {
			t.Errorf("%s: %v\n%s", image, err, out)
		}
	}
}

// A test process that is killed, or that panics at its timeout, runs no cleanup. Its servers must end all the same.
func TestServerDiesWithTheTestProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("only Linux has a parent-death signal")
		return
	}
	cmd := child(t, "hang")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "pid: "); ok {
			pid, _ = strconv.Atoi(text)
		}
	}
	if pid == 0 {
		t.Fatal("the child did not tell its server's pid")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	Eventually(t, 5*time.Second, func() (bool, string) {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid), "server " + strconv.Itoa(pid) + " is alive"
	})
}

// zombie reports whether a process has ended and its new parent has not reaped it yet.
func zombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(b), ") ")
	return err == nil && strings.HasPrefix(state, "Z")
}
