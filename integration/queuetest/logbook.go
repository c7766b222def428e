package queuetest

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
)

// LogBook keeps the lines of a logger, so that a test can count them.
type LogBook struct {
	mu    sync.Mutex
	lines []string
}

// Write records a line of the logger.
func (b *LogBook) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(line))
	return len(line), nil
}

// Logger returns a logger of all levels that writes to b.
func (b *LogBook) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Count returns how many lines contain a text.
func (b *LogBook) Count(text string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// Lines returns the lines that contain a text.
func (b *LogBook) Lines(text string) (lines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Turns returns, in their order, "failing" for each line that says that something is failing, and "again" for each line
// that says that something works again.
func (b *LogBook) Turns() (said []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		switch {
		case strings.Contains(line, "is failing"):
			said = append(said, "failing")
		case strings.Contains(line, "works again"):
			said = append(said, "again")
		}
	}
	return said
}

// Array returns the elements of a reply.
func Array(t *testing.T, m rueidis.RedisMessage) []rueidis.RedisMessage {
	t.Helper()
	list, err := m.ToArray()
	if err != nil {
		t.Fatal(err)
	}
	return list
}
