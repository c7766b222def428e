package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of Floods for one text: lines written within a window. One more line counts the others.
const (
	floodLines  = 10
	floodWindow = 10 * time.Second
)

// Floods writes log lines of which there may be thousands a second, one for each message that fails. For each text it
// writes the first lines of a window, and at the window's end how many were left out, as left_out. After Close every
// line that was left out has been counted. The zero value is ready; any number of goroutines may write.
type Floods struct {
	mu    sync.Mutex
	kinds map[string]*flood
}

// flood counts the lines of one text in the current window.
type flood struct {
	began     time.Time
	said, out int
	log       *slog.Logger
	level     slog.Level
	end       *time.Timer // of the window; nil = no line was left out
}

// Log writes a line, or counts it. Like slog, it does nothing if the level is not enabled.
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
	if one.said < floodLines {
		one.said++
		return true
	}
	one.out++
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
	if ours && one.out > 0 {
		one.end.Stop()
		one.log.LogAttrs(context.Background(), one.level, text, slog.Int("left_out", one.out),
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
