package servers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/internal/loop"
)

const (
	dashboardPath = "/dashboard" // of the dashboard on the address for operators, without the slash at the end

	// dashboardConnections is the limit of connections to an address with a dashboard. Each viewer keeps one connection
	// open for updates, and opens others for pages.
	dashboardConnections = 2 * dashboard.DefaultMaxViewers

	dashboardRedial = 2 * time.Second // wait after a connection that Redis refused
)

// isDashboard reports whether a path leads to the dashboard, which has a login of its own. / and /dashboard redirect to
// it.
func isDashboard(path string) bool {
	return path == "/" || path == dashboardPath || strings.HasPrefix(path, dashboardPath+"/")
}

// mountDashboard adds the dashboard to the address for operators. The redirects are relative, because a proxy may have
// stripped a prefix from the path.
func (h *httpSide) mountDashboard() {
	toDashboard := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "dashboard/")
		w.WriteHeader(http.StatusFound)
	})
	h.admin.Handle("GET /{$}", toDashboard)
	h.admin.Handle("GET "+dashboardPath, toDashboard)
	h.admin.Handle(dashboardPath+"/", http.HandlerFunc(h.answerDashboard))
}

// answerDashboard answers a request with the dashboard, and with 503 until Redis was reached.
func (h *httpSide) answerDashboard(w http.ResponseWriter, r *http.Request) {
	handler := h.dashboard.Load()
	if handler == nil {
		answerDashboardStarts(w)
		return
	}
	(*handler).ServeHTTP(w, r)
}

// answerDashboardStarts answers with a page that tries again by itself.
func answerDashboardStarts(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="2">
<title>The dashboard is not ready · duestream</title>
</head>
<body>
<h1>The dashboard is not ready</h1>
<p>This process waits for Redis, or stops. This page tries again every two seconds.</p>
</body>
</html>
`)
}

// runDashboard connects to Redis, and serves the dashboard until ctx ends. It goes on trying while Redis refuses the
// connection, because the bridge or the gateway of this process reports that error and ends the process.
func (h *httpSide) runDashboard(ctx context.Context) error {
	r := h.dialForDashboard(ctx)
	if r == nil {
		return nil
	}
	defer r.Close()
	store, err := access.Open(access.Config{Client: r.Client, Prefix: h.app.Prefix, File: h.o.tokens, Log: h.log})
	if err != nil {
		return err
	}
	if h.socket == nil && h.o.firstToken != "" { // with a socket, the gateway makes the first token
		if err := h.ensureTokenWhenReady(ctx, store); err != nil {
			return process.UnlessStopped(ctx, err)
		}
	}
	d, err := dashboard.New(dashboard.Config{Redis: r, Prefix: h.app.Prefix, Access: store, Version: h.app.Version,
		ReadOnly: h.o.readOnly, AllowOldBridges: h.app.AllowOldBridges, Observer: h.observer, Logger: h.log})
	if err != nil {
		return err
	}
	handler := http.StripPrefix(dashboardPath, d)
	h.dashboard.Store(&handler)
	<-ctx.Done()
	h.dashboard.Store(nil)
	return closeDashboard(ctx, d, h.shutdownTimeout, h.log)
}

// dialForDashboard returns a connection to Redis, or nil when ctx has ended.
func (h *httpSide) dialForDashboard(ctx context.Context) *bridge.Redis {
	for {
		r, err := bridge.DialWait(ctx, h.app.RedisURL, nil, h.app.Passwords, cli.FailFast)
		if err == nil {
			return r
		}
		if !loop.Sleep(ctx, dashboardRedial) {
			return nil
		}
	}
}

// closeDashboard closes a dashboard. After timeout it cuts off the changes in flight.
func closeDashboard(ctx context.Context, d *dashboard.Dashboard, timeout time.Duration, log *slog.Logger) error {
	shutdown, end := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer end()
	err := d.Shutdown(shutdown)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("changes of the dashboard did not end in time, and were cut off", slog.Duration("timeout", timeout))
		return nil
	}
	return err
}
