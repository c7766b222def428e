package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Within floodWindow, Floods writes at most floodLines lines with the same message.
const (
	floodLines  = 10
	floodWindow = 10 * time.Second
)

// Floods limits log lines that may come thousands of times a second, one for each queue message that fails. Of the
// lines with the same log message, it writes the first ones of a window. If it left out lines, it writes one more line
// when the window ends, whose attribute left_out is their number. Close ends all windows; Floods can be used again
// after it. The zero value is ready for use, by any number of goroutines.
type Floods struct {
	mu    sync.Mutex
	kinds map[string]*flood // by log message
}

// flood counts the lines with one log message in the current window.
type flood struct {
	began   time.Time
	written int
	leftOut int
	log     *slog.Logger
	level   slog.Level
	end     *time.Timer // ends the window; nil = no line was left out
}

// Log writes a line, or counts it as left out. Like slog, it does nothing if the level is not enabled.
func (f *Floods) Log(log *slog.Logger, level slog.Level, text string, attrs ...slog.Attr) {
	if log.Enabled(context.Background(), level) && f.admits(log, level, text) {
		log.LogAttrs(context.Background(), level, text, attrs...)
	}
}

func (f *Floods) admits(log *slog.Logger, level slog.Level, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	one := f.kinds[text]
	if one == nil || one.end == nil && now.Sub(one.began) >= floodWindow {
		one = &flood{began: now, log: log, level: level}
		if f.kinds == nil {
			f.kinds = map[string]*flood{}
		}
		f.kinds[text] = one
	}
	if one.written < floodLines {
		one.written++
		return true
	}
	one.leftOut++
	if one.end == nil {
		one.end = time.AfterFunc(floodWindow-now.Sub(one.began), func() { f.count(text, one) })
	}
	return false
}

// count ends a window, and logs how many lines were left out.
func (f *Floods) count(text string, one *flood) {
	f.mu.Lock()
	ours := f.kinds[text] == one
	if ours {
		delete(f.kinds, text)
	}
	f.mu.Unlock()
	if ours && one.leftOut > 0 {
		one.end.Stop()
		one.log.LogAttrs(context.Background(), one.level, text, slog.Int("left_out", one.leftOut),
			slog.Duration("within", time.Since(one.began).Round(time.Millisecond)))
	}
}

// Close ends all windows.
func (f *Floods) Close() {
	f.mu.Lock()
	open := make(map[string]*flood, len(f.kinds))
	for text, one := range f.kinds {
		open[text] = one
	}
	f.mu.Unlock()
	for text, one := range open {
		f.count(text, one)
	}
}
