package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/listener"
)

// UnlessStopped returns the error of a start, or nil if the process was told to stop meanwhile.
func UnlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ErrStarts: the process is not ready, because it waits for Redis.
var ErrStarts = errors.New("it starts, and waits for Redis")

// Probes are the endpoints about this process that a listener serves beside the metrics.
type Probes struct {
	Alive    func() error // the reason to restart the process, or nil
	Ready    func() error // the reason why the process does not do its work now, or nil
	Broken   func() error // an error that names queues which no process can serve, or nil; may be unset
	Level    *slog.LevelVar
	Log      *slog.Logger
	Profiles bool
}

// AddHealthTo adds /healthz and /readyz to a listener.
func (p Probes) AddHealthTo(l *listener.Listener) {
	l.Handle("GET /healthz", probeHandler(p.Alive, nil))
	l.Handle("GET /readyz", probeHandler(p.Ready, p.Broken))
}

// AddTo adds all probes to a listener.
func (p Probes) AddTo(l *listener.Listener) {
	p.AddHealthTo(l)
	l.Handle("GET /loglevel", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, p.levelName())
	}))
	l.Handle("PUT /loglevel", http.HandlerFunc(p.setLevel))
	if !p.Profiles {
		return
	}
	l.Handle("GET /debug/pprof/", http.HandlerFunc(pprof.Index))
	l.Handle("GET /debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
	l.Handle("GET /debug/pprof/profile", withLongWrites(pprof.Profile))
	l.Handle("GET /debug/pprof/trace", withLongWrites(pprof.Trace))
}

// probeHandler returns a handler that answers 503 with the text of trouble, or 200 with "ok" and the text of details.
func probeHandler(trouble, details func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := trouble(); err != nil {
			writeText(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		text := "ok"
		if details != nil {
			if err := details(); err != nil {
				text += "\n" + err.Error()
			}
		}
		writeText(w, http.StatusOK, text)
	})
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n")
}

func (p Probes) levelName() string { return strings.ToLower(p.Level.Level().String()) }

// setLevel sets the log level to debug, info, warn or error, until the process ends. It refuses browsers, because a
// page on any host could reach it by DNS rebinding, as a page of the same origin. Browsers send Origin with every PUT,
// and curl does not.
func (p Probes) setLevel(w http.ResponseWriter, r *http.Request) {
	if len(r.Header.Values("Origin"))+len(r.Header.Values("Sec-Fetch-Site")) > 0 {
		writeText(w, http.StatusForbidden, "not from a page of a browser: curl -X PUT -d info")
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		writeText(w, http.StatusBadRequest, "the body must be debug, info, warn or error")
		return
	}
	level, known := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}[strings.ToLower(strings.TrimSpace(string(text)))]
	if !known {
		writeText(w, http.StatusBadRequest, fmt.Sprintf("level %q: must be debug, info, warn or error", text))
		return
	}
	before := p.levelName()
	p.Level.Set(level)
	p.Log.Log(r.Context(), max(level, slog.LevelInfo), "log level changed", slog.String("before", before),
		slog.String("now", p.levelName()))
	writeText(w, http.StatusOK, p.levelName())
}

// withLongWrites lets a handler write for up to ten minutes. pprof refuses durations beyond the server's write
// timeout, so the handler does not see the server.
func withLongWrites(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Minute))
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil)))
	})
}

// Ask returns a function that calls question on a bridge, worker or runner, and returns nil before that runs.
func Ask[T any](running *atomic.Pointer[T], question func(*T) error) func() error {
	return func() error {
		if r := running.Load(); r != nil {
			return question(r)
		}
		return nil
	}
}
