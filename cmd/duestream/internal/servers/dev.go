package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/tryout"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/view"
)

// devPolicy has short delays and few attempts, so that retries and dead letters appear soon.
var devPolicy = bridge.Policy{VisibilityTimeout: 5 * time.Second, MaxAttempts: 3, RetryMin: 500 * time.Millisecond,
	RetryMax: 5 * time.Second}

type devOptions struct {
	server        tryout.Config
	dashboardPort int
	length        time.Duration
	quiet         bool
}

// Dev returns the command dev.
func Dev(a *cli.App) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Try it out: a server, a bridge, a producer, two workers and a dashboard in one process",
		Long: `Starts a server on a port of 127.0.0.1, a bridge, a producer and two workers, and
prints every delivery, until Ctrl-C. One of the workers fails now and then, and some
messages always fail, so you see retries and dead letters too.

A dashboard shows all of it in a browser of this machine. The printed address logs you
in: it holds the secret of a token, "dev", which may do everything.

The server is redis-server or valkey-server as a child process, if one of them is on the
PATH. Otherwise it is a server inside this process (miniredis), which is good for trying
out, but is not a real Redis and keeps nothing. The data is deleted at the end unless
--data is given. redis-cli, other duestream commands and workers in any language can
connect to the server.`,
		Example: "  duestream dev\n  duestream dev --port 6380 --data ./data --quiet",
	}
	cmd.Flags().IntVar(&o.server.Port, "port", 0, "port of the server; 0 = any free port")
	cmd.Flags().IntVar(&o.dashboardPort, "dashboard-port", 0, "port of the dashboard; 0 = any free port")
	cmd.Flags().StringVar(&o.server.Data, "data", "", "keep the server's data in this directory, and load the data in it")
	cmd.Flags().BoolVar(&o.server.InProcess, "in-process", false, "use the server inside this process even if redis-server is installed")
	flags.DurationVar(cmd.Flags(), &o.length, "for", 0, "stop after this time; 0 = at Ctrl-C")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "do not print deliveries")
	return a.WithRun(cmd, func([]string) error {
		switch {
		case a.RedisURL != "":
			return usage.Errorf("dev starts a server of its own: to use the server at --redis, run `duestream serve`")
		case o.server.Port < 0 || o.server.Port > 65535:
			return usage.Errorf("port %d: must be between 0 and 65535", o.server.Port)
		case o.dashboardPort < 0 || o.dashboardPort > 65535:
			return usage.Errorf("dashboard-port %d: must be between 0 and 65535", o.dashboardPort)
		case o.server.InProcess && o.server.Data != "":
			return usage.Errorf("--data cannot be kept with --in-process")
		}
		return nil
	}, func(ctx context.Context, _ []string) error { return runDev(ctx, a, o) })
}

func runDev(ctx context.Context, a *cli.App, o devOptions) (err error) {
	a.RedisURL = settings.DefaultRedisURL // DUESTREAM_REDIS_URL is ignored
	if err := a.Resolve(); err != nil {
		return err
	}
	server, err := tryout.Start(ctx, o.server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	a.RedisURL = server.URL()

	// Only errors are logged, so that the printed deliveries stay readable.
	log := process.NewLogger(a.Err, "text", slog.LevelError)
	r, err := bridge.Dial(ctx, a.RedisURL)
	if err != nil {
		return err
	}
	defer r.Close()
	op, err := admin.New(r, a.Prefix)
	if err != nil {
		return err
	}
	if err := op.WriteDefaults(ctx, devPolicy); err != nil {
		return err
	}
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: a.Prefix, Logger: log})
	if err != nil {
		return err
	}
	page, err := openDevDashboard(ctx, a, r, op, o.dashboardPort, log)
	if err != nil {
		return err
	}
	defer page.close()
	devBanner(ctx, a, server, r, page.address())
	d := &demo{out: a.Out, quiet: o.quiet, prefix: a.Prefix, redis: r, log: log}
	err = untilStopped(ctx, o.length, server, append(d.parts(), b.Run))
	d.summary()
	return err
}

var errServerGone = errors.New("the server has ended by itself")

// untilStopped runs all parts until ctx ends, the length is over, the server ends, or a part fails. Then it stops all
// parts.
func untilStopped(
	parent context.Context, length time.Duration, server *tryout.Server, parts []func(context.Context) error,
) error {
	ctx, stop := context.WithCancelCause(parent)
	defer stop(nil)
	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				stop(err)
			}
		})
	}
	var lengthOver <-chan time.Time
	if length > 0 {
		timer := time.NewTimer(length)
		defer timer.Stop()
		lengthOver = timer.C
	}
	select {
	case <-lengthOver:
		stop(nil)
	case <-server.Gone():
		stop(errServerGone)
	case <-ctx.Done():
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func devBanner(ctx context.Context, a *cli.App, s *tryout.Server, r *bridge.Redis, dashboard string) {
	name := "miniredis inside this process (no redis-server or valkey-server was started)"
	if s.Program != "" {
		name = "child process " + s.Program
		if info, err := view.CheckServer(ctx, r.Client); err == nil && info.Version != "" {
			name = info.Product + " " + info.Version + ", " + name
		}
	}
	keeps := "in memory only: nothing is kept"
	switch {
	case s.Kept:
		keeps = "kept in " + s.Data
	case s.Data != "":
		keeps = "in " + s.Data + "\n             deleted at the end; --data DIR keeps it"
	}
	fmt.Fprintf(a.Out, "duestream dev\n  server     %s\n  url        %s\n  data       %s\n", name, s.URL(), keeps)
	fmt.Fprintf(a.Out, "  dashboard  %s\n\n", dashboard)

	command := "duestream"
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		command = "go run ./cmd/duestream"
	}
	queue := fmt.Sprintf("%s:{%s}", a.Prefix, demoQueue)
	fmt.Fprintf(a.Out, "From another terminal:\n")
	for _, line := range []string{
		fmt.Sprintf("redis-cli -p %d XINFO GROUPS '%s:stream'", s.Port, queue),
		fmt.Sprintf("redis-cli -p %d XREVRANGE '%s:dead' + - COUNT 1", s.Port, queue),
		fmt.Sprintf("%s stats --redis %s", command, s.URL()),
		fmt.Sprintf("%s schedule %s --in 3s --redis %s 'hello'", command, demoQueue, s.URL()),
	} {
		fmt.Fprintf(a.Out, "  %s\n", line)
	}
	if s.Program == "" {
		fmt.Fprintf(a.Out, "  (redis-cli works on this server with a command behind it, not as a prompt)\n")
	}
	fmt.Fprintf(a.Out, "Ctrl-C stops everything.\n\n")
}
