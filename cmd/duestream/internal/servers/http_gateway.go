package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const redisCheckTimeout = 2 * time.Second // how long /readyz waits for an answer of Redis

// answerLmstfyAdmin answers the admin requests of lmstfy, with 503 until the gateway runs.
func (h *httpSide) answerLmstfyAdmin(w http.ResponseWriter, r *http.Request) {
	if operators := h.operators.Load(); operators != nil {
		(*operators).ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, process.ErrStarts.Error(), http.StatusServiceUnavailable)
}

// runGateway runs the gateway.
func (h *httpSide) runGateway(ctx context.Context) error {
	r, err := bridge.DialWait(ctx, h.app.RedisURL, h.log, h.app.Passwords, cli.FailFast)
	if err != nil {
		return process.UnlessStopped(ctx, err)
	}
	defer r.Close()
	store, err := access.Open(access.Config{Client: r.Client, Prefix: h.app.Prefix, File: h.o.tokens, Log: h.log})
	if err != nil {
		return err
	}
	if err := h.ensureTokenWhenReady(ctx, store); err != nil {
		return process.UnlessStopped(ctx, err)
	}
	durability, err := bridge.ParseDurability(h.o.durability)
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{Redis: r, Prefix: h.app.Prefix, Access: store, MaxPayload: h.o.maxPayload,
		Durability: durability, AllowOldBridges: h.app.AllowOldBridges, Observer: h.observer, Logger: h.log})
	if err != nil {
		return err
	}
	defer g.Close()
	if err := lmstfy.Mount(g); err != nil {
		return err
	}
	op, err := admin.New(r, h.app.Prefix)
	if err != nil {
		return err
	}
	operators, err := lmstfy.NewAdmin(op, h.app.Version, h.log)
	if err != nil {
		return err
	}
	h.operators.Store(&operators)
	h.redis.Store(r)
	return h.serve(ctx, g)
}

// serve answers the requests that come to the socket, until ctx ends.
func (h *httpSide) serve(ctx context.Context, g *gateway.Gateway) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { _ = g.Run(ctx) })
	h.log.Info("listens for requests", slog.String("address", h.socket.Addr().String()))
	server := gateway.NewServer(g)
	if h.certs != nil {
		server.TLSConfig = h.certs.Config()
	}
	return serveHTTP(ctx, server, listener.Limit(h.socket, g.Connections()), h.shutdownTimeout, h.log)
}

// ensureTokenWhenReady repeats ensureToken until Redis answers. A server that loads its data at its start already takes
// connections, but refuses commands.
func (h *httpSide) ensureTokenWhenReady(ctx context.Context, store *access.Store) error {
	delays := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for first := true; ; first = false {
		err := h.ensureToken(ctx, store)
		switch {
		case err == nil && !first:
			h.log.Info("redis answers")
			return nil
		case !lua.Temporary(err):
			return err
		case first:
			h.log.Error("redis cannot be asked for its tokens, and is asked again", slog.Any("error", err))
		}
		if !loop.Sleep(ctx, delays.NextBackOff()) {
			return ctx.Err()
		}
	}
}

// ensureToken makes the first token if there is no token and --first-token-file is given. Without that flag it warns.
// It writes the secret to a file and never prints it, because the standard output of a service is its log.
func (h *httpSide) ensureToken(ctx context.Context, store *access.Store) error {
	empty, err := store.Empty(ctx)
	if err != nil || !empty {
		return err
	}
	if h.o.firstToken == "" {
		h.log.Warn(
			"there is no token, so every request is refused: use duestream token add, or start with --first-token-file")
		return nil
	}
	// The file is made before the token, because a token that nobody can read would lock everybody out, and would keep
	// other gateways from making the first token.
	file, err := os.OpenFile(h.o.firstToken, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil { // not fatal: tokens can be added by the command
		h.log.Error("the first token was not made, so every request is refused: use duestream token add",
			slog.Any("error", err))
		return nil
	}
	secret, err := store.First(ctx)
	if err == nil && secret != "" {
		_, err = fmt.Fprintln(file, secret)
	}
	err = errors.Join(err, file.Close())
	if err != nil || secret == "" { // there is no secret if another gateway made the first token
		return errors.Join(err, os.Remove(h.o.firstToken))
	}
	h.log.Info("the first token, which may do everything, is in the file of --first-token-file")
	return nil
}

// serveHTTP answers requests until ctx ends. Requests in flight then get shutdownTimeout to end.
func serveHTTP(ctx context.Context, server *http.Server, socket net.Listener, shutdownTimeout time.Duration,
	log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() { ended <- listener.Answer(server, socket) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	log.Info("gateway stops")
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		_ = server.Close()
		return errors.New("requests did not end within DUESTREAM_SHUTDOWN_TIMEOUT, and were cut off")
	}
	log.Info("gateway stopped")
	return nil
}

// checkAnswers returns an error for /readyz if Redis does not answer. On a cluster, one node that answers is enough.
func checkAnswers(r *bridge.Redis) error {
	if r == nil {
		return process.ErrStarts
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisCheckTimeout)
	defer cancel()
	if _, err := view.ServerTime(ctx, r.Client); err != nil {
		return errors.New("no answer from Redis")
	}
	return nil
}
