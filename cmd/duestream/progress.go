package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// progress draws one line about work under way, over and over. On anything but a terminal it draws nothing.
type progress struct {
	w     io.Writer // nil: draws nothing
	what  string
	start time.Time
	drawn time.Time

	mu sync.Mutex
}

func (a *app) newProgress(what string) *progress {
	p := &progress{what: what, start: time.Now()}
	if isTerminal(a.err) {
		p.w = unfiltered(a.err).(io.Writer)
	}
	return p
}

const progressEvery = 200 * time.Millisecond

// show draws how much is done: a count, and the share of the whole where it is known (else negative).
func (p *progress) show(count int64, share float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil || now.Sub(p.drawn) < progressEvery {
		return
	}
	p.drawn = now
	rate := int64(float64(count) / max(now.Sub(p.start).Seconds(), 0.001))
	fmt.Fprintf(p.w, "\r\x1b[K%s %s, %s/s", p.what, human.Thousands(count), human.Thousands(rate))
	if share >= 0 {
		fmt.Fprintf(p.w, ", %.0f%%", 100*min(share, 1))
	}
	if elapsed := now.Sub(p.start); share > 0 && share < 1 && elapsed >= time.Second {
		fmt.Fprintf(p.w, ", %s to go", human.Short(time.Duration(float64(elapsed)*(1-share)/share).Round(time.Second)))
	}
}

// clear removes the line, so that something else can be written.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && !p.drawn.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = time.Time{}
	}
}
