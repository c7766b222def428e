package integration

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// lockedLog is a log that may be read while it is being written.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// A bridge that may not run INFO cannot check the settings of its server. It serves the server, and logs one line that
// says so. Regression: it logged nothing, even if the server evicted keys.
func TestBridgeSaysThatItCouldNotCheckTheServer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		if err := g.do("ACL", "SETUSER", "bridge"+g.suffix, "-info").Error(); err != nil {
			t.Fatal(err)
		}
		log := &lockedLog{}
		b, err := bridge.NewBridge(bridge.Config{Redis: g.dial("bridge"), Prefix: g.prefix,
			Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s := &stack{t: t}
		stop := s.run("bridge", b.Run)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n, err := g.do("ZCARD", g.prefix+":bridges").AsInt64()
			return err == nil && n == 1, "it serves nothing"
		})
		stop()
		const line = "the server could not be checked"
		if n := log.count(line); n != 1 || log.count("INFO") == 0 {
			t.Errorf("%d lines %q:\n%s", n, line, log.text.String())
		}
	})
}
