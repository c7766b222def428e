package listener

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func listen(t *testing.T) *Listener {
	l, err := Listen("127.0.0.1:0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Serve()
	return l
}

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

func TestAnAddressThatIsTakenIsSaidAtOnce(t *testing.T) {
	if _, err := Listen(listen(t).Addr(), quiet); err == nil || !strings.Contains(err.Error(), "listen on 127.0.0.1:") {
		t.Error(err)
	}
}

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
	begun, told := make(chan struct{}), make(chan struct{})
	l.Handle("GET /hangs", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(told)
	}))
	go func() {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if r, err := client.Get("http://" + l.Addr() + "/hangs"); err == nil {
			_ = r.Body.Close()
		}
	}()
	<-begun
	l.Close()
	<-told
}

// Silent connections must not use up the file descriptors of the process, nor block Close.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l := listen(t)
	l.Handle("GET /one", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "one") }))
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
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
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
