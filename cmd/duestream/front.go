package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/gateway/access"
	"github.com/duestream/duestream/bridge/gateway/lmstfy"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/cmd/duestream/internal/certs"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

const gatewayAskedEach = 2 * time.Second // time limit of the question of /readyz to Redis

// frontOptions are the HTTP flags of gateway and serve.
type frontOptions struct {
	addr, tokens    string
	firstToken      string
	payload         int
	durability      string
	admin, accounts string
	pushes          flags.Switch // value of the flag --push
	push            bool         // the flag, else the environment
	tls             certs.Files
}

func (o *frontOptions) flags(cmd *cobra.Command, otherwise string) {
	f := cmd.Flags()
	f.StringVar(&o.addr, "http", "", "take requests on this host:port; default $DUESTREAM_HTTP_ADDR, else "+otherwise)
	f.StringVar(&o.tokens, "tokens-file", "", "file of tokens, beside those in Redis; default $DUESTREAM_HTTP_TOKENS_FILE")
	f.StringVar(&o.firstToken, "first-token-file", "",
		"where there is no token, make one for everything and write it to this new file of mode 0600; "+
			"default $DUESTREAM_HTTP_FIRST_TOKEN_FILE")
	f.IntVar(&o.payload, "max-payload", gateway.DefaultMaxPayload, "largest payload of a request in bytes, up to 16777216")
	f.StringVar(&o.durability, "durability", "",
		"what publishing, cancelling and moving over HTTP wait for: accepted, fsynced, replicated=n, or fsynced,replicated=n; "+
			"default $DUESTREAM_HTTP_DURABILITY, else accepted")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "speak TLS with the certificate of this file; default $DUESTREAM_HTTP_TLS_CERT")
	f.StringVar(&o.tls.Key, "tls-key", "", "file of its private key; default $DUESTREAM_HTTP_TLS_KEY")
	f.StringVar(&o.tls.ClientCA, "tls-client-ca", "",
		"clients must show a certificate that one of this file signed; default $DUESTREAM_HTTP_TLS_CLIENT_CA")
	f.StringVar(&o.admin, "admin", "", "answer operators on this host:port; default $DUESTREAM_ADMIN_ADDR, else not at all")
	f.StringVar(&o.accounts, "admin-accounts-file", "",
		"file of the operators, name:password on each line; default $DUESTREAM_ADMIN_ACCOUNTS_FILE")
	flags.SwitchVar(f, &o.pushes, "push", "also post messages to URLs, as push run does; default $DUESTREAM_PUSH")
}

// resolve fills missing flags from the environment, and refuses values that cannot work.
func (o *frontOptions) resolve() error {
	var s settings.HTTP
	err := settings.Fill(&s)
	o.addr, o.tokens = cmp.Or(o.addr, s.HTTPAddr), cmp.Or(o.tokens, s.HTTPTokensFile)
	o.firstToken = cmp.Or(o.firstToken, s.HTTPFirstTokenFile)
	o.durability = cmp.Or(o.durability, s.HTTPDurability, bridge.Accepted.String())
	if _, bad := bridge.ParseDurability(o.durability); bad != nil {
		err = errors.Join(err, bad)
	}
	o.admin, o.accounts = cmp.Or(o.admin, s.AdminAddr), cmp.Or(o.accounts, s.AdminAccountsFile)
	o.push = o.pushes.Or(s.Push)
	o.tls = certs.Files{Cert: cmp.Or(o.tls.Cert, s.HTTPTLSCert), Key: cmp.Or(o.tls.Key, s.HTTPTLSKey),
		ClientCA: cmp.Or(o.tls.ClientCA, s.HTTPTLSClientCA)}
	if (o.tls.Cert == "") != (o.tls.Key == "") || o.tls.ClientCA != "" && o.tls.Cert == "" {
		err = errors.Join(err, usage.Errorf("tls-cert, tls-key: must be given both or neither, and with tls-client-ca"))
	}
	for name, addr := range map[string]string{"http": o.addr, "admin": o.admin} {
		if _, _, bad := net.SplitHostPort(addr); addr != "" && bad != nil {
			err = errors.Join(err, usage.Errorf("%s %q: must be host:port, as %s", name, addr, defaultHTTPAddr))
		}
	}
	if o.admin != "" && o.accounts == "" && !listener.Loopback(o.admin) {
		err = errors.Join(err, usage.Errorf("admin %q: without accounts it answers on this machine alone: "+
			"listen on 127.0.0.1, or name a file of accounts with --admin-accounts-file", o.admin))
	}
	if o.payload < 1 || o.payload > 16<<20 {
		err = errors.Join(err, usage.Errorf("max-payload %d: must be from 1 to 16777216", o.payload))
	}
	return err
}

// front is the HTTP side of a process: it takes requests, answers operators, and pushes messages to URLs.
type front struct {
	app      *app
	o        frontOptions
	log      *slog.Logger
	patience time.Duration // shutdown time for requests and pushes in flight
	observer bridge.Observer
	socket   net.Listener       // nil: no requests are taken
	admin    *listener.Listener // nil: no listener for operators
	certs    *certs.Watched     // nil: no TLS
	followed func()             // stops reloading the certificate files

	redis     atomic.Pointer[bridge.Redis] // connection of the gateway
	runner    atomic.Pointer[push.Runner]
	operators atomic.Pointer[http.Handler] // handler of the lmstfy admin listener
}

// openFront listens on the addresses, so that an address in use is reported at once. Redis is not touched.
func (a *app) openFront(o frontOptions, log *slog.Logger, patience time.Duration) (*front, error) {
	f := &front{app: a, o: o, log: log, patience: patience, followed: func() {}}
	if err := f.listen(); err != nil {
		f.close()
		return nil, err
	}
	if f.certs != nil {
		f.followed = f.follow()
	}
	return f, nil
}

// follow reloads the certificates when their files change, until the returned function is called.
func (f *front) follow() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.certs.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (f *front) listen() (err error) {
	var accounts listener.Accounts
	if f.o.accounts != "" {
		if accounts, err = listener.ReadAccounts(f.o.accounts); err != nil {
			return err
		}
	}
	operators := listener.Options{What: "operators",
		Wrap: func(h http.Handler) http.Handler { return accounts.Guard(h, "/healthz", "/readyz") }}
	if f.o.tls.Cert != "" {
		if f.certs, err = certs.Open(f.o.tls, f.log); err != nil {
			return err
		}
		if !listener.Loopback(f.o.admin) {
			operators.TLS = f.certs.Config()
		}
	}
	f.admin, err = listener.ListenWith(f.o.admin, f.log, operators)
	if err != nil || f.o.addr == "" {
		return err
	}
	if f.socket, err = net.Listen("tcp", f.o.addr); err != nil {
		return fmt.Errorf("listen on %s: %w", f.o.addr, err)
	}
	for _, path := range lmstfy.AdminPaths() {
		f.admin.Handle(path, http.HandlerFunc(f.operate))
	}
	return nil
}

// operate answers the admin requests of lmstfy, with 503 until the gateway runs.
func (f *front) operate(w http.ResponseWriter, r *http.Request) {
	if operators := f.operators.Load(); operators != nil {
		(*operators).ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, errStarts.Error(), http.StatusServiceUnavailable)
}

// busy reports whether run has anything to do.
func (f *front) busy() bool { return f.socket != nil || f.o.push }

func (f *front) close() {
	f.followed()
	f.admin.Close()
	if f.socket != nil {
		_ = f.socket.Close()
	}
}

// run takes requests and pushes messages, until ctx ends or one of the two ends.
func (f *front) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts []func(context.Context) error
	if f.socket != nil {
		parts = append(parts, f.answer)
	}
	if f.o.push {
		parts = append(parts, f.post)
	}
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() {
			defer cancel()
			errs[i] = part(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// beside runs the front and another function. On a stop, the front ends first and the other function is told after
// that. When either ends, both end.
func (f *front) beside(ctx context.Context, other func(context.Context) error) error {
	if !f.busy() {
		return other(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- f.run(ctx)
	}()
	err := other(last)
	cancel()
	return errors.Join(<-ended, err)
}

// answer runs the gateway.
func (f *front) answer(ctx context.Context) error {
	r, err := bridge.DialWait(ctx, f.app.redisURL, f.log, f.app.passwords, failFast)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer r.Close()
	store, err := access.Open(access.Config{Client: r.Client, Prefix: f.app.prefix, File: f.o.tokens, Log: f.log})
	if err != nil {
		return err
	}
	if err := f.beginWhenReady(ctx, store); err != nil {
		return unlessStopped(ctx, err)
	}
	durability, err := bridge.ParseDurability(f.o.durability)
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{Redis: r, Prefix: f.app.prefix, Access: store, MaxPayload: f.o.payload,
		Durability: durability, AllowOldBridges: f.app.allowOldBridges, Observer: f.observer, Logger: f.log})
	if err != nil {
		return err
	}
	defer g.Close()
	operators := lmstfy.NewAdmin(admin.New(r, f.app.prefix), f.app.version, f.log)
	f.operators.Store(&operators)
	f.redis.Store(r)
	return f.serve(ctx, g)
}

// serve answers the requests that come to the socket, until ctx ends.
func (f *front) serve(ctx context.Context, g *gateway.Gateway) error {
	f.log.Info("listens for requests", slog.String("address", f.socket.Addr().String()))
	server := gateway.NewServer(g)
	if f.certs != nil {
		server.TLSConfig = f.certs.Config()
	}
	return serveHTTP(ctx, server, listener.Limit(f.socket, g.Connections()), f.patience, f.log)
}

// beginWhenReady repeats begin until Redis answers. A server that loads its data at its start already takes
// connections.
func (f *front) beginWhenReady(ctx context.Context, store *access.Store) error {
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for first := true; ; first = false {
		err := f.begin(ctx, store)
		switch {
		case err == nil && !first:
			f.log.Info("redis answers")
			return nil
		case !lua.Temporary(err):
			return err
		case first:
			f.log.Error("redis cannot be asked for its tokens, and is asked again", slog.Any("error", err))
		}
		if !loop.Sleep(ctx, wait.NextBackOff()) {
			return ctx.Err()
		}
	}
}

// begin warns that there is no token, or makes the first token if that is asked for. It writes the secret to a file
// and never prints it, because the standard output of a service is its log.
func (f *front) begin(ctx context.Context, store *access.Store) error {
	none, err := store.Empty(ctx)
	if err != nil || !none {
		return err
	}
	if f.o.firstToken == "" {
		f.log.Warn("there is no token, so every request is refused: use duestream token add, or start with --first-token-file")
		return nil
	}
	// The file comes before the token: a token nobody can read would lock everybody out, and keep others from making
	// the first token.
	file, err := os.OpenFile(f.o.firstToken, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil { // the rest of this process goes on
		f.log.Error("the first token was not made, so every request is refused: use duestream token add", slog.Any("error", err))
		return nil
	}
	secret, err := store.First(ctx)
	if err == nil && secret != "" {
		_, err = fmt.Fprintln(file, secret)
	}
	err = errors.Join(err, file.Close())
	if err != nil || secret == "" { // no secret: another gateway made the first token
		return errors.Join(err, os.Remove(f.o.firstToken))
	}
	f.log.Info("the first token, which may do everything, is in the file of --first-token-file")
	return nil
}

// post pushes messages to URLs.
func (f *front) post(ctx context.Context) error {
	r, err := bridge.DialWait(ctx, f.app.redisURL, f.log, f.app.passwords, push.ManyReads)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer r.Close()
	runner, err := push.NewRunner(push.Config{Redis: r, Prefix: f.app.prefix, ShutdownTimeout: f.patience, Observer: f.observer,
		Logger: f.log})
	if err != nil {
		return err
	}
	f.runner.Store(runner)
	return runner.Run(ctx)
}

// unlessStopped returns the error of a start, or nil if the process was told to stop meanwhile.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// alive returns the reason to restart the process, or nil.
func (f *front) alive() error { return asks(&f.runner, (*push.Runner).Alive)() }

// ready returns the reasons why the front does not do its work now, or nil.
func (f *front) ready() error {
	var errs []error
	if f.socket != nil {
		errs = append(errs, reaches(f.redis.Load()))
	}
	if f.o.push {
		if f.runner.Load() == nil {
			errs = append(errs, errStarts)
		}
		errs = append(errs, asks(&f.runner, (*push.Runner).Ready)())
	}
	return errors.Join(errs...)
}

// errStarts: the process is not ready, because it waits for Redis.
var errStarts = errors.New("it starts, and waits for Redis")

// serveHTTP answers requests until ctx ends. Requests in flight then get the time of patience to end.
func serveHTTP(ctx context.Context, server *http.Server, socket net.Listener, patience time.Duration,
	log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() { ended <- listener.Answer(server, socket) }()
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

// reaches returns an error for /readyz if Redis does not answer. On a cluster, one node that answers is enough.
func reaches(r *bridge.Redis) error {
	if r == nil {
		return errStarts
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatewayAskedEach)
	defer cancel()
	if _, err := view.ServerTime(ctx, r.Client); err != nil {
		return errors.New("no answer from Redis")
	}
	return nil
}
