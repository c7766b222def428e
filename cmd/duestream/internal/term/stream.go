package term

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := FileOf(stream)
	return ok && term.IsTerminal(int(f.Fd()))
}

// lockedWriter lets several goroutines write whole lines.
type lockedWriter struct {
	w  io.Writer
	mu sync.Mutex
}

// NewLockedWriter returns a writer to w.
func NewLockedWriter(w io.Writer) io.Writer { return &lockedWriter{w: w} }

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Unfiltered returns the stream behind an outlet: for bytes that are wanted as they are, and for our own control sequences.
func Unfiltered(stream any) any {
	if o, ok := stream.(*Outlet); ok {
		return o.raw
	}
	return stream
}

// FileOf returns the file behind a stream, if it is one.
func FileOf(stream any) (*os.File, bool) {
	f, ok := Unfiltered(stream).(*os.File)
	return f, ok
}

// Width is that of a stream; 0 where it is not a terminal.
func Width(stream any) int {
	if !IsTerminal(stream) {
		return 0
	}
	f, _ := FileOf(stream)
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
