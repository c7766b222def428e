package live

import (
	"context"
	"io"
	"os"
	"slices"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// intervals are the steps of the keys + and -.
var intervals = []time.Duration{
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute,
}

// press applies a key. It returns false for the key that quits. page is the number of visible lines, most how far
// they can scroll.
func (s *State) press(k term.Key, page, most int) bool {
	at := slices.Index(Sorts, s.sort)
	switch k {
	case "quit":
		return false
	case "sort":
		s.sort = Sorts[(at+1)%len(Sorts)]
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
		if i := slices.IndexFunc(intervals, func(d time.Duration) bool { return d > s.every }); i >= 0 {
			s.every = intervals[i]
		}
	case "faster":
		for _, d := range slices.Backward(intervals) {
			if d < s.every {
				s.every = d
				break
			}
		}
	}
	s.offset = min(max(0, s.offset), most)
	return true
}

// NoAnswer is how long a look may take before the frame reports that the server does not answer.
const NoAnswer = 2 * time.Second

// looked is the result of a look.
type looked struct {
	Look
	err      error
	panicked any
}

// Show draws frames until a key or ctx ends it. The terminal is restored however Show ends, even by a panic.
func (s *State) Show(
	ctx context.Context, in io.Reader, out *os.File, paint term.Paint, look func(context.Context) (Look, error), first Look,
) error {
	screen, err := term.OpenScreen(in, out)
	if err != nil {
		return err
	}
	defer screen.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	s.live = true
	s.Take(first)
	page, most := 1, 0
	looks := make(chan looked, 1)
	begun, looking := time.Now(), false
	draw := func() error {
		s.Now = time.Now()
		shown := *s
		if looking && s.Now.Sub(begun) > NoAnswer {
			shown.Lost(begun, context.DeadlineExceeded)
		}
		width, height := screen.Size()
		var lines []string
		lines, most = shown.Frame(width, height, paint)
		page = max(1, height-6)
		return screen.Draw(lines)
	}
	start := func() {
		if looking || s.paused {
			return
		}
		begun, looking = time.Now(), true
		go func() {
			var l looked
			defer func() {
				l.panicked = recover() // a panic here would end the process before the terminal is restored
				looks <- l
			}()
			l.Look, l.err = look(ctx)
		}()
	}
	keys := screen.Keys(ctx)
	resized, stop := term.Resizes()
	defer stop()
	next := time.NewTimer(s.every)
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
				return nil // the terminal is closed
			}
			paused := s.paused
			if !s.press(k, page, most) {
				return nil
			}
			if k == "slower" || k == "faster" || paused != s.paused {
				next.Reset(max(0, time.Until(begun.Add(s.every))))
			}
		case <-resized:
		case <-second.C:
		case l := <-looks:
			looking = false
			switch {
			case l.panicked != nil:
				panic(l.panicked)
			case l.err != nil:
				s.Lost(begun, l.err)
			default:
				s.Take(l.Look)
			}
			next.Reset(max(MinInterval/2, time.Until(begun.Add(s.every))))
		case <-next.C:
			start()
		}
	}
}
