package main

import (
	"cmp"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// metricsOptions say where serve and work show what they do.
type metricsOptions struct{ addr string }

func (o *metricsOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.addr, "metrics", "",
		"answer over HTTP on this host:port, for Prometheus on /metrics; default $DUESTREAM_METRICS_ADDR, else not at all")
}

// listen answers where the flag says, else where the environment does; nil where neither does.
func (o *metricsOptions) listen(environment string, log *slog.Logger) (*listener.Listener, error) {
	addr := cmp.Or(o.addr, environment)
	if addr == "" {
		return nil, nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, usage.Errorf("metrics %q: must be host:port, as 127.0.0.1:9090", addr)
	}
	return listener.Listen(addr, log)
}
