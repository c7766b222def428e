// Package servers has the commands that run bridges and gateways, check their health, and manage tokens.
package servers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/notify"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Serve returns the command serve.
func Serve(a *cli.App) *cobra.Command {
	var o httpFlags
	var metrics process.MetricsFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a bridge: move messages into streams when they are due",
		Long: `Runs a bridge until SIGTERM or SIGINT. Any number of bridges may run at the same time.
They share the queues, and take over from one another within seconds. A bridge keeps all
its state in Redis. While Redis is away, at the start or later, the bridge waits.

With --http it also takes HTTP requests, as duestream gateway does. With --admin it
answers operators, and shows them a dashboard at /dashboard/. With --push it posts messages to URLs, as push run does.

The first signal stops the bridge cleanly (exit code 0). A second signal ends it at once
(exit code 130).

Environment (the global flags --redis and --prefix take precedence):

` + settings.Table() + `
The policy (VISIBILITY_TIMEOUT, MAX_ATTEMPTS, RETRY_MIN, RETRY_MAX) is written to
Redis as the defaults of all queues: the bridge that starts last wins. Queues and
groups can have their own: see ` + "`duestream queue set`.",
		Example: `  duestream serve --redis redis://127.0.0.1:6379
  duestream serve --http 127.0.0.1:7777 --admin 127.0.0.1:7778
  DUESTREAM_REDIS_URL='redis://sentinel-1:26379?master_set=main' DUESTREAM_MAX_ATTEMPTS=5 duestream serve`,
	}
	o.flags(cmd, "not at all")
	a.OldBridgesFlag(cmd)
	metrics.Flags(cmd)
	return a.WithRun(cmd, nil, func(ctx context.Context, _ []string) error {
		// The errors are joined, so that one start reports all of them.
		s, policy, err := settings.Read()
		if err := errors.Join(a.Resolve(), err, o.resolve()); err != nil {
			return err
		}
		return runServe(ctx, a, s, policy, o, metrics)
	})
}

func runServe(ctx context.Context, a *cli.App, s settings.Serve, policy bridge.Policy, o httpFlags,
	metrics process.MetricsFlags) error {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := process.NewLogger(a.Err, s.LogFormat, level)
	self := bridge.NewIdentity(a.Version)
	log.Info("bridge starts", slog.String("version", a.Version), slog.String("host", self.Host), slog.Int("pid", self.PID),
		slog.String("bridge", self.ID), slog.String("redis", cli.HostOf(a.RedisURL)), slog.String("prefix", a.Prefix))
	shutdownTimeout := time.Duration(s.ShutdownTimeout)
	if o.addr != "" || o.push || o.admin != "" {
		shutdownTimeout /= 2 // the HTTP side stops in the first half, the bridge in the second
	}
	side, err := openHTTPSide(a, o, log, shutdownTimeout)
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
	report := &reporter{file: s.HealthFile, self: self, log: log}
	if report.manager, err = notify.FromEnvironment(); err != nil {
		log.Warn("the service manager is not told how this process is", slog.Any("error", err))
	}
	defer context.AfterFunc(ctx, func() { report.stopping.Store(true) })()
	defer report.start(ctx)()
	probes := process.Probes{
		Alive:  func() error { return errors.Join(report.alive(), side.alive()) },
		Ready:  func() error { return errors.Join(report.ready(), side.ready()) },
		Broken: report.broken, Level: level, Log: log, Profiles: metrics.Profiles,
	}
	probes.AddTo(metricsServer)
	probes.AddHealthTo(side.admin)
	metricsServer.Serve()
	side.admin.Serve()
	cfg := bridge.Config{Prefix: a.Prefix, Defaults: policy, AnyServer: s.AnyServer, Identity: self, Observer: observer,
		Logger: log}
	return side.runWith(ctx, func(ctx context.Context) error { return runBridge(ctx, a, cfg, report, shutdownTimeout) })
}

// runBridge runs a bridge until ctx ends.
func runBridge(
	ctx context.Context, a *cli.App, cfg bridge.Config, report *reporter, shutdownTimeout time.Duration,
) error {
	log := cfg.Logger
	r, err := bridge.DialWait(ctx, a.RedisURL, log, a.Passwords)
	if err != nil {
		return process.UnlessStopped(ctx, err)
	}
	defer r.Close()
	cfg.Redis = r
	b, err := bridge.NewBridge(cfg)
	if err != nil {
		return err
	}
	report.bridge.Store(b)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
	}
	log.Info("bridge stops")
	timeout := time.NewTimer(shutdownTimeout)
	defer timeout.Stop()
	select {
	case err = <-ended:
		if err == nil {
			log.Info("bridge stopped")
		}
		return err
	case <-timeout.C:
		return errors.New("the bridge did not stop within DUESTREAM_SHUTDOWN_TIMEOUT: nothing is lost, other bridges take over")
	}
}
