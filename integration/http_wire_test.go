package integration

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wire is a minimal HTTP client with one connection. It needs little CPU time, because it shares two cores with the
// measured server. A caller can prepare its requests as bytes. Of a response, wire reads only the status and the body.
type wire struct {
	t    *testing.T
	host string
	head string // header lines of each request, in addition to Host and Content-Length
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

// request returns the bytes of a request, for ask.
func (w *wire) request(method, target, body string) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n%s", method, target, w.host, w.head,
		len(body), body)
}

// send sends a request, and does not wait for the response.
func (w *wire) send(method, target, body string) error {
	_, err := w.conn.Write(w.request(method, target, body))
	return err
}

// ask sends the bytes of a request, and returns the response.
func (w *wire) ask(request []byte) (status int, text []byte, err error) {
	if _, err = w.conn.Write(request); err != nil {
		return 0, nil, err
	}
	line, err := w.read.ReadSlice('\n')
	if err != nil || len(line) < len("HTTP/1.1 200") {
		return 0, nil, fmt.Errorf("status line %q: %w", line, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, err
	}
	size, chunked := 0, false
	for {
		line, err = w.read.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		switch {
		case !found:
			text, err = w.body(size, chunked)
			return status, text, err
		case bytes.EqualFold(name, []byte("Content-Length")):
			if size, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, nil, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		}
	}
}

// body reads the body of a response, which is chunked or has this size.
func (w *wire) body(size int, chunked bool) (text []byte, err error) {
	if !chunked {
		text = make([]byte, size)
		_, err = io.ReadFull(w.read, text)
		return text, err
	}
	if text, err = io.ReadAll(httputil.NewChunkedReader(w.read)); err == nil {
		_, err = w.read.ReadSlice('\n') // after the last chunk
	}
	return text, err
}

// must sends a request, and returns the body of the response. The test fails for any status except 2xx and those in
// also, for which must returns nil.
func (w *wire) must(method, target, body string, also ...int) []byte {
	return w.mustAsk(w.request(method, target, body), also...)
}

// mustAsk does the same with the bytes of a request.
func (w *wire) mustAsk(request []byte, also ...int) []byte {
	status, text, err := w.ask(request)
	for _, one := range also {
		if status == one {
			return nil
		}
	}
	if err != nil || status/100 != 2 {
		line, _, _ := bytes.Cut(request, []byte("\r\n"))
		w.t.Errorf("%s: %d %s %v", line, status, text, err)
		return nil
	}
	return text
}

// rateOf calls do again and again from concurrent callers. A caller ends after the given time, or when do returns 0.
// rateOf returns the sum of the results of do, per second.
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
