package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wire is one connection to an HTTP server, as light as it can be: the client shares two cores with what it measures.
type wire struct {
	t    *testing.T
	host string
	head string // further lines of each request
	conn net.Conn
	read *bufio.Reader
}

func newWire(t *testing.T, base, head string) *wire {
	t.Helper()
	host := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t: t, host: host, head: head, conn: conn, read: bufio.NewReader(conn)}
}

// send writes a request.
func (w *wire) send(method, target, body string) error {
	_, err := fmt.Fprintf(w.conn, "%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n%s", method, target, w.host, w.head,
		len(body), body)
	return err
}

// ask sends a request and returns the answer to it.
func (w *wire) ask(method, target, body string) (status int, text []byte, err error) {
	if err = w.send(method, target, body); err != nil {
		return 0, nil, err
	}
	answer, err := http.ReadResponse(w.read, &http.Request{Method: method})
	if err != nil {
		return 0, nil, err
	}
	text, err = io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// must asks, and has the test fail on any status but 2xx and those that are given.
func (w *wire) must(method, target, body string, also ...int) []byte {
	status, text, err := w.ask(method, target, body)
	for _, one := range also {
		if status == one {
			return nil
		}
	}
	if err != nil || status/100 != 2 {
		w.t.Errorf("%s %s: %d %s %v", method, target, status, text, err)
		return nil
	}
	return text
}

// rateOf runs do on so many callers at the same time for a while, or until all say that nothing is left (0), and returns how much
// was done a second.
func rateOf(callers int, most time.Duration, do func(caller int) int) float64 {
	var done atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for caller := range callers {
		all.Go(func() {
			for time.Since(begin) < most {
				n := do(caller)
				if n == 0 {
					return
				}
				done.Add(int64(n))
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds()
}
