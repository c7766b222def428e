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

// lockedWriter lets several goroutines write without mixing their writes.
type lockedWriter struct {
	w  io.Writer
	mu sync.Mutex
}

// NewLockedWriter returns a writer to w that several goroutines may use.
func NewLockedWriter(w io.Writer) io.Writer { return &lockedWriter{w: w} }

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Unfiltered returns the stream behind an outlet, for raw bytes and for our own control sequences.
func Unfiltered(stream any) any {
	if o, ok := stream.(*Outlet); ok {
		return o.raw
	}
	return stream
}

// FileOf returns the file behind a stream, if there is one.
func FileOf(stream any) (*os.File, bool) {
	f, ok := Unfiltered(stream).(*os.File)
	return f, ok
}

// Width returns the width of a terminal, and 0 for any other stream.
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
