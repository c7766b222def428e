package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// On a terminal the user is told the number of letters and asked. Only a yes deletes.
func TestAPersonIsAskedBeforeLettersAreDeleted(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.letters()
	for _, test := range []struct {
		typed string
		code  int
		left  int
	}{{"\n", exitInvalid, 6}, {"n\n", exitInvalid, 6}, {"yesterday\n", exitInvalid, 6},
		{"\x04", exitInvalid, 6}, {"y\n", exitOK, 0}} {
		term := newTerminal(t, 80, 24)
		ended := make(chan int, 1)
		go func() {
			ended <- run(t.Context(), testVersion, c.args([]string{"dead", "purge", "q", "--all"}), term.tty, new(buffer), term.tty)
		}()
		redistest.Eventually(t, patience, func() (bool, string) {
			return strings.Contains(term.seen.String(), "Delete 6 dead letters of q for good? [y/N] "), term.seen.String()
		})
		term.press(test.typed)
		if code := <-ended; code != test.code {
			t.Errorf("%q: exit code %d\n%s", test.typed, code, term.seen)
		}
		if left := strings.Count(c.ok("dead", "list", "q", "--json"), "\n"); left != test.left {
			t.Errorf("%q: %d letters are left, want %d", test.typed, left, test.left)
		}
	}
}

// The bug: the first Ctrl-C at the question seemed to be ignored, and the second one killed the process.
func TestCtrlCAtTheQuestionDeletesNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.letters()
	term := newTerminal(t, 80, 24)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, testVersion, c.args([]string{"dead", "purge", "q", "--all"}), term.tty, new(buffer), term.tty)
	}()
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(term.seen.String(), "[y/N] "), term.seen.String()
	})
	interrupt()
	select {
	case code := <-ended:
		if code != exitInterrupted {
			t.Errorf("exit code %d\n%s", code, term.seen)
		}
	case <-time.After(patience):
		t.Fatal("it still asks")
	}
	if left := strings.Count(c.ok("dead", "list", "q", "--json"), "\n"); left != 6 {
		t.Errorf("%d letters are left", left)
	}
}
