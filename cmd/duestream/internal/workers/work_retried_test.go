package workers

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// A worker on a terminal prints a line for each retry, with its delay rounded to seconds, and without the control
// characters of the error.
func TestALineTellsOfARetryWithItsDelay(t *testing.T) {
	t.Parallel()
	s := new(strings.Builder)
	a := &cli.App{Output: output.Output{Err: s}}
	const delay = 1500 * time.Millisecond
	noteRetried(a, &bridge.Message{}, delay, "exit status 1: \x1b[31mno\n")
	if out := s.String(); !strings.Contains(out, "attempt 0 failed, again in 2s: exit status 1:  [31mno") ||
		strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}
