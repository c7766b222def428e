package main

import (
	"context"
	"slices"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// topIntervals are those that + and - step through.
var topIntervals = []time.Duration{
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute,
}

// press does what a key says, and returns false for the one that ends it all. page is how many lines are shown, most how far they scroll.
func (s *topState) press(k term.Key, page, most int) bool {
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
	out, _ := term.FileOf(a.out)
	screen, err := term.OpenScreen(a.in, out)
	if err != nil {
		return err
	}
	defer screen.Close()
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
		width, height := screen.Size()
		var lines []string
		lines, most = shown.frame(width, height, a.paint(a.out))
		page = max(1, height-6)
		return screen.Draw(lines)
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
	keys := screen.Keys(ctx)
	resized, stop := term.Resizes()
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
