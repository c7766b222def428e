package term

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Control sequences of terminals: ECMA-48, and extensions of xterm that others adopted.
const (
	EnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J" // the alternate screen, no cursor, no wrapping
	LeaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	ClearScreen = "\x1b[H\x1b[2J"
	lineEnd     = "\x1b[K\r\n"   // clears the line behind the text
	FrameEnd    = "\x1b[K\x1b[J" // clears the line behind the text, and all lines below it
)

// Screen is a terminal in full-screen mode. Close restores it.
type Screen struct {
	out   *os.File
	in    *os.File    // nil if no keys are read
	saved *term.State // state of the terminal before OpenScreen
}

// OpenScreen puts a terminal into full-screen mode. Keys are read if in is a terminal, too.
func OpenScreen(in io.Reader, out *os.File) (*Screen, error) {
	s := &Screen{out: out}
	if IsTerminal(in) {
		s.in = in.(*os.File)
		var err error
		if s.saved, err = term.MakeRaw(int(s.in.Fd())); err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
	}
	if _, err := io.WriteString(out, EnterScreen); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close restores the terminal.
func (s *Screen) Close() {
	_, _ = io.WriteString(s.out, LeaveScreen)
	if s.saved != nil {
		_ = term.Restore(int(s.in.Fd()), s.saved)
	}
}

// Size returns the current size of the terminal, or 80 by 24 if it is not known.
func (s *Screen) Size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// Draw shows lines from the top, and clears everything below them.
func (s *Screen) Draw(lines []string) error {
	for i, text := range lines {
		if !isHarmless([]byte(text)) {
			lines[i] = harmless(text, false, true)
		}
	}
	_, err := io.WriteString(s.out, "\x1b[H"+strings.Join(lines, lineEnd)+FrameEnd)
	return err
}

// Keys returns the typed keys. The channel is closed when no more keys can come. A read from a terminal cannot be
// interrupted, so after ctx has ended the goroutine lives until the next key or the end of the terminal.
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

// Key is a key, named by its purpose: "quit", "up", "page down".
type Key string

// sequences maps the bytes of multi-byte keys.
var sequences = map[string]Key{
	"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
	"\x1b[H": "home", "\x1b[1~": "home", "\x1bOH": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1bOF": "end",
}

// Bytes that a terminal in raw mode sends for keys that would otherwise be signals or the end of input.
const (
	ctrlC         = 3
	ctrlD         = 4
	ctrlBackslash = 28
)

// letters maps the keys of one byte.
var letters = map[byte]Key{
	'q': "quit", 'Q': "quit", ctrlC: "quit", ctrlD: "quit", ctrlBackslash: "quit",
	's': "sort", 'p': "pause", 'j': "down", 'k': "up",
	' ': "page down", 'f': "page down",
	'b': "page up", 'g': "home", 'G': "end", '+': "slower", '=': "slower", '-': "faster", '_': "faster",
}

// ParseKeys returns the keys in the bytes of a terminal. Unknown keys are skipped.
func ParseKeys(typed []byte) (keys []Key) {
	for len(typed) > 0 {
		n := 1
		if typed[0] == '\x1b' && len(typed) > 2 && (typed[1] == '[' || typed[1] == 'O') {
			for n = 3; n < len(typed) && typed[n-1] < '@'; n++ { // the first byte from '@' on ends the sequence
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
