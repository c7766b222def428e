package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// logLines keeps log records of Info and above.
type logLines struct {
	mu      sync.Mutex
	records []logLine
}

type logLine struct {
	message string
	about   string // the attributes of the logger, which tell which part logs
	why     string // the attribute "error"
}

func newLogLines() *logLines { return &logLines{} }

func (l *logLines) logger() *slog.Logger { return slog.New(&logHandler{lines: l}) }

func (l *logLines) count(message string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if r.message == message {
			n++
		}
	}
	return n
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out strings.Builder
	for _, r := range l.records {
		fmt.Fprintln(&out, r.about, r.message, r.why)
	}
	return out.String()
}

type logHandler struct {
	lines *logLines
	about string
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	line := logLine{message: r.Message, about: h.about}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			line.why = a.Value.String()
		}
		return true
	})
	h.lines.mu.Lock()
	defer h.lines.mu.Unlock()
	h.lines.records = append(h.lines.records, line)
	return nil
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	about := h.about
	for _, a := range attrs {
		about += a.String() + " "
	}
	return &logHandler{lines: h.lines, about: about}
}

func (h *logHandler) WithGroup(string) slog.Handler { return h }

// wantPairs checks that, before each line "works again" or "ended" of a part, the part has logged more lines "is
// failing" than such lines.
func (l *logLines) wantPairs(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	failing := map[string]int{}
	for _, r := range l.records {
		if part, _, ok := strings.Cut(r.message, " is failing"); ok {
			failing[r.about+part]++
		} else if part, ok := failsNoMore(r.message); ok {
			if failing[r.about+part]--; failing[r.about+part] < 0 {
				t.Errorf("%s%s: fails no more, and did not say that it is failing", r.about, part)
			}
		}
	}
}

// failsNoMore returns the part that logs that it works again, or that it has ended.
func failsNoMore(message string) (part string, ok bool) {
	if part, ok = strings.CutSuffix(message, " ended while it was failing"); ok {
		return part, true
	}
	return strings.CutSuffix(message, " works again")
}

// wantLog compares the log with the number of faults. A part logs at most once for each fault that it is failing, and
// at most as often that it works again or has ended. wantLog waits until each part that failed has logged either. parts
// is the number of bridges or workers that have the same name in the log, whose lines are counted together.
func (n *network) wantLog(faults, parts int) {
	n.t.Helper()
	var failing, working map[string]int
	// A part that waits in a read logs that it works again only after that read.
	redistest.Eventually(n.t, 15*time.Second, func() (bool, string) {
		failing, working = n.log.changes()
		for part := range failing {
			if working[part] == 0 {
				return false, part + " does not say that it works again or has ended"
			}
		}
		return true, ""
	})
	n.log.wantPairs(n.t)
	for part, lines := range failing {
		if most := faults * parts; lines > most || working[part] > most {
			n.t.Errorf("%s: %d lines that it is failing, %d that it works again, for %d faults", part, lines, working[part],
				faults)
		}
	}
}

// changes counts, for each part, the lines "is failing", and the lines "works again" and "ended".
func (l *logLines) changes() (failing, working map[string]int) {
	failing, working = map[string]int{}, map[string]int{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if part, _, ok := strings.Cut(r.message, " is failing"); ok {
			failing[r.about+part]++
		} else if part, ok := failsNoMore(r.message); ok {
			working[r.about+part]++
		}
	}
	return failing, working
}

// label marks this goroutine, and all goroutines that it starts, with the name of the test.
func label(t *testing.T) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("network", t.Name())))
}

// goroutines counts the goroutines with the label of the test.
func goroutines(t testing.TB) (n int) {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(profile.String()) {
		if first, _, ok := strings.Cut(line, " @"); ok {
			count, _ = strconv.Atoi(first)
		} else if strings.HasPrefix(line, "# labels:") && strings.Contains(line, strconv.Quote(t.Name())) {
			n += count
		}
	}
	return n
}

// wantGoroutines waits until there are no more goroutines than before the faults, apart from 8 that the client library
// may keep for new connections. A goroutine left by each fault would be more.
func (n *network) wantGoroutines() {
	n.t.Helper()
	if n.base == 0 {
		return // the test has not called warm, because it makes only one fault
	}
	now := 0
	defer func() { n.t.Logf("goroutines: %d before the faults, %d after", n.base, now) }()
	redistest.Eventually(n.t, 15*time.Second, func() (bool, string) {
		now = goroutines(n.t)
		return now <= n.base+8, fmt.Sprintf("%d goroutines, and %d before the faults", now, n.base)
	})
}
