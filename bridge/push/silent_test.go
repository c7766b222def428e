package push

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// swallowing forwards connections to a target. After freeze it drops all data of the connections that exist, and goes
// on forwarding new ones, like a load balancer that has forgotten its old connections.
type swallowing struct {
	net.Listener
	to     string       // address of the target
	all    atomic.Int64 // number of the newest connection, from 1
	frozen atomic.Int64 // connections up to this number are dropped

	mu   sync.Mutex
	open []net.Conn
}

// freeze drops all further data of the connections that exist.
func (l *swallowing) freeze() { l.frozen.Store(l.all.Load()) }

func (l *swallowing) serve() {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", l.to)
		if err != nil {
			return
		}
		n := l.all.Add(1)
		l.mu.Lock()
		l.open = append(l.open, b, c)
		l.mu.Unlock()
		go l.pipe(n, b, c)
		go l.pipe(n, c, b)
	}
}

// pipe forwards what comes from one side of connection n.
func (l *swallowing) pipe(n int64, to, from net.Conn) {
	buffer := make([]byte, 4096)
	for {
		k, err := from.Read(buffer)
		if err != nil {
			return
		}
		if n > l.frozen.Load() {
			_, _ = to.Write(buffer[:k])
		}
	}
}

func (l *swallowing) close() {
	l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		c.Close()
	}
}

// newSwallowing returns a listener in front of a target that speaks HTTP/2, and a TLS configuration that trusts it.
func newSwallowing(t *testing.T) (*swallowing, *tls.Config) {
	t.Helper()
	target := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	target.EnableHTTP2 = true
	target.StartTLS()
	t.Cleanup(target.Close)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &swallowing{Listener: socket, to: target.Listener.Addr().String()}
	go l.serve()
	t.Cleanup(l.close)
	trusted := x509.NewCertPool()
	trusted.AddCert(target.Certificate())
	return l, &tls.Config{RootCAs: trusted}
}

// A connection that is silently dead is noticed by pings, and the next request uses a new one. Regression: every
// request used the dead connection until the circuit opened, and with the circuit breaker switched off all requests
// did.
func TestASilentConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	l, config := newSwallowing(t)
	one := to("https://" + l.Addr().String() + "/")
	one.Timeout = 5 * time.Second
	p := newPoster(one, config, nil)
	t.Cleanup(p.close)
	redistest.Want(t, "silence before a ping", p.transport.HTTP2.SendPingTimeout, pingAfter)
	p.transport.HTTP2.SendPingTimeout, p.transport.HTTP2.PingTimeout = 50*time.Millisecond, 50*time.Millisecond
	if _, err := p.deliver(t.Context(), message("before", "x")); err != nil {
		t.Fatal(err)
	}
	l.freeze()
	if _, err := p.deliver(t.Context(), message("lost", "x")); err == nil || errors.Is(err, errTimeout) {
		t.Errorf("over the dead connection: %v", err)
	}
	if _, err := p.deliver(t.Context(), message("after", "x")); err != nil {
		t.Errorf("over a new connection: %v", err)
	}
}

// A connection that a load balancer has forgotten gives no answers, and HTTP/2 sends every request over it.
// Regression: probes used it as well, so the circuit of a healthy target stayed open.
func TestAProbeUsesANewConnection(t *testing.T) {
	t.Parallel()
	l, config := newSwallowing(t)
	g := newRig(t)
	g.setMaxAttempts("q", 50)
	one := to("https://" + l.Addr().String() + "/")
	one.Timeout, one.Interval, one.MaxInterval, one.Failures = 100*time.Millisecond, 100*time.Millisecond, 300*time.Millisecond, 3
	g.set(one)
	r, err := NewRunner(Config{Redis: g.r, Prefix: g.prefix, LookInterval: 20 * time.Millisecond, Logger: g.log.Logger(),
		TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	g.start(r.Run)
	g.schedule("q", bridge.NewMessage{ID: "before", Payload: []byte("x")})
	g.awaitDone("q")
	l.freeze()
	for i := range 20 {
		g.schedule("q", bridge.NewMessage{ID: fmt.Sprint("m-", i), Payload: []byte("x")})
	}
	g.awaitDone("q")
}

// A status in DeadStatus is no sign that the target is down, even if it is a 5xx.
func TestAStatusThatBuriesOpensNoCircuit(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) { w.WriteHeader(http.StatusNotImplemented) })
	one := to(v.URL)
	one.DeadStatus = []int{http.StatusNotImplemented}
	p := newPoster(one, nil, nil)
	if down, err := p.deliver(t.Context(), message("m", "x")); down || err == nil {
		t.Errorf("down: %t, %v", down, err)
	}
}

// The path and the query of a URL may be secret. The location and the body of a redirect often repeat them.
func TestARedirectTellsNoSecret(t *testing.T) {
	t.Parallel()
	for _, location := range []string{"https://www.example.com/SECRET?x=SECRET", "https://example.com:bad/SECRET?SECRET",
		"http://[::1/SECRET", "/SECRET", "//user:SECRET@example.com/SECRET"} {
		v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusMovedPermanently)
			_, _ = io.WriteString(w, "moved to SECRET")
		})
		p := newPoster(to(v.URL+"/SECRET?SECRET"), nil, nil)
		down, err := p.deliver(t.Context(), message("m", "x"))
		if err == nil || down || errors.Is(err, errTimeout) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("down: %t, %v", down, err)
		}
		redistest.Want(t, "requests", len(v.requests()), 1)
	}
}
