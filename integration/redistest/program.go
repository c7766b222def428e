package redistest

import (
	"bytes"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process runs a program until the test ends. Then it sends SIGTERM, on which the program must end by itself, without
// an error, within ten seconds.
func Process(t testing.TB, cmd *exec.Cmd, env []string) {
	t.Helper()
	var output bytes.Buffer
	cmd.Env, cmd.Stderr = env, &output
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		done := make(chan error, 1)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, output.String())
			}
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
			t.Errorf("%s did not end on SIGTERM\n%s", strings.Join(cmd.Args, " "), output.String())
		}
		if t.Failed() && output.Len() > 0 {
			t.Logf("%s:\n%.4000s", strings.Join(cmd.Args, " "), output.String())
		}
	})
}
