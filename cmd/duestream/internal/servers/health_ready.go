package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// healthOfListener runs `health --ready`. It asks the listener of the process on this machine, not Redis.
func healthOfListener(ctx context.Context, a *cli.App) error {
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	// Not http.DefaultTransport, which would use a proxy from the environment.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
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
	err = a.Print(report, func() {
		if report.Ready { // the body of /readyz is "ok", perhaps with a note behind it
			_, _ = fmt.Fprintln(a.Out, "ready"+strings.TrimPrefix(report.Says, "ok"))
		}
	})
	if !report.Ready {
		err = errors.Join(err, fmt.Errorf("not ready: %s", report.Says))
	}
	return err
}
