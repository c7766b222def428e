package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/cmd/duestream/internal/certs"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/process"
)

// httpSide is the HTTP side of a process: it takes requests, answers operators, and pushes messages to URLs.
type httpSide struct {
	app             *cli.App
	o               httpFlags
	log             *slog.Logger
	shutdownTimeout time.Duration // shutdown time for requests and pushes in flight
	observer        bridge.Observer
	socket          net.Listener       // nil if no requests are taken
	admin           *listener.Listener // nil if there is no listener for operators
	certs           *certs.Watched     // nil without TLS
	stopReload      func()             // stops reloading the certificate files

	redis     atomic.Pointer[bridge.Redis] // connection of the gateway; nil until the gateway runs
	runner    atomic.Pointer[push.Runner]  // nil until messages are pushed
	operators atomic.Pointer[http.Handler] // handler of lmstfy's admin requests; nil until the gateway runs
	dashboard atomic.Pointer[http.Handler] // nil until Redis was reached, and after the end
}

// openHTTPSide listens on the addresses, so that an address in use is reported at once. Redis is not touched.
func openHTTPSide(a *cli.App, o httpFlags, log *slog.Logger, shutdownTimeout time.Duration) (*httpSide, error) {
	h := &httpSide{app: a, o: o, log: log, shutdownTimeout: shutdownTimeout, stopReload: func() {}}
	if err := h.listen(); err != nil {
		h.close()
		return nil, err
	}
	if h.certs != nil {
		h.stopReload = h.reloadCertificates()
	}
	return h, nil
}

// reloadCertificates reloads the certificates when their files change, until the returned function is called.
func (h *httpSide) reloadCertificates() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { h.certs.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// listen listens on the addresses.
func (h *httpSide) listen() (err error) {
	var accounts listener.Accounts
	if h.o.accounts != "" {
		if accounts, err = listener.ReadAccounts(h.o.accounts); err != nil {
			return err
		}
	}
	open := listener.Open{Paths: []string{"/healthz", "/readyz"}, Free: isDashboard}
	operators := listener.Options{What: "operators", Connections: dashboardConnections, Dashboard: dashboardPath + "/",
		Wrap: func(next http.Handler) http.Handler { return accounts.Guard(next, open) }}
	if h.o.tls.Cert != "" {
		if h.certs, err = certs.Open(h.o.tls, h.log); err != nil {
			return err
		}
		if !listener.Loopback(h.o.admin) {
			operators.TLS = h.certs.Config()
		}
	}
	if h.admin, err = listener.ListenWith(h.o.admin, h.log, operators); err != nil {
		return err
	}
	h.mountDashboard()
	if h.o.addr == "" {
		return nil
	}
	if h.socket, err = net.Listen("tcp", h.o.addr); err != nil {
		return fmt.Errorf("listen on %s: %w", h.o.addr, err)
	}
	for _, path := range lmstfy.AdminPaths() {
		h.admin.Handle(path, http.HandlerFunc(h.answerLmstfyAdmin))
	}
	return nil
}

// hasWork reports whether run has anything to do.
func (h *httpSide) hasWork() bool { return h.socket != nil || h.o.push || h.admin != nil }

// close stops listening.
func (h *httpSide) close() {
	h.stopReload()
	h.admin.Close()
	if h.socket != nil {
		_ = h.socket.Close()
	}
}

// run takes requests, pushes messages and serves the dashboard, until ctx ends or one of these ends.
func (h *httpSide) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts []func(context.Context) error
	if h.socket != nil {
		parts = append(parts, h.runGateway)
	}
	if h.o.push {
		parts = append(parts, h.runPushes)
	}
	if h.admin != nil {
		parts = append(parts, h.runDashboard)
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

// runWith runs the HTTP side and another function. When ctx ends, the HTTP side ends first, and then the context of the
// other function is cancelled. When either of the two ends, the other one is stopped.
func (h *httpSide) runWith(ctx context.Context, other func(context.Context) error) error {
	if !h.hasWork() {
		return other(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	otherCtx, stopOther := context.WithCancel(context.WithoutCancel(ctx))
	defer stopOther()
	ended := make(chan error, 1)
	go func() {
		defer stopOther()
		ended <- h.run(ctx)
	}()
	err := other(otherCtx)
	cancel()
	return errors.Join(<-ended, err)
}

// runPushes pushes messages to URLs.
func (h *httpSide) runPushes(ctx context.Context) error {
	r, err := bridge.DialWait(ctx, h.app.RedisURL, h.log, h.app.Passwords, push.ManyReads)
	if err != nil {
		return process.UnlessStopped(ctx, err)
	}
	defer r.Close()
	runner, err := push.NewRunner(push.Config{Redis: r, Prefix: h.app.Prefix, ShutdownTimeout: h.shutdownTimeout,
		Observer: h.observer, Logger: h.log})
	if err != nil {
		return err
	}
	h.runner.Store(runner)
	return runner.Run(ctx)
}

// alive returns the reason to restart the process, or nil.
func (h *httpSide) alive() error { return process.Ask(&h.runner, (*push.Runner).Alive)() }

// ready returns the reasons why the HTTP side does not do its work now, or nil.
func (h *httpSide) ready() error {
	var errs []error
	if h.socket != nil {
		errs = append(errs, checkAnswers(h.redis.Load()))
	}
	if h.o.push {
		if h.runner.Load() == nil {
			errs = append(errs, process.ErrStarts)
		}
		errs = append(errs, process.Ask(&h.runner, (*push.Runner).Ready)())
	}
	return errors.Join(errs...)
}
