// Package process has the log, metrics and probes of commands that run until they are stopped.
package process

import (
	"io"
	"log"
	"log/slog"
	"strings"

	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// maxLibraryBytes is the largest part of a library's log line that is logged.
const maxLibraryBytes = 80

// libraryLog receives the lines that libraries write to the standard logger. net/http writes there, and quotes up to
// 4 KiB that a server sent unasked. Only the words before the quotation are logged, at the lowest level.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(line []byte) (int, error) {
	words, _, _ := strings.Cut(string(line), `"`)
	words, _, _ = strings.Cut(words, "\n")
	l.log.Debug("a library says", slog.String("error", words[:min(len(words), maxLibraryBytes)]))
	return len(line), nil
}

// redirectLibraries redirects the standard logger of this process to the given logger, and returns the given logger.
func redirectLibraries(to *slog.Logger) *slog.Logger {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
	return to
}

// NewLogger returns the logger of a process. It also gets the lines that libraries write to the standard logger.
func NewLogger(w io.Writer, format settings.LogFormat, level slog.Leveler) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && term.IsTerminal(w) {
		return redirectLibraries(slog.New(slog.NewTextHandler(w, opt)))
	}
	return redirectLibraries(slog.New(slog.NewJSONHandler(w, opt)))
}
