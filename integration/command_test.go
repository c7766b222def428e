package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// commandDir is the directory of the duestream command, which is built once for all tests of this process. TestMain
// removes the directory.
var commandDir string

var command = sync.OnceValues(func() (path string, err error) {
	if commandDir, err = os.MkdirTemp("", "duestream-command-"); err != nil {
		return "", err
	}
	path = filepath.Join(commandDir, "duestream")
	out, err := exec.Command("go", "build", "-o", path, "github.com/duestream/duestream/cmd/duestream").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// build returns the path of the duestream command. The first call builds it.
func build(t *testing.T) string {
	t.Helper()
	path, err := command()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ran is the result of a command.
type ran struct {
	out, complaints string // standard output, and standard error
	code            int
}

// runCommand runs a duestream command of any release to its end. An empty prefix leaves the command's default.
func runCommand(t testing.TB, url, prefix, program, stdin string, args ...string) ran {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+url)
	if prefix != "" {
		cmd.Env = append(cmd.Env, "DUESTREAM_PREFIX="+prefix)
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return ran{out.String(), complaints.String(), cmd.ProcessState.ExitCode()}
}

// runWithInput runs a duestream command on the stack's server and prefix. It returns the output, the error output and
// the exit code.
func (s *stack) runWithInput(program, stdin string, args ...string) (out, complaints string, code int) {
	s.t.Helper()
	r := runCommand(s.t, s.server.URL(), s.prefix, program, stdin, args...)
	return r.out, r.complaints, r.code
}

// mustRun does the same for a command that must succeed, and returns its output.
func (s *stack) mustRun(program, stdin string, args ...string) string {
	s.t.Helper()
	out, complaints, code := s.runWithInput(program, stdin, args...)
	if code != 0 {
		s.t.Fatalf("%q: exit code %d\n%s%s", args, code, out, complaints)
	}
	return out
}

// runProgram does the same without an input. It returns the output and the error output together, and an exitError if
// the exit code is not 0.
func (s *stack) runProgram(program string, args ...string) (string, error) {
	s.t.Helper()
	out, complaints, code := s.runWithInput(program, "", args...)
	if code != 0 {
		return strings.TrimSpace(out + complaints), exitError(code)
	}
	return strings.TrimSpace(out + complaints), nil
}

// exitError is an exit code other than 0.
type exitError int

func (e exitError) Error() string { return fmt.Sprint("exit code ", int(e)) }
