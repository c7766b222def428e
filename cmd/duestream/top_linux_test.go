package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/duestream/duestream/cmd/duestream/internal/live"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/integration/redistest"
)

const enterScreen, leaveScreen, frameEnd = term.EnterScreen, term.LeaveScreen, term.FrameEnd

// terminal is a pseudo-terminal. The user sees and types at its master's end.
type terminal struct {
	t      *testing.T
	master *os.File
	tty    *os.File
	name   string
	seen   *buffer
	before *unix.Termios
}

func newTerminal(t *testing.T, width, height int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: master, name: fmt.Sprintf("/dev/pts/%d", n), seen: new(buffer)}
	if term.tty, err = os.OpenFile(term.name, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	term.resize(width, height)
	term.before = term.settings()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = term.seen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_, _ = master.WriteString("\n") // for a goroutine that still waits for a key
		term.tty.Close()                // the last open descriptor: the read above ends
		<-ended
		master.Close()
	})
	return term
}

func (term *terminal) settings() *unix.Termios {
	term.t.Helper()
	s, err := unix.IoctlGetTermios(int(term.tty.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return s
}

// resize sends SIGWINCH to the process that the terminal controls.
func (term *terminal) resize(width, height int) {
	term.t.Helper()
	err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)})
	if err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) press(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

var controls = regexp.MustCompile(`\x1b\[[?0-9;]*[a-zA-Z]`)

// frame returns the last complete frame.
func (term *terminal) frame() string {
	frames := strings.Split(term.seen.String(), frameEnd)
	if len(frames) < 2 {
		return ""
	}
	last := frames[len(frames)-2]
	last = last[strings.LastIndex(last, "\x1b[H")+1:]
	return strings.ReplaceAll(controls.ReplaceAllString("\x1b"+last, ""), "\r\n", "\n")
}

// shows waits until a frame has all of these texts, and returns it.
func (term *terminal) shows(texts ...string) string {
	term.t.Helper()
	redistest.Eventually(term.t, patience, func() (bool, string) {
		frame := term.frame()
		for _, text := range texts {
			if !strings.Contains(frame, text) {
				return false, "no " + text + " in\n" + frame
			}
		}
		return true, ""
	})
	return term.frame()
}

// givenBack checks that the terminal is restored.
func (term *terminal) givenBack() {
	term.t.Helper()
	redistest.Eventually(term.t, patience, func() (bool, string) {
		seen := term.seen.String()
		at := strings.LastIndex(seen, leaveScreen)
		return at > strings.LastIndex(seen, enterScreen) && !strings.Contains(seen[at:], "\x1b[?25l"), "the screen is not left"
	})
	if got := term.settings(); *got != *term.before {
		term.t.Errorf("the terminal is not as it was: %+v, was %+v", got, term.before)
	}
}

// top starts the real command on the terminal, with job control as in a shell.
func (term *terminal) top(c *cli, args ...string) *exec.Cmd {
	term.t.Helper()
	path, err := binary()
	if err != nil {
		term.t.Fatal(err)
	}
	cmd := exec.Command(path, c.args(append([]string{"top", "--interval", "100ms"}, args...))...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.tty, term.tty, term.tty
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
	term.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serve()
	for i := range 12 {
		c.ok("schedule", fmt.Sprintf("queue-%02d", i), "--in", "1h", "x")
	}
	term := newTerminal(t, 80, 24)
	cmd := term.top(c)
	frame := term.shows("duestream top", "bridges alive 1: ", "queue-00", "queue-11", "q quit", "every 100ms")
	if n := strings.Count(frame, "\n") + 1; n > 24 {
		t.Errorf("%d lines\n%s", n, frame)
	}
	if !strings.Contains(term.seen.String(), "\x1b[1mduestream top") {
		t.Error("no colours on a terminal")
	}
	c.ok("schedule", "queue-00", "--in", "1h", "y")
	term.shows("queue-00           2 ")
	term.press("s+p")
	term.shows("s sort: lag", "every 250ms", "PAUSED")
	c.ok("schedule", "queue-00", "--in", "1h", "z")
	term.resize(70, 12)
	frame = term.shows("… and 7 more queues")
	if strings.Contains(frame, "queue-00          3 ") {
		t.Errorf("paused, and goes on:\n%s", frame)
	}
	term.press("jj")
	term.shows("2 more queues above")
	term.press("pg")
	term.shows("queue-00          3 ")
	term.press("q")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	term.givenBack()
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for name, leave := range map[string]func(*terminal, *exec.Cmd){
		"q":       func(term *terminal, _ *exec.Cmd) { term.press("q") },
		"Ctrl-C":  func(term *terminal, _ *exec.Cmd) { term.press("\x03") },
		"SIGTERM": func(_ *terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) },
		"SIGINT":  func(_ *terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t, 80, 24)
			cmd := term.top(c)
			term.shows("no bridge is alive")
			leave(term, cmd)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			term.givenBack()
		})
	}
}

// After a panic, the terminal is restored before the trace is printed.
func TestTopGivesTheTerminalBackWhenItPanics(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, 80, 24)
	a := &app{printer: printer{out: term.tty, err: term.tty, color: "never"}, in: term.tty}
	defer func() {
		if r := recover(); r != "out of order" {
			t.Errorf("recovered %v", r)
		}
		term.givenBack()
	}()
	_ = ShowTop(t.Context(), a, func(context.Context) (live.Look, error) {
		panic("out of order")
	}, live.Look{})
	t.Error("no panic")
}

func TestTopGoesOnWhenTheConnectionWasLost(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := newCLIOn(t, s)
	proxy := s.Proxy(t)
	c.ok("schedule", "emails", "--in", "1h", "x")
	direct := *c
	c.url = proxy.URL()
	term := newTerminal(t, 100, 24)
	cmd := term.top(c, "emails")
	term.shows("emails             1 ")
	proxy.Refuse(true)
	proxy.CutAll()
	term.shows("disconnected since ", "emails             1 ") // the last known state stays
	direct.ok("schedule", "emails", "--in", "1h", "y")
	proxy.Refuse(false)
	if frame := term.shows("emails             2 "); strings.Contains(frame, "disconnected") {
		t.Errorf("it is there again:\n%s", frame)
	}
	proxy.Stall(true) // now it does not even refuse connections
	term.shows("disconnected since ", "the server does not answer")
	proxy.Stall(false)
	redistest.Eventually(t, patience, func() (bool, string) {
		frame := term.frame()
		return !strings.Contains(frame, "disconnected"), frame
	})
	term.press("q")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	term.givenBack()
}

// Colours appear only on terminals whose users want them.
func TestColoursOnATerminal(t *testing.T) {
	t.Parallel()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		env  string
		args []string
		want bool
	}{
		{"A=b", nil, true}, {"NO_COLOR=1", nil, false}, {"NO_COLOR=", nil, true}, {"TERM=dumb", nil, false},
		{"A=b", []string{"--color", "never"}, false}, {"NO_COLOR=1", []string{"--color", "always"}, true},
	} {
		term := newTerminal(t, 80, 24)
		cmd := exec.Command(path, append([]string{"--redis", unreachable, "health"}, test.args...)...)
		cmd.Stdout, cmd.Stderr = term.tty, term.tty
		cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=", test.env)
		_ = cmd.Run()
		redistest.Eventually(t, patience, func() (bool, string) {
			return strings.Contains(term.seen.String(), "duestream dev"), term.seen.String()
		})
		seen := term.seen.String()
		if got := strings.Contains(seen, "\x1b[31mduestream:\x1b[0m") &&
			strings.Contains(seen, "\x1b[1mhint:\x1b[0m"); got != test.want {
			t.Errorf("%s %v: colours: %t\n%q", test.env, test.args, got, seen)
		}
	}
}

// Stats with totals fit on a terminal of 80 columns.
func TestStatsFitOnATerminal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serve()
	c.ok("schedule", "a-queue-with-quite-a-name", "--in", "1h", "x")
	c.ok("schedule", "emails", "x")
	r := c.redis()
	if err := r.Do(t.Context(), r.B().XgroupCreate().Key(c.key("emails",
		"stream")).Group("mailer").Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.ok("queue", "set", "emails", "--create", "held=true")
	c.ok("schedule", "emails", "x")
	c.do("XADD", c.key("emails", "dead"), "*", "id", "a", "payload", "", "group", "mailer", "reason", "expired", "dead_ms", "1")
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	term := newTerminal(t, 80, 24)
	cmd := exec.Command(path, c.args([]string{"stats"})...)
	cmd.Stdout, cmd.Stderr = term.tty, term.tty
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	if err := cmd.Run(); err != nil {
		t.Fatal(err, term.seen.String())
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(term.seen.String(), "! emails: "), term.seen.String()
	})
	seen := strings.ReplaceAll(term.seen.String(), "\r", "")
	text := controls.ReplaceAllString(seen, "")
	for line := range strings.Lines(text) {
		if len(line) > 81 && !strings.HasPrefix(line, "! ") {
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
	if out := c.ok("stats"); !strings.Contains(out, "QUEUE / GROUP") || strings.Contains(out, "\x1b") ||
		!strings.Contains(out, "\nall 2 queues ") {
		t.Errorf("not on a terminal:\n%s", out)
	}
}

// ShowTop shows frames on the terminal of a, as top does.
func ShowTop(ctx context.Context, a *app, look func(context.Context) (live.Look, error), first live.Look) error {
	return a.topLive(ctx, topOptions{every: live.MinInterval, sort: "name"}, look, first)
}
