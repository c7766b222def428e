package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Regression: a named pipe without a writer hung the command so that no SIGTERM ended it, and /dev/zero filled the
// memory.
func TestPasswordFilesThatNeverEndAreRefused(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, maxSecretBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{pipe: "is empty", large: "no password", "/dev/zero": "no password"} {
		refused := make(chan error, 1)
		go func() {
			_, err := password("X", "", file)
			refused <- err
		}()
		select {
		case err := <-refused:
			var wrong *usage.Error
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", file, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: hangs", file)
		}
	}
}

// A pipe whose writer is slow, as in the shell's `<(pass show redis)`, is read to its end.
func TestPasswordsMayComeThroughPipes(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = w.WriteString("secret\n")
		_ = w.Close()
	}()
	if got, err := password("X", "", pipe); err != nil || got != "secret" {
		t.Errorf("%q, %v", got, err)
	}
}
