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

// probes are what the listener answers about this process beside metrics.
type probes struct {
	alive    func() error // why it must be started anew
	ready    func() error // why it does not do its work now
	broken   func() error // what it cannot serve, and nobody else could; nil: it never says
	level    *slog.LevelVar
	log      *slog.Logger
	profiles bool
}

// health adds those that tell how the process is to a listener.
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

// answer is 200 and "ok", and what there is to be said beside, or 503 and what is wrong, a line each.
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

// setLevel takes debug, info, warn or error, until the process ends. It takes nothing from a page of a browser, whatever host
// that is of: a page may have its own name lead to this address, and is of the same origin then. Browsers name the origin with
// every PUT; curl does not.
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

// long lets a handler write for as long as it was asked to. It refuses a time beyond the server's own limit otherwise.
func long(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Minute))
		h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil)))
	})
}

// healthOfListener is `health --ready`: it asks the listener of the process on this machine, and not Redis.
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
