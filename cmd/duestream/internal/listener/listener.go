// Package listener is the HTTP server for operators of a process: metrics, health, profiles and admin requests. It is
// off by default. Without Accounts it checks no passwords, and must only be reachable from the machine's own network.
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

// Limits on clients.
const (
	maxConns     = 64 // unless Options say otherwise
	maxHeader    = 16 << 10
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second // a handler that takes longer extends it with http.ResponseController
	idleTimeout  = 10 * time.Second // short, because an idle connection uses one of maxConns
	closeTimeout = time.Second
)

// Listener answers HTTP requests on one address. Call Handle first, then Serve, once. Addr may be called at any time,
// and Close when Serve has returned, or without Serve; both are safe for concurrent use. The methods of a nil Listener
// do nothing.
type Listener struct {
	mux    *http.ServeMux
	server *http.Server
	socket net.Listener
	log    *slog.Logger
	what   string
	page   string        // Options.Dashboard
	conns  int           // limit of open connections
	served chan struct{} // closed when the server takes no more connections; nil before Serve
}

// Options configure a Listener. The zero value is for metrics and health.
type Options struct {
	What string                          // purpose, for log lines
	Wrap func(http.Handler) http.Handler // wraps the handler of all requests; may be nil
	TLS  *tls.Config                     // nil for plain HTTP

	// Dashboard is the path of the page for people, such as "/dashboard/"; "" = none. The log line of Serve tells its
	// address.
	Dashboard string

	// Connections limits the open connections. Further ones wait to be accepted. Default 64. A handler that keeps
	// connections open, such as one that streams, needs more, because each of its clients uses one.
	Connections int
}

// Listen listens on an address, "host:port". Connections wait until Serve is called. For an empty address it returns
// nil. Handlers get a context that Close cancels.
func Listen(addr string, log *slog.Logger) (*Listener, error) {
	return ListenWith(addr, log, Options{})
}

// ListenWith is like Listen, with options.
func ListenWith(addr string, log *slog.Logger, o Options) (*Listener, error) {
	if addr == "" {
		return nil, nil
	}
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	base, cancel := context.WithCancel(context.Background())
	l := &Listener{mux: http.NewServeMux(), socket: socket, log: log, what: cmp.Or(o.What, "metrics and health"),
		page: o.Dashboard, conns: cmp.Or(o.Connections, maxConns)}
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

// Serve starts to answer requests, and logs that. It returns at once. Call it once, after all calls of Handle.
func (l *Listener) Serve() {
	if l == nil {
		return
	}
	about := []any{slog.String("address", l.Addr())}
	if l.page != "" {
		scheme := "http"
		if l.server.TLSConfig != nil {
			scheme = "https"
		}
		about = append(about, slog.String("dashboard", scheme+"://"+l.Addr()+l.page))
	}
	l.log.Info("listens for "+l.what, about...)

	served := make(chan struct{})
	l.served = served
	go func() { // from here on the server owns its TLSConfig, and may set one for HTTP/2
		defer close(served)
		err := Answer(l.server, Limit(l.socket, l.conns))
		if !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("the listener for "+l.what+" ended", slog.Any("error", err))
		}
	}()
}

// Answer runs s.Serve, or s.ServeTLS if the server has a TLS configuration.
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

// Addr returns the address in use, with the chosen port if port 0 was given. It returns "" for a nil Listener.
func (l *Listener) Addr() string {
	if l == nil {
		return ""
	}
	return l.socket.Addr().String()
}

// Close stops taking requests. Requests in flight get one second to end. After that their connections are closed.
func (l *Listener) Close() {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := l.server.Shutdown(ctx); err != nil {
		_ = l.server.Close()
	}
	_ = l.socket.Close() // before Serve, the server does not know the socket
	if l.served != nil {
		<-l.served
	}
}

// Limit bounds the number of open connections. Further connections wait to be accepted.
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
