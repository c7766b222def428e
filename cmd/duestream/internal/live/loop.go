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

// press applies a key. It returns false for the key that quits. page is the number of lines that a page key scrolls.
// maxOffset is the number of lines by which the frame can be scrolled.
func (s *State) press(k term.Key, page, maxOffset int) bool {
	switch k {
	case "quit":
		return false
	case "sort":
		s.sort = Sorts[(slices.Index(Sorts, s.sort)+1)%len(Sorts)]
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
		s.offset = maxOffset
	case "slower":
		if i := slices.IndexFunc(intervals, func(d time.Duration) bool { return d > s.interval }); i >= 0 {
			s.interval = intervals[i]
		}
	case "faster":
		for _, d := range slices.Backward(intervals) {
			if d < s.interval {
				s.interval = d
				break
			}
		}
	}
	s.offset = min(max(0, s.offset), maxOffset)
	return true
}

// AnswerTimeout is how long a look may take before the frame reports that the server does not answer.
const AnswerTimeout = 2 * time.Second

// lookResult is a look, or the reason why it failed.
type lookResult struct {
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

	s.hasKeys = true
	s.Take(first)
	page, maxOffset := 1, 0
	results := make(chan lookResult, 1)
	lookBegan, looking := time.Now(), false
	draw := func() error {
		s.Now = time.Now()
		shown := *s
		if looking && s.Now.Sub(lookBegan) > AnswerTimeout {
			shown.Lost(lookBegan, context.DeadlineExceeded)
		}
		width, height := screen.Size()
		var lines []string
		lines, maxOffset = shown.Frame(width, height, paint)
		page = max(1, height-6) // about the lines that are left beside head and foot
		return screen.Draw(lines)
	}
	startLook := func() {
		if looking || s.paused {
			return
		}
		lookBegan, looking = time.Now(), true
		go func() {
			var r lookResult
			defer func() {
				r.panicked = recover() // a panic here would end the process before the terminal is restored
				results <- r
			}()
			r.Look, r.err = look(ctx)
		}()
	}
	keys := screen.Keys(ctx)
	resized, stop := term.Resizes()
	defer stop()
	nextLook := time.NewTimer(s.interval)
	defer nextLook.Stop()
	redraw := time.NewTicker(time.Second) // the frame shows the time of day
	defer redraw.Stop()
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
			if !s.press(k, page, maxOffset) {
				return nil
			}
			if k == "slower" || k == "faster" || k == "pause" {
				nextLook.Reset(max(0, time.Until(lookBegan.Add(s.interval))))
			}
		case <-resized:
		case <-redraw.C:
		case r := <-results:
			looking = false
			switch {
			case r.panicked != nil:
				panic(r.panicked)
			case r.err != nil:
				s.Lost(lookBegan, r.err)
			default:
				s.Take(r.Look)
			}
			nextLook.Reset(max(MinInterval/2, time.Until(lookBegan.Add(s.interval))))
		case <-nextLook.C:
			startLook()
		}
	}
}
