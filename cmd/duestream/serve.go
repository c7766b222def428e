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
	var o frontOptions
	var metrics metricsOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a bridge: move messages into streams when they are due",
		Long: `Runs a bridge until SIGTERM or SIGINT. Any number of bridges may run beside one
another; they share the queues, and take over from one another within seconds.
A bridge keeps no state: what it knows is in Redis. When Redis is away, at the
start or later, it waits for it.

With --http it also takes HTTP requests, as duestream gateway does, with --admin it
answers operators, and with --push it posts messages to URLs, as push run does.

The first signal is a clean stop (exit code 0), a second one ends it at once (130).

Environment (the flags --redis and --prefix win over it):

` + settings.Table() + `
The policy (VISIBILITY_TIMEOUT, MAX_ATTEMPTS, RETRY_MIN, RETRY_MAX) is written to
Redis as the defaults of all queues: the bridge that starts last wins. Queues and
groups can have their own: see ` + "`duestream queue set`.",
		Example: `  duestream serve --redis redis://127.0.0.1:6379
  duestream serve --http 127.0.0.1:7777 --admin 127.0.0.1:7778
  DUESTREAM_REDIS_URL='redis://sentinel-1:26379?master_set=main' DUESTREAM_MAX_ATTEMPTS=5 duestream serve`,
	}
	o.flags(cmd, "not at all")
	a.oldBridgesFlag(cmd)
	metrics.flags(cmd)
	return a.does(cmd, nil, func(ctx context.Context, _ []string) error {
		// Joined, so that one start reports all errors.
		s, policy, err := settings.Read()
		if err := errors.Join(a.resolve(), err, o.resolve()); err != nil {
			return err
		}
		return a.runBridge(ctx, s, policy, o, metrics)
	})
}

func (a *app) runBridge(ctx context.Context, s settings.Serve, policy bridge.Policy, o frontOptions,
	metrics metricsOptions) error {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := newLogger(a.err, s.LogFormat, level)
	self := bridge.NewIdentity(a.version)
	log.Info("bridge starts", slog.String("version", a.version), slog.String("host", self.Host), slog.Int("pid", self.PID),
		slog.String("bridge", self.ID), slog.String("redis", hostOf(a.redisURL)), slog.String("prefix", a.prefix))
	patience := time.Duration(s.ShutdownTimeout)
	if o.addr != "" || o.push {
		patience /= 2 // the front stops in the first half, the bridge in the second
	}
	f, err := a.openFront(o, log, patience)
	if err != nil {
		return err
	}
	defer f.close()
	looked, observer, err := metrics.listen(s.MetricsAddr, a.version, log, f.admin)
	if err != nil {
		return err
	}
	defer looked.Close()
	f.observer = observer
	report := &reporter{file: s.HealthFile, self: self, log: log}
	if report.manager, err = notify.FromEnvironment(); err != nil {
		log.Warn("the service manager is not told how this process is", slog.Any("error", err))
	}
	defer context.AfterFunc(ctx, func() { report.stopping.Store(true) })()
	defer report.start(ctx)()
	shown := probes{alive: func() error { return errors.Join(report.alive(), f.alive()) },
		ready:  func() error { return errors.Join(report.ready(), f.ready()) },
		broken: report.broken, level: level, log: log, profiles: metrics.profiles}
	shown.on(looked)
	shown.health(f.admin)
	looked.Serve()
	f.admin.Serve()
	cfg := bridge.Config{Prefix: a.prefix, Defaults: policy, AnyServer: s.AnyServer, Identity: self, Observer: observer,
		Logger: log}
	return f.beside(ctx, func(ctx context.Context) error { return a.bridge(ctx, cfg, report, patience) })
}

// bridge runs a bridge until ctx ends.
func (a *app) bridge(ctx context.Context, cfg bridge.Config, report *reporter, patience time.Duration) error {
	log := cfg.Logger
	r, err := bridge.DialWait(ctx, a.redisURL, log, a.passwords)
	if err != nil {
		return unlessStopped(ctx, err)
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
	late := time.NewTimer(patience)
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

// newLogger returns the logger of a process. What libraries write to the standard logger goes there as well.
func newLogger(w io.Writer, format settings.LogFormat, level slog.Leveler) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && term.IsTerminal(w) {
		return tameLibraries(slog.New(slog.NewTextHandler(w, opt)))
	}
	return tameLibraries(slog.New(slog.NewJSONHandler(w, opt)))
}
