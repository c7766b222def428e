package servers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Gateway returns the command gateway.
func Gateway(a *cli.App) *cobra.Command {
	var o httpFlags
	var metrics process.MetricsFlags
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer over HTTP, for programs that may not talk to Redis",
		Long: `Answers HTTP requests until SIGTERM or SIGINT: publish, consume, cancel, look, settings,
dead letters, recurrences. docs/reference/http.md and GET /v1/openapi.json describe the
requests. A gateway keeps no state. Run any number of gateways behind a load balancer,
beside bridges (duestream serve).

Every request needs a token (duestream token add). While there is no token, all requests
are refused. If there is no token at the start, and --first-token-file is given, the
gateway makes a token with all rights, and writes its secret to a new file of mode 0600.
No secret is printed.

The gateway speaks HTTP/1.1 and HTTP/2, over TLS with --tls-cert and --tls-key. On a
network use TLS, or put the gateway behind a proxy that uses TLS. Changed certificate
files are read again within seconds.

With --admin it answers operators on a separate address: a dashboard at /dashboard/,
health and metrics. If other
machines can reach that address, operators need accounts, and the address uses TLS if
TLS is on. With --push the gateway posts messages to URLs, as push run does.

Environment: DUESTREAM_HTTP_ADDR, DUESTREAM_HTTP_TOKENS_FILE,
DUESTREAM_HTTP_FIRST_TOKEN_FILE, DUESTREAM_HTTP_DURABILITY,
DUESTREAM_HTTP_TLS_CERT, DUESTREAM_HTTP_TLS_KEY,
DUESTREAM_HTTP_TLS_CLIENT_CA, DUESTREAM_ADMIN_ADDR,
DUESTREAM_ADMIN_ACCOUNTS_FILE, DUESTREAM_DASHBOARD_READ_ONLY, DUESTREAM_PUSH, DUESTREAM_ALLOW_OLD_BRIDGES, and as for
serve DUESTREAM_LOG_LEVEL, DUESTREAM_LOG_FORMAT, DUESTREAM_METRICS_ADDR and
DUESTREAM_SHUTDOWN_TIMEOUT.`,
		Example: "  duestream gateway\n  duestream gateway --http 0.0.0.0:7777 --admin 127.0.0.1:7778 --push",
	}
	o.flags(cmd, defaultHTTPAddr)
	a.OldBridgesFlag(cmd)
	metrics.Flags(cmd)
	return a.WithRun(cmd, nil, func(ctx context.Context, _ []string) error {
		var s settings.Process
		err := errors.Join(a.Resolve(), settings.Fill(&s), o.resolve())
		if err == nil {
			err = s.Check()
		}
		if err != nil {
			return err
		}
		o.addr = cmp.Or(o.addr, defaultHTTPAddr)
		return runGateway(ctx, a, s, o, metrics)
	})
}

func runGateway(ctx context.Context, a *cli.App, s settings.Process, o httpFlags, metrics process.MetricsFlags) error {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := process.NewLogger(a.Err, s.LogFormat, level)
	log.Info("gateway starts", slog.String("version", a.Version), slog.String("redis", cli.HostOf(a.RedisURL)),
		slog.String("prefix", a.Prefix))
	side, err := openHTTPSide(a, o, log, time.Duration(s.ShutdownTimeout))
	if err != nil {
		return err
	}
	defer side.close()
	metricsServer, observer, err := metrics.Listen(s.MetricsAddr, a.Version, log, side.admin)
	if err != nil {
		return err
	}
	defer metricsServer.Close()
	side.observer = observer
	probes := process.Probes{Alive: side.alive, Ready: side.ready, Level: level, Log: log, Profiles: metrics.Profiles}
	probes.AddTo(metricsServer)
	probes.AddHealthTo(side.admin)
	metricsServer.Serve()
	side.admin.Serve()
	return side.run(ctx)
}
