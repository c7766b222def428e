// Package listener is the HTTP server for those who look after a process: metrics, health, profiles, and what operators do. It is
// off unless somebody asked for it. Without Accounts it knows no passwords, and is for a machine's own network.
package listener

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of what clients may cost.
const (
	maxConns     = 64
	maxHeader    = 16 << 10
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second // a handler that takes longer renews it with http.ResponseController
	idleTimeout  = 10 * time.Second // idle connections take the place of others
	closeTimeout = time.Second
)

// Listener answers on one address. Its methods are safe for concurrent use; those of a nil Listener do nothing.
type Listener struct {
	mux    *http.ServeMux
	server *http.Server
	socket net.Listener
	log    *slog.Logger
	what   string
	served chan struct{} // closed when no more connections are taken; nil before Serve
}

// Options say what a Listener is for. The zero value is for metrics and health.
type Options struct {
	What string                          // it is for, as its log lines have it
	Wrap func(http.Handler) http.Handler // what stands before all handlers; nil = nothing
	TLS  *tls.Config                     // nil: it speaks none
}

// Listen takes connections on an address, "host:port", which wait until Serve answers. An empty address is no listener: nil.
// Handlers get a context that Close cancels.
func Listen(addr string, log *slog.Logger) (*Listener, error) {
	return ListenWith(addr, log, Options{})
}

// ListenWith is Listen with options.
func ListenWith(addr string, log *slog.Logger, o Options) (*Listener, error) {
	if addr == "" {
		return nil, nil
	}
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	base, cancel := context.WithCancel(context.Background())
	l := &Listener{mux: http.NewServeMux(), socket: socket, log: log, what: cmp.Or(o.What, "metrics and health")}
	var handler http.Handler = l.mux
	if o.Wrap != nil {
		handler = o.Wrap(handler)
	}
	l.server = &http.Server{
		Handler: handler, ReadTimeout: readTimeout, ReadHeaderTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	l.server.TLSConfig = o.TLS
	l.server.RegisterOnShutdown(cancel)
	return l, nil
}

// Serve answers from now on, and says so; it returns at once. Call it once, when all is handled that is to be.
func (l *Listener) Serve() {
	if l == nil {
		return
	}
	served := make(chan struct{})
	l.served = served
	go func() {
		defer close(served)
		err := Answer(l.server, Limit(l.socket, maxConns))
		if !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("the listener for "+l.what+" ended", slog.Any("error", err))
		}
	}()
	l.log.Info("listens for "+l.what, slog.String("address", l.Addr()))
}

// Answer is Serve of a server, over TLS if it has a configuration for that.
func Answer(s *http.Server, socket net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(socket, "", "")
	}
	return s.Serve(socket)
}

// Handle adds a handler for a pattern of http.ServeMux, as "GET /metrics".
func (l *Listener) Handle(pattern string, h http.Handler) {
	if l != nil {
		l.mux.Handle(pattern, h)
	}
}

// Addr returns the address that it listens on, with the port that was chosen for port 0; "" for none.
func (l *Listener) Addr() string {
	if l == nil {
		return ""
	}
	return l.socket.Addr().String()
}

// Close takes no more requests, gives those under way a second, and then ends them.
func (l *Listener) Close() {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := l.server.Shutdown(ctx); err != nil {
		_ = l.server.Close()
	}
	_ = l.socket.Close() // which the server does not know before Serve
	if l.served != nil {
		<-l.served
	}
}

// Limit lets only so many connections be open at once: further ones wait to be accepted.
func Limit(l net.Listener, connections int) net.Listener {
	return &limited{Listener: l, free: make(chan struct{}, connections)}
}

type limited struct {
	net.Listener
	free chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	l.free <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.free })}, nil
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
