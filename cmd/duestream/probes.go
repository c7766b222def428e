package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// probes are the endpoints about this process that a listener serves beside the metrics.
type probes struct {
	alive    func() error // the reason to restart the process, or nil
	ready    func() error // the reason why it does not do its work now, or nil
	broken   func() error // queues that no process can serve; nil: never any
	level    *slog.LevelVar
	log      *slog.Logger
	profiles bool
}

// health adds /healthz and /readyz to a listener.
func (p probes) health(l *listener.Listener) {
	l.Handle("GET /healthz", answer(p.alive, nil))
	l.Handle("GET /readyz", answer(p.ready, p.broken))
}

// on adds all probes to a listener.
func (p probes) on(l *listener.Listener) {
	p.health(l)
	l.Handle("GET /loglevel", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		say(w, http.StatusOK, p.levelName())
	}))
	l.Handle("PUT /loglevel", http.HandlerFunc(p.setLevel))
	if !p.profiles {
		return
	}
	l.Handle("GET /debug/pprof/", http.HandlerFunc(pprof.Index))
	l.Handle("GET /debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
	l.Handle("GET /debug/pprof/profile", long(pprof.Profile))
	l.Handle("GET /debug/pprof/trace", long(pprof.Trace))
}

// answer returns a handler: 503 with the text of trouble, or 200 with "ok" and the text of beside.
func answer(trouble, beside func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := trouble(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		text := "ok"
		if beside != nil {
			if err := beside(); err != nil {
				text += "\n" + err.Error()
			}
		}
		say(w, http.StatusOK, text)
	})
}

func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n")
}

func (p probes) levelName() string { return strings.ToLower(p.level.Level().String()) }

// setLevel sets the log level to debug, info, warn or error, until the process ends. It refuses browsers: a page on
// any host could reach it by DNS rebinding, and would then be of the same origin. Browsers send Origin with every
// PUT; curl does not.
func (p probes) setLevel(w http.ResponseWriter, r *http.Request) {
	if len(r.Header.Values("Origin"))+len(r.Header.Values("Sec-Fetch-Site")) > 0 {
		say(w, http.StatusForbidden, "not from a page of a browser: curl -X PUT -d info")
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		say(w, http.StatusBadRequest, "the body must be debug, info, warn or error")
		return
	}
	level, known := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}[strings.ToLower(strings.TrimSpace(string(text)))]
	if !known {
		say(w, http.StatusBadRequest, fmt.Sprintf("level %q: must be debug, info, warn or error", text))
		return
	}
	before := p.levelName()
	p.level.Set(level)
	p.log.Log(r.Context(), max(level, slog.LevelInfo), "log level changed", slog.String("before", before),
		slog.String("now", p.levelName()))
	say(w, http.StatusOK, p.levelName())
}

// long lets a handler write for up to ten minutes. pprof refuses durations beyond the server's write timeout, so the
// handler does not see the server.
func long(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Minute))
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil)))
	})
}

// healthOfListener runs `health --ready`. It asks the listener of the process on this machine, not Redis.
func (a *app) healthOfListener(ctx context.Context) error {
	var s struct {
		MetricsAddr string `split_words:"true"`
	}
	if err := settings.Fill(&s); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(s.MetricsAddr)
	if err != nil || port == "0" {
		return usage.Errorf("--ready needs DUESTREAM_METRICS_ADDR, the same host:port as that of `duestream serve`")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy
	reply, err := client.Do(ask)
	if err != nil {
		return fmt.Errorf("nobody answers at DUESTREAM_METRICS_ADDR: %w", err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 64<<10))
	if err != nil {
		return err
	}
	report := struct {
		Ready bool   `json:"ready"`
		Says  string `json:"says"`
	}{reply.StatusCode == http.StatusOK, strings.TrimSpace(string(text))}
	err = a.print(report, func() {
		if report.Ready {
			_, _ = fmt.Fprintln(a.out, "ready"+strings.TrimPrefix(report.Says, "ok"))
		}
	})
	if !report.Ready {
		err = errors.Join(err, fmt.Errorf("not ready: %s", report.Says))
	}
	return err
}
