package clitest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/integration/redistest"
)

const enterScreen, leaveScreen, frameEnd = term.EnterScreen, term.LeaveScreen, term.FrameEnd

// Terminal is a pseudo-terminal. The user sees and types at its master's end.
type Terminal struct {
	t      *testing.T
	master *os.File
	Tty    *os.File // the end of the command
	name   string
	Seen   *Buffer       // all that the command has printed
	before *unix.Termios // the settings before a command started
}

// NewTerminal returns a pseudo-terminal with a number of columns and lines.
func NewTerminal(t *testing.T, width, height int) *Terminal {
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
	term := &Terminal{t: t, master: master, name: fmt.Sprintf("/dev/pts/%d", n), Seen: new(Buffer)}
	if term.Tty, err = os.OpenFile(term.name, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	term.Resize(width, height)
	term.before = term.settings()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = term.Seen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_, _ = master.WriteString("\n") // for a goroutine that still waits for a key
		term.Tty.Close()                // closes the last open descriptor, so that the goroutine's read ends
		<-ended
		master.Close()
	})
	return term
}

func (term *Terminal) settings() *unix.Termios {
	term.t.Helper()
	s, err := unix.IoctlGetTermios(int(term.Tty.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return s
}

// Resize changes the size of the window. The system then sends SIGWINCH to the process that the terminal controls.
func (term *Terminal) Resize(width, height int) {
	term.t.Helper()
	err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(height), Col: uint16(width)})
	if err != nil {
		term.t.Fatal(err)
	}
}

// Press types keys.
func (term *Terminal) Press(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// Frame returns the last complete frame.
func (term *Terminal) Frame() string {
	frames := strings.Split(term.Seen.String(), frameEnd)
	if len(frames) < 2 {
		return ""
	}
	last := frames[len(frames)-2] // behind the last end of a frame, an incomplete frame may follow
	last = last[strings.LastIndex(last, "\x1b[H")+1:]
	return strings.ReplaceAll(Controls.ReplaceAllString("\x1b"+last, ""), "\r\n", "\n")
}

// Shows waits until the last frame has all of these texts, and returns the last frame.
func (term *Terminal) Shows(texts ...string) string {
	term.t.Helper()
	redistest.Eventually(term.t, Patience, func() (bool, string) {
		frame := term.Frame()
		for _, text := range texts {
			if !strings.Contains(frame, text) {
				return false, "no " + text + " in\n" + frame
			}
		}
		return true, ""
	})
	return term.Frame()
}

// GivenBack waits until the command has left the screen and shown the cursor, and checks that the settings are the
// former ones.
func (term *Terminal) GivenBack() {
	term.t.Helper()
	redistest.Eventually(term.t, Patience, func() (bool, string) {
		seen := term.Seen.String()
		at := strings.LastIndex(seen, leaveScreen)
		// \x1b[?25l hides the cursor.
		return at > strings.LastIndex(seen, enterScreen) && !strings.Contains(seen[at:], "\x1b[?25l"),
			"the screen is not left"
	})
	if got := term.settings(); *got != *term.before {
		term.t.Errorf("the terminal is not as it was: %+v, was %+v", got, term.before)
	}
}

// Top starts top in the real binary on the terminal, with job control as in a shell.
func (term *Terminal) Top(c *CLI, args ...string) *exec.Cmd {
	term.t.Helper()
	path, err := Binary()
	if err != nil {
		term.t.Fatal(err)
	}
	cmd := exec.Command(path, c.Args(append([]string{"top", "--interval", "100ms"}, args...))...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.Tty, term.Tty, term.Tty
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
