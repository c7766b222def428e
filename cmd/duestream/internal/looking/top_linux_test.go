package looking_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/live"
	"github.com/duestream/duestream/cmd/duestream/internal/looking"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/integration/redistest"
)

// On a terminal, top redraws its frame as the queues change, fits into the window, and obeys keys.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	for i := range 12 {
		c.OK("schedule", fmt.Sprintf("queue-%02d", i), "--in", "1h", "x")
	}
	term := clitest.NewTerminal(t, 80, 24)
	cmd := term.Top(c)
	frame := term.Shows("duestream top", "bridges alive 1: ", "queue-00", "queue-11", "q quit", "every 100ms")
	if n := strings.Count(frame, "\n") + 1; n > 24 {
		t.Errorf("%d lines\n%s", n, frame)
	}
	if !strings.Contains(term.Seen.String(), "\x1b[1mduestream top") {
		t.Error("no colours on a terminal")
	}
	c.OK("schedule", "queue-00", "--in", "1h", "y")
	term.Shows("queue-00           2 ")
	term.Press("s+p") // s: sort by lag, +: a longer interval, p: pause
	term.Shows("s sort: lag", "every 250ms", "PAUSED")
	c.OK("schedule", "queue-00", "--in", "1h", "z")
	term.Resize(70, 12)
	frame = term.Shows("… and 7 more queues")
	if strings.Contains(frame, "queue-00          3 ") {
		t.Errorf("the frame changed although top is paused:\n%s", frame)
	}
	term.Press("jj") // scroll down by two queues
	term.Shows("2 more queues above")
	term.Press("pg") // p: end the pause, g: scroll to the top
	term.Shows("queue-00          3 ")
	term.Press("q")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	term.GivenBack()
}

// However the user ends top, the exit code is 0 and the terminal has its former settings and screen.
func TestTopGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for name, leave := range map[string]func(*clitest.Terminal, *exec.Cmd){
		"q":       func(term *clitest.Terminal, _ *exec.Cmd) { term.Press("q") },
		"Ctrl-C":  func(term *clitest.Terminal, _ *exec.Cmd) { term.Press("\x03") },
		"SIGTERM": func(_ *clitest.Terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) },
		"SIGINT":  func(_ *clitest.Terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := clitest.NewTerminal(t, 80, 24)
			cmd := term.Top(c)
			term.Shows("no bridge is alive")
			leave(term, cmd)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			term.GivenBack()
		})
	}
}

// After a panic, the terminal is restored before the trace is printed.
func TestTopGivesTheTerminalBackWhenItPanics(t *testing.T) {
	t.Parallel()
	term := clitest.NewTerminal(t, 80, 24)
	a := &cli.App{Output: output.Output{Out: term.Tty, Err: term.Tty, Color: "never"}, In: term.Tty}
	defer func() {
		if r := recover(); r != "out of order" {
			t.Errorf("recovered %v", r)
		}
		term.GivenBack()
	}()
	_ = looking.ShowTop(t.Context(), a, func(context.Context) (live.Look, error) {
		panic("out of order")
	}, live.Look{})
	t.Error("no panic")
}

// While the server is away, top shows since when, and keeps the last known figures. It reconnects by itself. A server
// that refuses connections and a server that does not answer are both away.
func TestTopGoesOnWhenTheConnectionWasLost(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := clitest.NewOn(t, s)
	proxy := s.Proxy(t)
	c.OK("schedule", "emails", "--in", "1h", "x")
	direct := *c
	c.URL = proxy.URL()
	term := clitest.NewTerminal(t, 100, 24)
	cmd := term.Top(c, "emails")
	term.Shows("emails             1 ")
	proxy.Refuse(true)
	proxy.CutAll()
	term.Shows("disconnected since ", "emails             1 ") // the last known state stays
	direct.OK("schedule", "emails", "--in", "1h", "y")
	proxy.Refuse(false)
	if frame := term.Shows("emails             2 "); strings.Contains(frame, "disconnected") {
		t.Errorf("the connection is back, and the frame still says disconnected:\n%s", frame)
	}
	proxy.Stall(true) // connections are accepted, and never get an answer
	term.Shows("disconnected since ", "the server does not answer")
	proxy.Stall(false)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		frame := term.Frame()
		return !strings.Contains(frame, "disconnected"), frame
	})
	term.Press("q")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	term.GivenBack()
}

// Colours appear on a terminal, unless NO_COLOR, TERM=dumb or --color never forbids them; --color always wins over
// NO_COLOR. Each case sees the error and the hint of health on an unreachable server.
func TestColoursOnATerminal(t *testing.T) {
	t.Parallel()
	path, err := clitest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		env  string
		args []string
		want bool
	}{
		// A=b stands for an environment without a wish. An empty NO_COLOR counts as unset.
		{"A=b", nil, true}, {"NO_COLOR=1", nil, false}, {"NO_COLOR=", nil, true}, {"TERM=dumb", nil, false},
		{"A=b", []string{"--color", "never"}, false}, {"NO_COLOR=1", []string{"--color", "always"}, true},
	} {
		term := clitest.NewTerminal(t, 80, 24)
		cmd := exec.Command(path, append([]string{"--redis", clitest.Unreachable, "health"}, test.args...)...)
		cmd.Stdout, cmd.Stderr = term.Tty, term.Tty
		cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=", test.env)
		_ = cmd.Run()
		// The hint, which is printed last, ends with "or try `duestream dev`".
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			return strings.Contains(term.Seen.String(), "duestream dev"), term.Seen.String()
		})
		seen := term.Seen.String()
		if got := strings.Contains(seen, "\x1b[31mduestream:\x1b[0m") &&
			strings.Contains(seen, "\x1b[1mhint:\x1b[0m"); got != test.want {
			t.Errorf("%s %v: colours: %t\n%q", test.env, test.args, got, seen)
		}
	}
}

// On a terminal of 80 columns, no line of stats is longer, except the advice ("! …"). Therefore groups have a table of
// their own there; elsewhere they share the table of the queues.
func TestStatsFitOnATerminal(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	c.OK("schedule", "a-queue-with-quite-a-name", "--in", "1h", "x")
	c.OK("schedule", "emails", "x")
	r := c.Redis()
	if err := r.Do(t.Context(), r.B().XgroupCreate().Key(c.Key("emails",
		"stream")).Group("mailer").Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.OK("queue", "set", "emails", "--create", "held=true")
	c.OK("schedule", "emails", "x")
	c.Do("XADD", c.Key("emails", "dead"), "*", "id", "a", "payload", "", "group", "mailer", "reason", "expired",
		"dead_ms", "1")
	path, err := clitest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	term := clitest.NewTerminal(t, 80, 24)
	cmd := exec.Command(path, c.Args([]string{"stats"})...)
	cmd.Stdout, cmd.Stderr = term.Tty, term.Tty
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	if err := cmd.Run(); err != nil {
		t.Fatal(err, term.Seen.String())
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(term.Seen.String(), "! emails: "), term.Seen.String()
	})
	seen := strings.ReplaceAll(term.Seen.String(), "\r", "")
	text := clitest.Controls.ReplaceAllString(seen, "")
	for line := range strings.Lines(text) {
		if len(line) > 80+len("\n") && !strings.HasPrefix(line, "! ") {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	for _, want := range []string{"\n  GROUP ", "\n  mailer ", "\nall 2 queues ", "\n  all groups  "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.Contains(seen, "\x1b[1mQUEUE\x1b[0m") || !strings.Contains(seen, "\x1b[33m1\x1b[0m") ||
		!strings.Contains(seen, "\x1b[33m! emails") {
		t.Errorf("no colours:\n%q", seen)
	}
	if out := c.OK("stats"); !strings.Contains(out, "QUEUE / GROUP") || strings.Contains(out, "\x1b") ||
		!strings.Contains(out, "\nall 2 queues ") {
		t.Errorf("not on a terminal:\n%s", out)
	}
}
