package term

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Control sequences of terminals: ECMA-48, and what xterm made common.
const (
	EnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J" // the alternate screen, no cursor, no wrapping
	LeaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	lineEnd     = "\x1b[K\r\n" // clears what was there
	FrameEnd    = "\x1b[K\x1b[J"
)

// Screen is a terminal that was taken over. Close gives it back.
type Screen struct {
	out    *os.File
	in     *os.File // nil: no keys
	before *term.State
}

// OpenScreen takes a terminal over; keys are read when in is one, too.
func OpenScreen(in io.Reader, out *os.File) (*Screen, error) {
	s := &Screen{out: out}
	if IsTerminal(in) {
		s.in = in.(*os.File)
		var err error
		if s.before, err = term.MakeRaw(int(s.in.Fd())); err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
	}
	if _, err := io.WriteString(out, EnterScreen); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives the terminal back as it was.
func (s *Screen) Close() {
	_, _ = io.WriteString(s.out, LeaveScreen)
	if s.before != nil {
		_ = term.Restore(int(s.in.Fd()), s.before)
	}
}

// Size is that of the terminal now.
func (s *Screen) Size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// Draw shows lines from the top, and nothing below them.
func (s *Screen) Draw(lines []string) error {
	for i, text := range lines {
		if !isHarmless([]byte(text)) {
			lines[i] = harmless(text, false, true)
		}
	}
	_, err := io.WriteString(s.out, "\x1b[H"+strings.Join(lines, lineEnd)+FrameEnd)
	return err
}

// Keys returns what is typed; the channel is closed when nothing more can come. Its goroutine lives until the next key after
// ctx has ended, or the end of the terminal: a read of one cannot be interrupted.
func (s *Screen) Keys(ctx context.Context) <-chan Key {
	if s.in == nil {
		return nil
	}
	typed := make(chan Key)
	go func() {
		defer close(typed)
		buf := make([]byte, 256)
		for {
			n, err := s.in.Read(buf)
			for _, k := range ParseKeys(buf[:n]) {
				select {
				case typed <- k:
				case <-ctx.Done():
					return
				}
			}
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	}()
	return typed
}

// Key is a key by what it is for: "quit", "up", "page down".
type Key string

// sequences are the keys that send more than one byte.
var sequences = map[string]Key{
	"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
	"\x1b[H": "home", "\x1b[1~": "home", "\x1bOH": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1bOF": "end",
}

// letters are the keys of one byte.
var letters = map[byte]Key{
	'q': "quit", 'Q': "quit", 3: "quit", 4: "quit", 28: "quit", 's': "sort", 'p': "pause", 'j': "down", 'k': "up",
	' ': "page down", 'f': "page down",
	'b': "page up", 'g': "home", 'G': "end", '+': "slower", '=': "slower", '-': "faster", '_': "faster",
}

// ParseKeys reads the keys in what a terminal sent, and skips those that it does not know.
func ParseKeys(typed []byte) (keys []Key) {
	for len(typed) > 0 {
		n := 1
		if typed[0] == '\x1b' && len(typed) > 2 && (typed[1] == '[' || typed[1] == 'O') {
			for n = 3; n < len(typed) && typed[n-1] < '@'; n++ { // up to the final byte
			}
			if k, ok := sequences[string(typed[:n])]; ok {
				keys = append(keys, k)
			}
		} else if k, ok := letters[typed[0]]; ok {
			keys = append(keys, k)
		}
		typed = typed[n:]
	}
	return keys
}
