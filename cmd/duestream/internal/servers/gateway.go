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
		Long: `Answers HTTP requests until SIGTERM or SIGINT: publish, cancel, look, settings, dead
letters, recurrences. docs/reference/http.md describes it, and GET /v1/openapi.json. It keeps no
state: run as many as you like behind a load balancer, beside bridges (duestream serve).

Every request needs a token (duestream token add). While there is none, all are refused.
With --first-token-file one that may do everything is made then, and written to a new
file of mode 0600; no secret is printed.

It speaks HTTP/1.1 and HTTP/2, with --tls-cert and --tls-key over TLS; on a network let
it do so, or put it behind what does. Files that change are read again within seconds.

With --admin it answers operators on an address of their own: health and metrics. Beyond
this machine they need accounts, and TLS is spoken there as well if it is on. With --push
it posts messages to URLs, as push run does.

Environment: DUESTREAM_HTTP_ADDR, DUESTREAM_HTTP_TOKENS_FILE,
DUESTREAM_HTTP_FIRST_TOKEN_FILE, DUESTREAM_HTTP_DURABILITY,
DUESTREAM_HTTP_TLS_CERT, DUESTREAM_HTTP_TLS_KEY,
DUESTREAM_HTTP_TLS_CLIENT_CA, DUESTREAM_ADMIN_ADDR,
DUESTREAM_ADMIN_ACCOUNTS_FILE, DUESTREAM_PUSH, DUESTREAM_ALLOW_OLD_BRIDGES, and as for
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
	looked, observer, err := metrics.Listen(s.MetricsAddr, a.Version, log, side.admin)
	if err != nil {
		return err
	}
	defer looked.Close()
	side.observer = observer
	shown := process.Probes{Alive: side.alive, Ready: side.ready, Level: level, Log: log, Profiles: metrics.Profiles}
	shown.AddTo(looked)
	shown.AddHealthTo(side.admin)
	looked.Serve()
	side.admin.Serve()
	return side.run(ctx)
}
