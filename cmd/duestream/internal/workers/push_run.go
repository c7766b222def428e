package workers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// pushRunSettings are the settings that push run shares with serve.
type pushRunSettings struct {
	LogLevel  slog.Level         `split_words:"true" default:"info"`
	LogFormat settings.LogFormat `split_words:"true" default:"auto"`

	MetricsAddr string `split_words:"true"`
}

func pushRun(a *cli.App) *cobra.Command {
	var ca, cert, key string
	var shutdownTimeout time.Duration
	var metrics process.MetricsFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Post the messages of all targets, until it is stopped",
		Long: `Posts the messages of all targets of all queues, until SIGTERM or SIGINT. After a signal
it takes no new messages, and lets running requests end. Run any number of these
processes: they share the work. Changes by push add, rm and rotate take effect within
seconds.

No proxy is used, whatever the environment says. DUESTREAM_LOG_LEVEL, DUESTREAM_LOG_FORMAT
and DUESTREAM_METRICS_ADDR count here as well.`,
		Example: "  duestream push run\n  duestream push run --cert client.pem --key client.key",
	}
	f := cmd.Flags()
	f.StringVar(&ca, "ca", "", "file of certificate authorities for targets, besides those of the system")
	f.StringVar(&cert, "cert", "", "file of the certificate to show to targets that ask for one")
	f.StringVar(&key, "key", "", "file of the private key of --cert")
	flags.DurationVar(f, &shutdownTimeout, "shutdown-timeout", push.DefaultShutdownTimeout,
		"time for running requests to end after a signal to stop")
	metrics.Flags(cmd)
	cmd.MarkFlagsRequiredTogether("cert", "key")
	return a.WithRun(cmd, nil, func(ctx context.Context, _ []string) error {
		config, err := pushTLS(ca, cert, key)
		if err != nil {
			return err
		}
		if shutdownTimeout == 0 {
			shutdownTimeout = -1 // stop at once; 0 would mean the runner's default
		}
		return runPush(ctx, a, push.Config{TLS: config, ShutdownTimeout: shutdownTimeout}, metrics)
	})
}

// pushTLS loads the certificates that the connections to targets use.
func pushTLS(ca, cert, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, usage.Errorf("ca: %w", err)
		}
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage.Errorf("ca %q: holds no certificate in PEM form", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, usage.Errorf("cert: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func runPush(ctx context.Context, a *cli.App, cfg push.Config, metrics process.MetricsFlags) error {
	if err := a.Resolve(); err != nil {
		return err
	}
	var s pushRunSettings
	if err := settings.Fill(&s); err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := process.NewLogger(a.Err, s.LogFormat, level)
	metricsServer, observer, err := metrics.Listen(s.MetricsAddr, a.Version, log, nil)
	if err != nil {
		return err
	}
	defer metricsServer.Close()
	var running atomic.Pointer[push.Runner]
	process.Probes{Alive: process.Ask(&running, (*push.Runner).Alive), Ready: func() error {
		if running.Load() == nil {
			return process.ErrStarts
		}
		return process.Ask(&running, (*push.Runner).Ready)()
	}, Level: level, Log: log, Profiles: metrics.Profiles}.AddTo(metricsServer)
	metricsServer.Serve()
	r, err := bridge.DialWait(ctx, a.RedisURL, log, a.Passwords, push.ManyReads)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited for Redis
		}
		return err
	}
	defer r.Close()
	cfg.Redis, cfg.Prefix, cfg.Observer, cfg.Logger = r, a.Prefix, observer, log
	runner, err := push.NewRunner(cfg)
	if err != nil {
		return err
	}
	running.Store(runner)
	if term.IsTerminal(a.Err) {
		a.Note("posts the messages of all targets; Ctrl-C stops")
	}
	return runner.Run(ctx)
}
