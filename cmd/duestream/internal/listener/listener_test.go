package listener

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// listen returns a Listener that serves on a free port of 127.0.0.1, and closes it at the end of the test.
func listen(t *testing.T) *Listener {
	l, err := Listen("127.0.0.1:0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Serve()
	return l
}

// Listen without an address returns a nil Listener and no error. The methods of a nil Listener do nothing, so a caller
// need not ask whether it listens.
func TestNoAddressIsNoListener(t *testing.T) {
	l, err := Listen("", quiet)
	if l != nil || err != nil {
		t.Fatal(l, err)
	}
	l.Handle("/", http.NotFoundHandler())
	l.Serve()
	if l.Addr() != "" {
		t.Error(l.Addr())
	}
	l.Close()
}

// An address in use is an error of Listen, and not one that only the log of Serve shows.
func TestListenFailsOnAnAddressInUse(t *testing.T) {
	if _, err := Listen(listen(t).Addr(), quiet); err == nil || !strings.Contains(err.Error(), "listen on 127.0.0.1:") {
		t.Error(err)
	}
}

// Listen takes the address before Serve runs, so Close must free the address even if Serve was never called.
func TestCloseBeforeServeGivesTheAddressBack(t *testing.T) {
	l, err := Listen("127.0.0.1:0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	again, err := Listen(l.Addr(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// A hanging request must not keep the process from ending.
func TestCloseEndsARequestThatHangs(t *testing.T) {
	t.Parallel()
	l := listen(t)
	begun, cancelled := make(chan struct{}), make(chan struct{})
	l.Handle("GET /hangs", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(cancelled)
	}))
	go func() {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if r, err := client.Get("http://" + l.Addr() + "/hangs"); err == nil {
			_ = r.Body.Close()
		}
	}()
	<-begun
	l.Close()
	<-cancelled
}

// A handler may stream for longer than the write timeout if it moves its write deadline. The client reads three
// values, and each comes after the timeout that began with the request.
func TestAStreamOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	t.Run("HTTP/1.1", func(t *testing.T) { streamOutlivesTheWriteTimeout(t, http.DefaultClient, nil) })
	t.Run("HTTP/2", func(t *testing.T) {
		trust := x509.NewCertPool()
		trust.AddCert(secure.Certificate())
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: trust}}
		defer transport.CloseIdleConnections()
		streamOutlivesTheWriteTimeout(t, &http.Client{Transport: transport},
			&tls.Config{Certificates: secure.TLS.Certificates})
	})
}

func streamOutlivesTheWriteTimeout(t *testing.T, client *http.Client, secure *tls.Config) {
	l, err := ListenWith("127.0.0.1:0", quiet, Options{TLS: secure})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.server.WriteTimeout, l.server.ReadTimeout = time.Second, time.Second // a handshake on a busy machine takes long
	l.Handle("GET /stream", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Time{})
		for range 3 {
			_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
			_, _ = io.WriteString(w, "x")
			_ = rc.Flush()
			_ = rc.SetWriteDeadline(time.Time{}) // with HTTP/2, a deadline that passes ends the stream at once
			select {                             // the deadlines of the server pass meanwhile
			case <-time.After(2 * l.server.WriteTimeout):
			case <-r.Context().Done():
			}
		}
		if r.Context().Err() != nil {
			_, _ = io.WriteString(w, "the read deadline ended the request")
		}
	}))
	l.Serve()
	scheme := "http"
	if secure != nil {
		scheme = "https"
	}
	res, err := client.Get(scheme + "://" + l.Addr() + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "xxx" {
		t.Errorf("%s: %q, %v", res.Proto, text, err)
	}
}

// With Options.Connections, more clients than the default are served at the same time.
func TestTheLimitOfConnectionsCanBeRaised(t *testing.T) {
	t.Parallel()
	l, err := ListenWith("127.0.0.1:0", quiet, Options{Connections: maxConns + 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Handle("GET /one", http.NotFoundHandler())
	l.Serve()
	for range maxConns {
		conn, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + l.Addr() + "/one")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

// Silent connections must not use up the file descriptors of the process, nor block Close. Beyond maxConns, a
// connection waits until another one ends, and is then served.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l := listen(t)
	l.Handle("GET /one", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
	}))
	var silent []net.Conn
	for range maxConns {
		conn, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	conn, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /one HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // no answer is expected
	if answer, err := io.ReadAll(conn); err == nil {
		t.Errorf("one connection too many was served: %s", answer)
	}
	for _, c := range silent {
		_ = c.Close()
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "one") {
		t.Errorf("%q, %v", answer, err)
	}
}
