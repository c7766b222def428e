package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// slowly sends a text at once and then a byte each 100 ms, until the other end closes the connection. slowly returns
// the answer. The test fails if the connection is not closed within the given time.
func slowly(t *testing.T, addr, text string, within time.Duration) string {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	var sending sync.WaitGroup
	defer sending.Wait()
	ended := make(chan struct{})
	defer close(ended)
	sending.Go(func() {
		_, err := io.WriteString(conn, text)
		for tick := time.NewTicker(100 * time.Millisecond); err == nil; {
			select {
			case <-tick.C:
				_, err = io.WriteString(conn, "a")
			case <-ended:
				return
			}
		}
	})
	said, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%.40q: the connection is open after %v", text, within)
	}
	return string(said)
}

// A caller that sends a request byte by byte is cut off, and delays no other caller: neither with slow headers, nor
// with a slow body, with a good or a bad token. Its request has no effect.
func TestSlowClientsAreCutOffAndHoldNobodyUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests = 80 })
	s := NewServer(r.g)
	if s.ReadHeaderTimeout != 5*time.Second || s.ReadTimeout != 30*time.Second || s.IdleTimeout != time.Minute {
		t.Fatalf("the bounds are %v, %v, %v", s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout)
	}
	s.ReadTimeout = 6 * time.Second // of bodies, shorter than the usual 30 s
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(socket) }()
	t.Cleanup(func() { _ = s.Close() })
	addr := socket.Addr().String()
	const publish = "POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\n"
	good := publish + "Authorization: Bearer " + r.token + "\r\n"
	kinds := map[string]struct { // by the text that is sent at once
		clients int
		status  string // of the answer; "" = no answer
	}{
		"":                                    {50, "400"},
		publish + "X-A:":                      {100, ""},
		good + "Content-Length: 5000\r\n\r\n": {10, "408"},
		good + "Transfer-Encoding: chunked\r\n\r\n1388\r\n":                 {10, "408"},
		publish + "Authorization: Bearer x\r\nContent-Length: 5000\r\n\r\n": {20, "401"},
	}
	var slow sync.WaitGroup
	for text, kind := range kinds {
		for range kind.clients {
			slow.Go(func() {
				said := slowly(t, addr, text, 40*time.Second)
				status, _, _ := strings.Cut(said, "\r\n")
				if want := kinds[text].status; !strings.Contains(status, want) || want == "" && status != "" {
					t.Errorf("%q is answered with %q, want %s", text, status, want)
				}
			})
		}
	}
	cut := make(chan struct{})
	go func() {
		slow.Wait()
		close(cut)
	}()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	served := 0
	for going := true; going; {
		select {
		case <-cut:
			going = false
		case <-time.After(50 * time.Millisecond):
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/v1/queues", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+r.token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatalf("after %d requests that were served: %v", served, err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("after %d requests that were served: %d", served, res.StatusCode)
		}
		served++
	}
	if served < 10 {
		t.Errorf("%d requests were served meanwhile", served)
	}
	r.do("GET", "/v1/queues", "").want(http.StatusOK).has(`{"queues":[]}`)
}

// Slow bodies of one token take at most a quarter of MaxRequests, so other callers are served. Regression: endless
// bodies of one token took all of MaxRequests, and all callers got 503 for half a minute.
func TestBodiesOfOneTokenHoldNobodyElseUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests = 40 })
	weak := r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish}, Queues: []string{"other", "ns:*"}})
	addr := strings.TrimPrefix(r.base, "http://")
	var slow sync.WaitGroup
	var mu sync.Mutex
	statuses := map[string]int{}
	for i := range 100 {
		head := "POST /v1/queues/other/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
		if i%2 == 1 {
			head = "PUT /api/ns/other HTTP/1.1\r\nHost: x\r\nX-Token: "
		}
		slow.Go(func() {
			said := slowly(t, addr, head+weak+"\r\nContent-Length: 5000\r\n\r\n", 25*time.Second)
			status, _, _ := strings.Cut(strings.TrimPrefix(said, "HTTP/1.1 "), " ")
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	ended := make(chan struct{})
	go func() {
		slow.Wait()
		close(ended)
	}()
	began, served := time.Now(), 0
	// Each request is busy until its token was looked up.
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.g.bodies.isFull("weak") && r.g.busy.Load() <= 10, "bodies are not read yet"
	})
	for going := true; going; {
		select {
		case <-ended:
			going = false
		case <-time.After(50 * time.Millisecond):
		}
		r.do("POST", "/v1/queues/q/messages?in_ms=3600000", "x").want(http.StatusCreated)
		served++
	}
	if took := time.Since(began); served < 10 || took > 20*time.Second {
		t.Errorf("%d were served, and slow bodies cut off after %s", served, took)
	}
	if statuses["503"] != 90 { // of 100, a quarter of 40 may send its body
		t.Errorf("answers to slow bodies: %v, want 90 with 503", statuses)
	}
	r.do("POST", "/v1/queues/other/messages?in_ms=3600000", "x", "Authorization: Bearer "+weak).want(http.StatusCreated)
}

// asks sends a request over a connection of its own with a small receive buffer, and returns the connection once the
// answer has begun.
func asks(t *testing.T, addr, request string) net.Conn {
	t.Helper()
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		})
		return errors.Join(failed, err)
	}}
	conn, err := small.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatalf("%.40q: no answer begins: %v", request, err)
	}
	return conn
}

// Answers that the callers of one token do not read hold at most a share of MaxRequests. Regression: callers that did
// not read large answers took all of MaxRequests, and all callers got 503 for 40 s.
func TestAnswersThatNobodyReadsHoldNobodyElseUp(t *testing.T) {
	t.Parallel()
	const places = 16
	r := newRig(t, func(c *Config) { c.MaxRequests, c.MaxPayload = places, 4<<20 })
	const large = "/v1/queues/other/messages/large"
	r.do("POST", "/v1/queues/other/messages?id=large&in_ms=3600000", strings.Repeat("x", 4<<20)).want(http.StatusCreated)
	var slow []net.Conn
	weak := ""
	for i := range 5 {
		weak = r.allow(access.Token{Name: fmt.Sprint("weak-", i), Verbs: []access.Verb{access.Publish},
			Queues: []string{"other", "ns:*"}})
		for range places/4 + 2 {
			slow = append(slow, asks(t, strings.TrimPrefix(r.base, "http://"),
				"GET "+large+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+weak+"\r\n\r\n"))
		}
	}
	for range 20 {
		r.do("POST", "/v1/queues/q/messages?in_ms=3600000", "x").want(http.StatusCreated)
	}
	r.do("GET", large, "", "Authorization: Bearer "+weak).refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", "/api/ns/other/size", "", "X-Token: "+weak).want(http.StatusServiceUnavailable)
	r.do("GET", large, "").want(http.StatusOK)
	for _, conn := range slow {
		_ = conn.Close()
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return !r.g.answers.isFull("weak-4"), "answers to closed connections are being written"
	})
	r.do("GET", large, "", "Authorization: Bearer "+weak).want(http.StatusOK)
}

// Regression: over HTTP/2 the caller's flow control decides how much of an answer is sent. Unread answers below 64
// KiB were not bounded: one token had 7,000 of them in writing.
func TestAnswersOverHTTP2ThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 4 // answers of one token that may wait: a quarter of MaxRequests
	r := newRig(t, func(c *Config) { c.MaxRequests = 4 * most })
	const message, page = "/v1/queues/other/messages/one", "/v1/openapi.json"
	r.do("POST", "/v1/queues/other/messages?id=one&in_ms=3600000", strings.Repeat("x", 60_000)).want(http.StatusCreated)
	weak := r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish}, Queues: []string{"other"}})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10}}
	defer transport.CloseIdleConnections()
	leaveUnread := func(path, token string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
	}
	for name, one := range map[string]struct{ path, token string }{"weak": {message, weak}, "": {page, ""}} {
		for range most {
			leaveUnread(one.path, one.token)
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return r.g.answers.isFull(name), "not all unread answers are counted yet"
		})
	}
	r.do("GET", message, "", "Authorization: Bearer "+weak).refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", page, "", "Authorization:").refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", message, "").want(http.StatusOK)
}

// Small answers that nobody reads are counted as well. net/http buffers an answer below 4 KiB until the handler has
// returned, and over HTTP/2 sends it after that. Regression: such answers were not counted, so 40 connections without a
// token had 10,000 answers waiting, in 130 MB.
func TestSmallAnswersOverHTTP2ThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 4 // answers of one token that may wait: a quarter of MaxRequests
	r := newRig(t, func(c *Config) { c.MaxRequests = 4 * most })
	r.do("POST", "/v1/queues/other/messages?id=one&in_ms=3600000", strings.Repeat("x", 2000)).want(http.StatusCreated)
	weak := r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish}, Queues: []string{"other"}})
	for token, path := range map[string]string{"weak": "/v1/queues/other/messages/one", "": "/" + strings.Repeat("n", 100)} {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols, DisableCompression: true,
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 64 << 10}}
		resets, bodies := 0, []io.Closer(nil)
		for range 2000 { // more than fit into the connection's flow-control window; the loop ends at the first reset
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				request.Header.Set("Authorization", "Bearer "+weak)
			}
			answer, err := transport.RoundTrip(request)
			if err != nil {
				resets++
				break
			}
			bodies = append(bodies, answer.Body)
		}
		redistest.Want(t, "requests that were reset without an answer", resets, 1)
		r.g.answers.mu.Lock()
		// Beyond most answers, requests are refused. The refusals wait as well, up to twice most.
		redistest.Want(t, "answers and refusals that wait", r.g.answers.counts[token], 2*most)
		r.g.answers.mu.Unlock()
		r.do("GET", "/v1/queues/other/messages/one", "").want(http.StatusOK)
		for _, body := range bodies {
			_ = body.Close()
		}
		transport.CloseIdleConnections()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return !r.g.answers.isFull(token) && r.g.busy.Load() == 0, "answers to callers that are gone still count"
		})
	}
	r.do("GET", "/v1/queues/other/messages/one", "", "Authorization: Bearer "+weak).want(http.StatusOK)
}

// An answer that was left out, because too many answers were waiting, cannot be flushed, even when fewer wait by the
// time of the flush. Regression: the flush succeeded, so the gateway did not give the messages of the answer back,
// although the caller never got them.
func TestAnAnswerThatWasLeftOutIsNotFlushed(t *testing.T) {
	t.Parallel()
	g := &Gateway{answers: perToken{limit: 1}}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.ProtoMajor = 2
	written := httptest.NewRecorder()
	w := &reply{ResponseWriter: written, g: g, r: r, token: "ci"}
	for range 2 {
		g.answers.begin("ci")
	}
	w.json(http.StatusOK, "the answer")
	for range 2 {
		g.answers.end("ci")
	}
	err := http.NewResponseController(w).Flush()
	redistest.Want(t, "flushed", fmt.Sprint(err), errTooManyAnswers.Error())
	_, err = w.Write([]byte("more"))
	redistest.Want(t, "written later", fmt.Sprint(err), errTooManyAnswers.Error())
	redistest.Want(t, "sent", written.Body.String(), "")
}

// However long a caller has waited for a message, it has only readTimeout to read the answer. Regression: after a wait
// of hours, the caller had as many hours to read the answer.
func TestAnAnswerIsTakenInTimeHoweverLongItsCallerHasWaited(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests, c.Timeout = 4, time.Second })
	weak := r.allow(access.Token{Name: "weak", Verbs: access.Verbs(), Queues: []string{"ns:*"}})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10}}
	defer transport.CloseIdleConnections()
	ask := func(method, path, body string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), method, r.base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Token", weak)
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Error(err)
			return &http.Response{Body: http.NoBody}
		}
		return answer
	}
	got := make(chan *http.Response, 1)
	go func() { got <- ask("GET", "/api/ns/jobs?timeout=1000000", "") }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == 1, "nobody waits" })
	_ = ask("PUT", "/api/ns/jobs", strings.Repeat("x", 40_000)).Body.Close()
	answer := <-got
	defer answer.Body.Close()
	redistest.Want(t, "status", answer.StatusCode, http.StatusOK)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.g.answers.isFull("weak"), "the answer does not wait"
	})
	redistest.Eventually(t, readTimeout+30*time.Second, func() (bool, string) {
		return !r.g.answers.isFull("weak"), "the answer still waits"
	})
}

// beginLine starts a batch of lines with an unfinished line, whose payload has size bytes so far. said gets the status
// and the body of the answer.
func (r *rig) beginLine(token string, size int) (more *io.PipeWriter, said <-chan string) {
	r.t.Helper()
	body, more := io.Pipe()
	r.t.Cleanup(func() { _ = more.Close() })
	answered := make(chan string, 1)
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+"/v1/queues/other/batch", body)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/x-ndjson")
	go func() {
		answer, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		answered <- fmt.Sprint(answer.StatusCode, " ", string(text))
	}()
	_, _ = io.WriteString(more, `{"payload":"`+strings.Repeat("x", size))
	return more, answered
}

// endLine ends a line, and its batch.
func endLine(line *io.PipeWriter) {
	_, _ = io.WriteString(line, "\"}\n")
	_ = line.Close()
}

// want waits for an answer, which must contain the text.
func (r *rig) want(said <-chan string, text string) {
	r.t.Helper()
	select {
	case got := <-said:
		if !strings.Contains(got, text) {
			r.t.Errorf("%.300s has no %q", got, text)
		}
	case <-time.After(20 * time.Second):
		r.t.Fatalf("no answer that has %q", text)
	}
}

// One token may have a quarter of MaxPolls as streams of lines. Regression: streams of lines were not limited, and 400
// of one token, each with 2 KB of gzip for one long line, took 1.4 GB.
func TestStreamsOfLinesOfOneTokenAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPolls = 8 })
	weak := r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish}, Queues: []string{"other"}})
	one, first := r.beginLine(weak, 10)
	_, _ = r.beginLine(weak, 10)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return r.g.streams.isFull("weak"), "no streams" })
	_, third := r.beginLine(weak, 10)
	r.want(third, "503 ")
	other, theirs := r.beginLine(r.token, 10)
	endLine(other)
	r.want(theirs, `200 {"line":1,"id":`)
	endLine(one)
	r.want(first, `200 {"line":1,"id":`)
	again, fourth := r.beginLine(weak, 10)
	endLine(again)
	r.want(fourth, `200 {"line":1,"id":`)
}

// Streams of all tokens together are bounded as well, because each holds a connection.
func TestStreamsOfLinesOfAllTokensAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPolls = 4 })
	tokens := make([]string, 5)
	for i := range tokens {
		tokens[i] = r.allow(access.Token{Name: fmt.Sprint("t", i), Verbs: []access.Verb{access.Publish},
			Queues: []string{"other"}})
	}
	var first *io.PipeWriter
	for i, token := range tokens[:4] {
		line, _ := r.beginLine(token, 10)
		first = cmp.Or(first, line)
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			return r.g.streams.isFull(fmt.Sprint("t", i)), "the stream has not begun"
		})
	}
	_, refused := r.beginLine(tokens[4], 10)
	r.want(refused, "503 ")
	endLine(first)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return !r.g.streams.isFull("t0"), "the stream has not ended"
	})
	again, said := r.beginLine(tokens[4], 10)
	endLine(again)
	r.want(said, `200 {"line":1,"id":`)
}

// The bodies of one token that the gateway holds in memory have a common limit in bytes: 250 MiB, and 100,000 bytes in
// this test. A body beyond the limit gets 503, a small one passes, and other tokens are not affected.
func TestBytesOfBodiesOfOneTokenAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	redistest.Want(t, "bytes", r.g.bytes.limit, 250<<20)
	r.g.bytes.limit = 100_000
	weak := r.allow(access.Token{Name: "weak", Verbs: []access.Verb{access.Publish}, Queues: []string{"other", "ns:*"}})
	one, first := r.beginLine(weak, 60_000)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		r.g.bytes.mu.Lock()
		defer r.g.bytes.mu.Unlock()
		return r.g.bytes.counts["weak"] > 60_000, "the bytes of the first line are not counted yet"
	})
	large, as := strings.Repeat("x", 60_000), "Authorization: Bearer "+weak
	r.do("POST", "/v1/queues/other/messages?id=one", large, as).refused(http.StatusServiceUnavailable, typeBusy)
	r.do("PUT", "/api/ns/jobs", large, as, "X-Token: "+weak).want(http.StatusServiceUnavailable).has("too many requests")
	_, second := r.beginLine(weak, 60_000)
	r.want(second, typeBusy)
	r.do("POST", "/v1/queues/other/messages?id=small", "x", as).want(http.StatusCreated)
	r.do("POST", "/v1/queues/other/messages?id=one", large).want(http.StatusCreated)
	endLine(one)
	r.want(first, `200 {"line":1,"id":`)
	for i := range 5 { // the bytes no longer count
		r.do("POST", fmt.Sprint("/v1/queues/other/messages?id=later-", i), large, as).want(http.StatusCreated)
	}
	redistest.Want(t, "tokens with bytes in memory", len(r.g.bytes.counts), 0)
}

// Regression: a request whose body never arrived was busy for half a minute, because net/http read the body before a
// large answer. No token was needed for that: the OpenAPI document is such an answer.
func TestALargeAnswerDoesNotWaitForABodyThatNobodyNeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/queues/q/messages?id=large&in_ms=3600000", strings.Repeat("x", 100_000)).want(http.StatusCreated)
	r.do("POST", "/v1/queues/ns:q/messages", strings.Repeat("x", 100_000)).want(http.StatusCreated)
	for _, path := range []string{"/v1/openapi.json", "/v1/queues/q/messages/large", "/api/ns/q/peek", "/api/ns/q?timeout=1"} {
		began := time.Now()
		body := "Content-Length: 100000\r\n\r\n"
		if strings.Contains(path, "timeout") {
			// A part of the body arrives; net/http reads only some of it before the answer.
			body += strings.Repeat("x", 70_000)
		}
		asks(t, strings.TrimPrefix(r.base, "http://"),
			"GET "+path+" HTTP/1.1\r\nHost: x\r\nX-Token: "+r.token+"\r\nAuthorization: Bearer "+r.token+"\r\n"+body)
		if took := time.Since(began); took > bodyTime {
			t.Errorf("%s: the answer took %s", path, took)
		}
	}
}
