package clitest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// ListensFor waits until a command logs that it listens for a purpose, and returns the address.
func (r *Running) ListensFor(purpose string) (addr string) {
	r.T.Helper()
	redistest.Eventually(r.T, Patience, func() (bool, string) {
		_, rest, _ := strings.Cut(r.Err.String(), `"listens for `+purpose+`","address":"`)
		addr, _, _ = strings.Cut(rest, `"`)
		return addr != "", r.Err.String()
	})
	return addr
}

// Address waits until a command logs its listening address, and returns it.
func (r *Running) Address() (addr string) { return AddressIn(r.T, r.Err) }

// AddressIn waits until a log has the address of a listener, and returns it.
func AddressIn(t *testing.T, log *Buffer) (addr string) {
	t.Helper()
	redistest.Eventually(t, Patience, func() (bool, string) {
		for line := range strings.Lines(log.String()) {
			var entry struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Address != "" {
				addr = entry.Address
			}
		}
		return addr != "", log.String()
	})
	return addr
}

// Ask sends a request, and returns its status and body. headers are names and values in turn.
func Ask(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if request.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" { // net/http ignores it as a header
			request.Host = headers[i+1]
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Patience}
	reply, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// Get returns the status and the body of a response.
func Get(t *testing.T, url string) (int, string) {
	t.Helper()
	return Ask(t, http.MethodGet, url, "")
}

// Put sends a PUT request, and returns the status.
func Put(t *testing.T, url, body string, headers ...string) int {
	t.Helper()
	status, _ := Ask(t, http.MethodPut, url, body, headers...)
	return status
}

// Becomes waits until a GET request gets this status, and a body that holds says.
func Becomes(t *testing.T, url string, code int, says string) {
	t.Helper()
	redistest.Eventually(t, Patience, func() (bool, string) {
		got, text := Get(t, url)
		return got == code && strings.Contains(text, says), text
	})
}
