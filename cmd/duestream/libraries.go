package main

import (
	"log"
	"log/slog"
	"strings"
)

// mostLibraryBytes is how much of a line of a library is told.
const mostLibraryBytes = 80

// libraryLog takes what libraries write to the standard logger: net/http, which quotes up to 4 KiB of what a server sent
// unasked. It tells the words before the quotation, at the lowest level and in the format of all other lines.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(line []byte) (int, error) {
	words, _, _ := strings.Cut(string(line), `"`)
	words, _, _ = strings.Cut(words, "\n")
	l.log.Debug("a library says", slog.String("error", words[:min(len(words), mostLibraryBytes)]))
	return len(line), nil
}

// tameLibraries has the standard logger of this process write to a log of ours.
func tameLibraries(to *slog.Logger) *slog.Logger {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
	return to
}
