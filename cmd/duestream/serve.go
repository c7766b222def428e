package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/notify"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func (a *app) serve() *cobra.Command {
	var metrics metricsOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a bridge: move messages into streams when they are due",
		Long: `Runs a bridge until SIGTERM or SIGINT. Any number of bridges may run beside one
another; they share the queues, and take over from one another within seconds.
A bridge keeps no state: what it knows is in Redis. When Redis is away, at the
start or later, it waits for it.

The first signal is a clean stop (exit code 0), a second one ends it at once (130).

Environment (the flags --redis and --prefix win over it):

` + settings.Table() + `
The policy (VISIBILITY_TIMEOUT, MAX_ATTEMPTS, RETRY_MIN, RETRY_MAX) is written to
Redis as the defaults of all queues: the bridge that starts last wins. Queues and
groups can have their own: see ` + "`duestream queue set`.",
		Example: `  duestream serve --redis redis://127.0.0.1:6379
  DUESTREAM_REDIS_URL='redis://sentinel-1:26379?master_set=main' DUESTREAM_MAX_ATTEMPTS=5 duestream serve`,
	}
	metrics.flags(cmd)
	return a.does(cmd, nil, func(ctx context.Context, _ []string) error {
		// Join, so that one try shows everything that is wrong.
		s, policy, err := settings.Read()
		if err := errors.Join(a.resolve(), err); err != nil {
			return err
		}
		return a.runBridge(ctx, s, policy, metrics)
	})
}

func (a *app) runBridge(ctx context.Context, s settings.Serve, policy bridge.Policy, metrics metricsOptions) error {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := newLogger(a.err, s.LogFormat, level)
	self := bridge.NewIdentity(version)
	log.Info("bridge starts", slog.String("version", version), slog.String("host", self.Host), slog.Int("pid", self.PID),
		slog.String("bridge", self.ID), slog.String("redis", hostOf(a.redisURL)), slog.String("prefix", a.prefix))
	looked, observer, err := metrics.listen(s.MetricsAddr, log)
	if err != nil {
		return err
	}
	defer looked.Close()
	report := &reporter{file: s.HealthFile, self: self, log: log}
	if report.manager, err = notify.FromEnvironment(); err != nil {
		log.Warn("the service manager is not told how this process is", slog.Any("error", err))
	}
	defer context.AfterFunc(ctx, func() { report.stopping.Store(true) })()
	defer report.start(ctx)()
	probes{alive: report.alive, ready: report.ready, broken: report.broken, level: level, log: log,
		profiles: metrics.profiles}.on(looked)
	looked.Serve()
	r, err := bridge.DialWait(ctx, a.redisURL, log, a.passwords)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited
		}
		return err
	}
	defer r.Close()
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: a.prefix, Defaults: policy, AnyServer: s.AnyServer,
		Identity: self, Observer: observer, Logger: log})
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
	late := time.NewTimer(time.Duration(s.ShutdownTimeout))
	defer late.Stop()
	select {
	case err = <-ended:
		if err == nil {
			log.Info("bridge stopped")
		}
		return err
	case <-late.C:
		return errors.New("the bridge did not stop within DUESTREAM_SHUTDOWN_TIMEOUT: nothing is lost, other bridges take over")
	}
}

func newLogger(w io.Writer, format settings.LogFormat, level slog.Leveler) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && term.IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opt))
	}
	return slog.New(slog.NewJSONHandler(w, opt))
}
