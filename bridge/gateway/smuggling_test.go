package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// raw sends bytes to the gateway, and returns everything that the gateway sends until it closes the connection.
func (r *rig) raw(text string) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, text) // may fail: the gateway may close the connection before all is sent
	var got bytes.Buffer
	if _, err := io.Copy(&got, conn); err != nil {
		if late, ok := err.(net.Error); ok && late.Timeout() { //nolint:errorlint // io.Copy does not wrap errors
			r.t.Errorf("the connection stays open: %q\n%s", text, got.String())
		}
	}
	return got.String()
}

var statusLine = regexp.MustCompile(`(?m)^HTTP/1\.[01] ([0-9]{3})`)

// A proxy may read an ambiguous request differently than the gateway. So that no request can be smuggled past it, an
// ambiguous request gets one answer, the bytes after it are not read as a request, and nothing is changed.
func TestNothingIsSmuggled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/queues/victim/messages?id=kept&in_ms=600000", "x").want(http.StatusCreated)
	behind := "DELETE /v1/queues/victim/messages/kept HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + r.token + "\r\n\r\n"
	const bad = http.StatusBadRequest
	for what, c := range map[string]struct {
		headers, body string
		status        int
	}{
		"both lengths":           {"Content-Length: 6\nTransfer-Encoding: chunked", "0\r\n\r\n", bad},
		"both, the other order":  {"Transfer-Encoding: chunked\nContent-Length: 200", "0\r\n\r\n", bad},
		"both, a wrong one":      {"Transfer-Encoding: chunked\nContent-Length: x", "0\r\n\r\n", bad},
		"two lengths":            {"Content-Length: 2\nContent-Length: 200", "[]", bad},
		"a list of lengths":      {"Content-Length: 2, 2", "[]", bad},
		"a signed length":        {"Content-Length: +2", "[]", bad},
		"a negative length":      {"Content-Length: -1", "", bad},
		"a hexadecimal length":   {"Content-Length: 0x2", "[]", bad},
		"a length beyond all":    {"Content-Length: 99999999999999999999", "[]", bad},
		"an empty length":        {"Content-Length: ", "", bad},
		"a space before a colon": {"Content-Length : 2", "[]", bad},
		"a line without a colon": {"Transfer-Encoding chunked", "", bad},
		"two hosts":              {"Host: y", "", bad},
		"a NUL":                  {"X-A: a\x00b", "", bad},
		"unknown encoding":       {"Transfer-Encoding: xchunked", "0\r\n\r\n", http.StatusNotImplemented},
		"two encodings":          {"Transfer-Encoding: gzip, chunked", "0\r\n\r\n", http.StatusNotImplemented},
		"the encoding twice":     {"Transfer-Encoding: chunked\nTransfer-Encoding: identity", "0\r\n\r\n", http.StatusNotImplemented},
		"a tab in the encoding":  {"Transfer-Encoding: \x0bchunked", "0\r\n\r\n", bad},
		"a chunk that is none":   {"Transfer-Encoding: chunked", "zz\r\n[]\r\n0\r\n\r\n", bad},
		"a chunk of minus one":   {"Transfer-Encoding: chunked", "-1\r\n[]\r\n0\r\n\r\n", bad},
		"a chunk beyond all":     {"Transfer-Encoding: chunked", "fffffffffffffffff\r\n[]\r\n0\r\n\r\n", bad},
		"a chunk too short":      {"Transfer-Encoding: chunked", "1\r\n[]\r\n0\r\n\r\n", bad},
		"a chunk with 0x":        {"Transfer-Encoding: chunked", "0x2\r\n[]\r\n0\r\n\r\n", bad},
		"a chunk ends with LF":   {"Transfer-Encoding: chunked", "2\r\n[]\n0\r\n\r\n", bad},
	} {
		t.Run(what, func(t *testing.T) {
			request := "POST /v1/queues/made/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + r.token + "\r\n" +
				strings.ReplaceAll(c.headers, "\n", "\r\n") + "\r\n\r\n" + c.body
			got := r.raw(request + behind)
			all := statusLine.FindAllStringSubmatch(got, -1)
			if len(all) != 1 {
				t.Fatalf("%d answers:\n%s", len(all), got)
			}
			// With both lengths, net/http may also read the chunks and ignore the Content-Length.
			lax := strings.HasPrefix(what, "both") && all[0][1] == strconv.Itoa(http.StatusCreated)
			if all[0][1] != strconv.Itoa(c.status) && !lax {
				t.Errorf("status %s, want %d:\n%s", all[0][1], c.status, got)
			}
			if strings.Contains(got, r.token) {
				t.Error("the answer holds the token")
			}
		})
	}
	r.do("GET", "/v1/queues/victim/messages/kept", "").want(http.StatusOK).has(`"scheduled"`)
}

// The chunks of a request are its payload, and the gateway closes the connection after them: bytes that follow are not
// read as another request. Requests with a Content-Length share a connection.
func TestAChunkedRequestIsTheLastOfItsConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	head := func(id string) string {
		return fmt.Sprintf("POST /v1/queues/q/messages?in_ms=600000&id=%s HTTP/1.1\r\nHost: x\r\n", id) +
			"Authorization: Bearer " + r.token + "\r\n"
	}
	got := r.raw(head("one") + "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n" + head("two") +
		"Content-Length: 1\r\n\r\nx")
	if strings.Count(got, "HTTP/1.1 201 Created") != 1 || !strings.Contains(got, "Connection: close") {
		t.Errorf("%s", got)
	}
	r.do("GET", "/v1/queues/q/messages/one", "").want(http.StatusOK).has(`"payload":"abcde"`)
	r.do("GET", "/v1/queues/q/messages/two", "").refused(http.StatusNotFound, typeNotFound)
	got = r.raw(head("three") + "Content-Length: 1\r\n\r\nx" + head("four") + "Connection: close\r\nContent-Length: 1\r\n\r\nx")
	if strings.Count(got, "HTTP/1.1 201 Created") != 2 {
		t.Errorf("requests with a length share a connection:\n%s", got)
	}
}
