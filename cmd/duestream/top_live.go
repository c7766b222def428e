package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
)

// Control sequences of terminals: ECMA-48, and what xterm made common.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J" // the alternate screen, no cursor, no wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	lineEnd     = "\x1b[K\r\n" // clears what was there
	frameEnd    = "\x1b[K\x1b[J"
)

// screen is a terminal that was taken over. close gives it back.
type screen struct {
	out    *os.File
	in     *os.File // nil: no keys
	before *term.State
}

// openScreen takes a terminal over; keys are read when in is one, too.
func openScreen(in io.Reader, out *os.File) (*screen, error) {
	s := &screen{out: out}
	if isTerminal(in) {
		s.in = in.(*os.File)
		var err error
		if s.before, err = term.MakeRaw(int(s.in.Fd())); err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
	}
	if _, err := io.WriteString(out, enterScreen); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *screen) close() {
	_, _ = io.WriteString(s.out, leaveScreen)
	if s.before != nil {
		_ = term.Restore(int(s.in.Fd()), s.before)
	}
}

func (s *screen) size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

func (s *screen) draw(lines []string) error {
	for i, text := range lines {
		if !isHarmless([]byte(text)) {
			lines[i] = harmless(text, false, true)
		}
	}
	_, err := io.WriteString(s.out, "\x1b[H"+strings.Join(lines, lineEnd)+frameEnd)
	return err
}

// keys returns what is typed; the channel is closed when nothing more can come. Its goroutine lives until the next key after ctx has
// ended, or the end of the terminal: a read of one cannot be interrupted.
func (s *screen) keys(ctx context.Context) <-chan key {
	if s.in == nil {
		return nil
	}
	typed := make(chan key)
	go func() {
		defer close(typed)
		buf := make([]byte, 256)
		for {
			n, err := s.in.Read(buf)
			for _, k := range parseKeys(buf[:n]) {
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

type key string

// sequences are the keys that send more than one byte.
var sequences = map[string]key{
	"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
	"\x1b[H": "home", "\x1b[1~": "home", "\x1bOH": "home", "\x1b[F": "end", "\x1b[4~": "end", "\x1bOF": "end",
}

// letters are the keys of one byte.
var letters = map[byte]key{
	'q': "quit", 'Q': "quit", 3: "quit", 4: "quit", 28: "quit", 's': "sort", 'p': "pause", 'j': "down", 'k': "up", ' ': "page down", 'f': "page down",
	'b': "page up", 'g': "home", 'G': "end", '+': "slower", '=': "slower", '-': "faster", '_': "faster",
}

// parseKeys reads what a terminal sent at once. What it does not know is left out.
func parseKeys(typed []byte) (keys []key) {
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

// topIntervals are those that + and - step through.
var topIntervals = []time.Duration{
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute,
}

// press does what a key says, and returns false for the one that ends it all. page is how many lines are shown, most how far they scroll.
func (s *topState) press(k key, page, most int) bool {
	at := slices.Index(topSorts, s.sort)
	switch k {
	case "quit":
		return false
	case "sort":
		s.sort = topSorts[(at+1)%len(topSorts)]
		s.offset = 0
	case "pause":
		s.paused = !s.paused
	case "up":
		s.offset--
	case "down":
		s.offset++
	case "page up":
		s.offset -= page
	case "page down":
		s.offset += page
	case "home":
		s.offset = 0
	case "end":
		s.offset = most
	case "slower":
		if i := slices.IndexFunc(topIntervals, func(d time.Duration) bool { return d > s.every }); i >= 0 {
			s.every = topIntervals[i]
		}
	case "faster":
		for _, d := range slices.Backward(topIntervals) {
			if d < s.every {
				s.every = d
				break
			}
		}
	}
	s.offset = min(max(0, s.offset), most)
	return true
}

// noAnswer is how long a look may take before the frame says so.
const noAnswer = 2 * time.Second

// looked is the outcome of a look.
type looked struct {
	topLook
	err      error
	panicked any
}

// topLive shows frame after frame until a key or ctx ends it. However it ends, also by a panic, the terminal is given back.
func (a *app) topLive(ctx context.Context, o topOptions, look func(context.Context) (topLook, error), first topLook) error {
	out, _ := fileOf(a.out)
	screen, err := openScreen(a.in, out)
	if err != nil {
		return err
	}
	defer screen.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	state := a.newTopState(o)
	state.live = true
	state.take(first)
	page, most := 1, 0
	looks := make(chan looked, 1)
	begun, looking := time.Now(), false
	draw := func() error {
		state.now = time.Now()
		shown := *state
		if looking && state.now.Sub(begun) > noAnswer {
			shown.lost(begun, context.DeadlineExceeded)
		}
		width, height := screen.size()
		var lines []string
		lines, most = shown.frame(width, height, a.paint(a.out))
		page = max(1, height-6)
		return screen.draw(lines)
	}
	start := func() {
		if looking || state.paused {
			return
		}
		begun, looking = time.Now(), true
		go func() {
			var l looked
			defer func() {
				l.panicked = recover() // here it would end the process before the terminal is given back
				looks <- l
			}()
			l.topLook, l.err = look(ctx)
		}()
	}
	keys := screen.keys(ctx)
	resized, stop := resizes()
	defer stop()
	next := time.NewTimer(state.every)
	defer next.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		if err := draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-keys:
			if !ok {
				return nil // the terminal is gone
			}
			paused := state.paused
			if !state.press(k, page, most) {
				return nil
			}
			if k == "slower" || k == "faster" || paused != state.paused {
				next.Reset(max(0, time.Until(begun.Add(state.every))))
			}
		case <-resized:
		case <-second.C:
		case l := <-looks:
			looking = false
			switch {
			case l.panicked != nil:
				panic(l.panicked)
			case l.err != nil:
				state.lost(begun, l.err)
			default:
				state.take(l.topLook)
			}
			next.Reset(max(minTopInterval/2, time.Until(begun.Add(state.every))))
		case <-next.C:
			start()
		}
	}
}
