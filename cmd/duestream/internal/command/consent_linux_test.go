package command_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// On a terminal the user is told the number of letters and asked. Only y or yes deletes.
func TestAPersonIsAskedBeforeLettersAreDeleted(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Letters()
	for _, test := range []struct {
		typed string
		code  int
		left  int
	}{{"\n", exit.Invalid, 6}, {"n\n", exit.Invalid, 6}, {"yesterday\n", exit.Invalid, 6},
		{"\x04", exit.Invalid, 6}, {"y\n", exit.OK, 0}} { // \x04 is Ctrl-D, the end of the input
		term := clitest.NewTerminal(t, 80, 24)
		ended := make(chan int, 1)
		go func() {
			ended <- command.Run(t.Context(), clitest.Version, c.Args([]string{"dead", "purge", "q", "--all"}), term.Tty,
				new(clitest.Buffer), term.Tty)
		}()
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			return strings.Contains(term.Seen.String(), "Delete 6 dead letters of q for good? [y/N] "), term.Seen.String()
		})
		term.Press(test.typed)
		if code := <-ended; code != test.code {
			t.Errorf("%q: exit code %d\n%s", test.typed, code, term.Seen)
		}
		if left := strings.Count(c.OK("dead", "list", "q", "--json"), "\n"); left != test.left {
			t.Errorf("%q: %d letters are left, want %d", test.typed, left, test.left)
		}
	}
}

// Regression: the first Ctrl-C at the question seemed to be ignored, and the second one killed the process.
func TestCtrlCAtTheQuestionDeletesNothing(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Letters()
	term := clitest.NewTerminal(t, 80, 24)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- command.Run(ctx, clitest.Version, c.Args([]string{"dead", "purge", "q", "--all"}), term.Tty,
			new(clitest.Buffer), term.Tty)
	}()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(term.Seen.String(), "[y/N] "), term.Seen.String()
	})
	interrupt()
	select {
	case code := <-ended:
		if code != exit.Interrupted {
			t.Errorf("exit code %d\n%s", code, term.Seen)
		}
	case <-time.After(clitest.Patience):
		t.Fatal("it still asks")
	}
	if left := strings.Count(c.OK("dead", "list", "q", "--json"), "\n"); left != 6 {
		t.Errorf("%d letters are left", left)
	}
}
