package term

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Progress draws one line about running work, again and again. It draws nothing unless the stream is a terminal.
type Progress struct {
	w     io.Writer // nil if nothing is to be drawn
	label string
	start time.Time
	drawn time.Time // when the line was last drawn; zero after Clear

	mu sync.Mutex
}

// NewProgress returns a progress line on a stream. The label stands before the count.
func NewProgress(stream any, label string) *Progress {
	p := &Progress{label: label, start: time.Now()}
	if IsTerminal(stream) {
		p.w = Unfiltered(stream).(io.Writer)
	}
	return p
}

// Draws reports whether anything will be drawn.
func (p *Progress) Draws() bool { return p.w != nil }

const progressInterval = 200 * time.Millisecond

// Show draws a count. share is the finished part of all work, from 0 to 1, or negative if it is unknown.
func (p *Progress) Show(count int64, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(count, share)
}

func (p *Progress) show(count int64, share float64) {
	now := time.Now()
	if p.w == nil || now.Sub(p.drawn) < progressInterval {
		return
	}
	p.drawn = now
	rate := int64(float64(count) / max(now.Sub(p.start).Seconds(), 0.001))
	fmt.Fprintf(p.w, "\r\x1b[K%s %s, %s/s", p.label, human.Thousands(count), human.Thousands(rate))
	if share >= 0 {
		fmt.Fprintf(p.w, ", %.0f%%", 100*min(share, 1))
	}
	if elapsed := now.Sub(p.start); share > 0 && share < 1 && elapsed >= time.Second {
		fmt.Fprintf(p.w, ", %s to go", human.Short(time.Duration(float64(elapsed)*(1-share)/share).Round(time.Second)))
	}
}

// Of draws that done of total items are finished.
func (p *Progress) Of(done, total int64) { p.Show(done, float64(done)/float64(max(1, done, total))) }

// Clear erases the line, so that other output can follow.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && !p.drawn.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = time.Time{}
	}
}

// Step draws the progress of a named step. The rate starts anew with each name. total is 0 if it is unknown.
func (p *Progress) Step(name string, done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.label != name {
		p.label, p.start = name, time.Now()
	}
	share := -1.0
	if total > 0 {
		share = float64(done) / float64(total)
	}
	p.show(int64(done), share)
}
