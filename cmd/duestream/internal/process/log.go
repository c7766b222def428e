// Package process has what commands share that run until they are stopped: the log, metrics and probes.
package process

import (
	"io"
	"log"
	"log/slog"
	"strings"

	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// mostLibraryBytes bounds the part of a library's line that is logged.
const mostLibraryBytes = 80

// libraryLog receives what libraries write to the standard logger. net/http writes there, and quotes up to 4 KiB that
// a server sent unasked. Only the words before the quotation are logged, at the lowest level.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(line []byte) (int, error) {
	words, _, _ := strings.Cut(string(line), `"`)
	words, _, _ = strings.Cut(words, "\n")
	l.log.Debug("a library says", slog.String("error", words[:min(len(words), mostLibraryBytes)]))
	return len(line), nil
}

// tameLibraries redirects the standard logger of this process to the given logger, and returns it.
func tameLibraries(to *slog.Logger) *slog.Logger {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
	return to
}

// NewLogger returns the logger of a process. What libraries write to the standard logger goes there as well.
func NewLogger(w io.Writer, format settings.LogFormat, level slog.Leveler) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && term.IsTerminal(w) {
		return tameLibraries(slog.New(slog.NewTextHandler(w, opt)))
	}
	return tameLibraries(slog.New(slog.NewJSONHandler(w, opt)))
}
