package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/gateway/access"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const (
	defaultHTTPAddr  = "127.0.0.1:7777"
	mostConnections  = 10_000
	gatewayAskedEach = 2 * time.Second // for how long /readyz asks Redis
)

// gatewayOptions are the flags of gateway.
type gatewayOptions struct {
	addr, tokens string
	payload      int
	metrics      metricsOptions
}

func (a *app) gateway() *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer over HTTP, for programs that may not talk to Redis",
		Long: `Answers HTTP requests until SIGTERM or SIGINT: publish, cancel, look, settings, dead
letters, recurrences. docs/HTTP.md describes it, and GET /v1/openapi.json. It keeps no
state: run as many as you like behind a load balancer, beside bridges (duestream serve).

Every request needs a token (duestream token add). When there is none yet, one that may
do everything is made and printed, once.

It speaks HTTP/1.1 and HTTP/2, and no TLS: put it behind what does. Environment:
DUESTREAM_HTTP_ADDR, DUESTREAM_HTTP_TOKENS_FILE, and as for serve DUESTREAM_LOG_LEVEL,
DUESTREAM_LOG_FORMAT, DUESTREAM_METRICS_ADDR and DUESTREAM_SHUTDOWN_TIMEOUT.`,
		Example: "  duestream gateway\n  duestream gateway --http 0.0.0.0:7777 --metrics 127.0.0.1:9090",
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "http", "", "take requests on this host:port; default $DUESTREAM_HTTP_ADDR, else "+defaultHTTPAddr)
	f.StringVar(&o.tokens, "tokens-file", "", "file of tokens, beside those in Redis; default $DUESTREAM_HTTP_TOKENS_FILE")
	f.IntVar(&o.payload, "max-payload", gateway.DefaultMaxPayload, "largest payload in bytes, up to 16777216")
	o.metrics.flags(cmd)
	return a.does(cmd, nil, func(ctx context.Context, _ []string) error {
		var s settings.Gateway
		if err := errors.Join(a.resolve(), settings.Fill(&s)); err != nil {
			return err
		}
		o.addr = cmp.Or(o.addr, s.HTTPAddr, defaultHTTPAddr)
		if _, _, err := net.SplitHostPort(o.addr); err != nil {
			return usage.Errorf("http %q: must be host:port, as %s", o.addr, defaultHTTPAddr)
		}
		if o.payload < 1 || o.payload > 16<<20 {
			return usage.Errorf("max-payload %d: must be from 1 to 16777216", o.payload)
		}
		o.tokens = cmp.Or(o.tokens, s.HTTPTokensFile)
		return a.runGateway(ctx, s, o)
	})
}

func (a *app) runGateway(ctx context.Context, s settings.Gateway, o gatewayOptions) error {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	log := newLogger(a.err, s.LogFormat, level)
	log.Info("gateway starts", slog.String("version", version), slog.String("redis", hostOf(a.redisURL)),
		slog.String("prefix", a.prefix))
	looked, observer, err := o.metrics.listen(s.MetricsAddr, log)
	if err != nil {
		return err
	}
	defer looked.Close()
	var running atomic.Pointer[bridge.Redis]
	probes{alive: func() error { return nil }, ready: func() error { return reaches(running.Load()) }, level: level, log: log,
		profiles: o.metrics.profiles}.on(looked)
	looked.Serve()
	r, err := bridge.DialWait(ctx, a.redisURL, log, a.passwords, failFast)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited
		}
		return err
	}
	defer r.Close()
	store, err := access.Open(access.Config{Client: r.Client, Prefix: a.prefix, File: o.tokens, Log: log})
	if err != nil {
		return err
	}
	secret, err := store.First(ctx)
	if err != nil {
		return err
	}
	if secret != "" {
		fmt.Fprintf(a.out, "%s\n", secret)
		a.note("this is the first token: it may do everything, and is not shown again")
	}
	g, err := gateway.New(gateway.Config{Redis: r, Prefix: a.prefix, Access: store, MaxPayload: o.payload,
		Observer: observer, Logger: log})
	if err != nil {
		return err
	}
	defer g.Close()
	socket, err := net.Listen("tcp", o.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.addr, err)
	}
	running.Store(r)
	log.Info("listens for requests", slog.String("address", socket.Addr().String()))
	return serveHTTP(ctx, gateway.NewServer(g), listener.Limit(socket, mostConnections),
		time.Duration(s.ShutdownTimeout), log)
}

// serveHTTP answers until ctx ends, and then gives the requests under way their time.
func serveHTTP(ctx context.Context, server *http.Server, socket net.Listener, patience time.Duration,
	log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(socket) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	log.Info("gateway stops")
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := server.Shutdown(late); err != nil {
		_ = server.Close()
		return errors.New("requests did not end within DUESTREAM_SHUTDOWN_TIMEOUT, and were cut off")
	}
	log.Info("gateway stopped")
	return nil
}

// reaches says whether Redis answers, for who sends requests here.
func reaches(r *bridge.Redis) error {
	if r == nil {
		return errors.New("it starts, and waits for Redis")
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatewayAskedEach)
	defer cancel()
	if r.Client.Do(ctx, r.Client.B().Ping().Build()).Error() != nil {
		return errors.New("no answer from Redis")
	}
	return nil
}
