package push

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

var quietLog = log.New(io.Discard, "", 0)

// Retry-After counts for the statuses 429 and 503, as seconds or as a date. A date is compared with the target's own
// Date. A value that makes no sense is ignored, and a large one is cut to MaxRetryAfter.
func TestRetryAfterIsReadAndBounded(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		status      int
		after, date string
		want        time.Duration
	}{
		{429, "7", "", 7 * time.Second}, {503, "120", "", 2 * time.Minute}, {500, "7", "", 0}, {404, "7", "", 0},
		{429, "", "", 0}, {429, "0", "", 0}, {429, "-5", "", 0}, {429, "soon", "", 0}, {429, "1.5", "", 0},
		{429, "999999999", "", MaxRetryAfter}, {429, strings.Repeat("9", 40), "", MaxRetryAfter},
		{503, date(time.Minute), date(0), time.Minute}, {503, date(time.Hour + time.Minute), date(time.Hour), time.Minute},
		{503, date(-time.Minute), date(0), 0}, {503, date(100 * 24 * time.Hour), date(0), MaxRetryAfter},
	} {
		reply := &http.Response{StatusCode: c.status, Header: http.Header{}}
		reply.Header.Set("Retry-After", c.after)
		reply.Header.Set("Date", c.date)
		if got := retryAfter(reply); got != c.want {
			t.Errorf("%d, Retry-After %q, Date %q: %s, want %s", c.status, c.after, c.date, got, c.want)
		}
	}
}

// A redirect could send the message and its signature anywhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := newReceiver(t, nil)
	for _, status := range []int{301, 302, 303, 307, 308} {
		v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) {
			w.Header().Set("Location", elsewhere.URL+"/?secret")
			w.WriteHeader(status)
		})
		p := newPoster(to(v.URL), nil, nil)
		down, err := p.deliver(t.Context(), message("m", "x"))
		if err == nil || down || !strings.Contains(err.Error(), "redirects are not followed (to "+elsewhere.URL) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %v", status, err)
		}
		p.close()
	}
	redistest.Want(t, "requests elsewhere", len(elsewhere.requests()), 0)
}

// A request to a target that answers too late, or that never finishes its answer, ends soon after the target's timeout
// of 200 ms. The error stays short.
func TestNoTargetHoldsASlotForLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(w http.ResponseWriter, until <-chan struct{}) // until is closed at the end of the test
		says  string                                             // part of the error; "" = the delivery succeeds
	}{
		"silent": {func(_ http.ResponseWriter, until <-chan struct{}) { <-until }, "no answer in time: 200ms"},
		"a body that does not come": {func(w http.ResponseWriter, until <-chan struct{}) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-until
		}, ""},
		"a body without an end": {func(w http.ResponseWriter, until <-chan struct{}) {
			for block := bytes.Repeat([]byte("x"), 1<<16); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, ""},
		"an error without an end": {func(w http.ResponseWriter, until <-chan struct{}) {
			w.WriteHeader(http.StatusInternalServerError)
			for block := bytes.Repeat([]byte("€"), 1<<12); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, "500 Internal Server Error: €€€"},
		"another protocol": {func(w http.ResponseWriter, until <-chan struct{}) {
			w.Header().Set("Upgrade", "silence")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				<-until
				_ = conn.Close()
			}
		}, "answered 101 Switching Protocols"},
		"a header without an end": {func(w http.ResponseWriter, until <-chan struct{}) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		}, "header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			until := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				c.serve(w, until)
			}))
			server.Config.ErrorLog = quietLog
			server.Start()
			t.Cleanup(server.Close)
			t.Cleanup(func() { close(until) })
			target := to(server.URL)
			target.Timeout = 200 * time.Millisecond
			p := newPoster(target, nil, nil)
			defer p.close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			down, err := p.deliver(ctx, message("m", "x"))
			switch {
			case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("down: %t, %v", down, err)
			case ctx.Err() != nil:
				t.Error("the request took 30 s")
			case err != nil && (len(err.Error()) > 700 || !utf8.ValidString(err.Error())):
				t.Errorf("an error of %d bytes: %q", len(err.Error()), err)
			}
		})
	}
}

// Logs and dead letters hold no secret of a target.
func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, func(n int, _ request, w http.ResponseWriter) { w.WriteHeader(500) })
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, base := range []string{v.URL, gone.URL, "http://localhost:1"} {
		target := to(base + "/path-secret?query=secret")
		target.Headers = map[string]string{"Authorization": "header-secret"}
		p := newPoster(target, nil, nil)
		_, err := p.deliver(t.Context(), message("m", "x"))
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), testKey[6:]) {
			t.Error(err)
		}
	}
	for _, url := range []string{
		"https://user:secret@example.com/", "https:user:secret@example.com/hook", "user:secret@example.com/hook",
		"ftp://example.com/?secret", "ftp://example.com/secret", "https://10.1.2.3/secret",
		"https://example.com/?secret#", "https://example.com/secret#",
	} {
		if err := to(url).Check(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
		if shown := showURL(url); strings.Contains(shown, ":secret") {
			t.Errorf("%s is shown as %s", url, shown)
		}
	}
}

// A request ends when the context of its delivery is cancelled. The error has the cause, so that the message is not
// taken for delivered.
func TestAPostEndsWithItsDelivery(t *testing.T) {
	t.Parallel()
	arrived, until := make(chan struct{}), make(chan struct{})
	v := newReceiver(t, func(int, request, http.ResponseWriter) { close(arrived); <-until })
	t.Cleanup(func() { close(until) })
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("lost")) }()
	_, err := newPoster(to(v.URL), nil, nil).deliver(ctx, message("m", "x"))
	if err == nil || !strings.Contains(err.Error(), "lost") {
		t.Error(err)
	}
}

// The poster uses the TLS configuration of its Runner: here a client certificate and the roots. It speaks HTTP/2 if the
// target does.
func TestClientCertificatesAreShownAndHTTP2IsSpoken(t *testing.T) {
	t.Parallel()
	said := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		said <- fmt.Sprint(r.Proto, " ", len(r.TLS.PeerCertificates))
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	config := &tls.Config{RootCAs: roots, Certificates: server.TLS.Certificates}
	p := newPoster(to(server.URL), config, nil)
	defer p.close()
	if _, err := p.deliver(t.Context(), message("m", "x")); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "the request", <-said, "HTTP/2.0 1")
}
