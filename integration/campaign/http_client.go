package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
)

const (
	httpShare = 8                      // one of so many messages is published over HTTP
	shunned   = 700 * time.Millisecond // how long a gateway that failed is avoided
	callWait  = 2 * time.Second        // time limit of one request
	httpTries = 8 * time.Second        // time limit of all tries: well within dedupWindow
	httpPause = 100 * time.Millisecond // pause after both gateways failed
)

// Problem types that this client checks for.
const (
	problemPrefix       = "urn:duestream:problem:"
	problemDuplicate    = problemPrefix + "duplicate"
	problemNotScheduled = problemPrefix + "not-scheduled"
	problemNotFound     = problemPrefix + "not-found"
	problemFull         = problemPrefix + "full"
	problemBusy         = problemPrefix + "busy"
	problemUncertain    = problemPrefix + "uncertain"
	problemUnavailable  = problemPrefix + "unavailable"
)

// httpClient asks the gateways in turn, and uses the next one when one fails.
type httpClient struct {
	gateways []string
	secret   string
	client   *http.Client

	mu     sync.Mutex
	turn   int
	failed []time.Time
	late   map[string]bool // IDs of messages that a late request may schedule once more; see publish
}

func newHTTPClient(p part) *httpClient {
	return &httpClient{gateways: p.Gateways, secret: p.Secret, failed: make([]time.Time, len(p.Gateways)),
		late:   map[string]bool{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50, IdleConnTimeout: 10 * time.Second}}}
}

// pick returns the index of the next gateway. It skips gateways that failed less than shunned ago, unless all did.
func (h *httpClient) pick() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range h.gateways {
		h.turn = (h.turn + 1) % len(h.gateways)
		if time.Since(h.failed[h.turn]) > shunned {
			break
		}
	}
	return h.turn
}

// shun makes pick skip a gateway for a while.
func (h *httpClient) shun(at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed[at] = time.Now()
}

// answered is the response of a gateway. If uncertain is set, the request may have been executed, and the other
// fields are not set.
type answered struct {
	uncertain bool
	status    int
	problem   httpProblem
	body      []byte // for a response that was cut, its first part
}

type httpProblem struct {
	Type   string `json:"type"`
	Detail string `json:"detail"`
}

// uncertain reports whether the request may have been executed in spite of the problem.
func (p httpProblem) uncertain() bool {
	return p.Type == problemUncertain || p.Type == problemUnavailable && !p.oldBridge()
}

// oldBridge reports whether a gateway refused the request because a live bridge of the previous release does not
// support it.
func (p httpProblem) oldBridge() bool {
	return p.Type == problemUnavailable && strings.HasPrefix(p.Detail, "a bridge is alive that does not serve this")
}

// ask sends one request to one gateway. headers has names and values in turn.
func (h *httpClient) ask(method, path string, body []byte, wait time.Duration, headers ...string) answered {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	at := h.pick()
	r, err := http.NewRequestWithContext(ctx, method, h.gateways[at]+path, bytes.NewReader(body))
	if err != nil {
		return answered{uncertain: true}
	}
	r.Header.Set("Authorization", "Bearer "+h.secret)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := h.client.Do(r)
	if err != nil {
		h.shun(at)
		return answered{uncertain: true}
	}
	defer res.Body.Close()
	a := answered{status: res.StatusCode}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		h.shun(at)
		a.uncertain = true
		return a
	}
	if a.status >= http.StatusBadRequest {
		_ = json.Unmarshal(a.body, &a.problem)
		a.uncertain = a.problem.uncertain()
	}
	if a.status >= http.StatusInternalServerError {
		h.shun(at)
	}
	return a
}

// change repeats a request until its result is known. After a lost answer, a later "not found" proves nothing.
func (h *httpClient) change(method, path string) (answered, error) {
	uncertain := false
	for until := time.Now().Add(httpTries); ; {
		a := h.ask(method, path, nil, callWait)
		switch {
		case a.uncertain:
			uncertain = true
		case a.status < http.StatusBadRequest:
			return a, nil
		case (a.problem.Type == problemNotScheduled || a.problem.Type == problemNotFound) && !uncertain:
			return a, bridge.ErrNotScheduled
		case a.problem.Type == problemNotScheduled || a.problem.Type == problemNotFound:
			return a, bridge.ErrUncertain
		case a.problem.Type != problemFull && a.problem.Type != problemBusy:
			return a, fmt.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
		if time.Now().After(until) {
			return a, bridge.ErrUncertain
		}
		<-time.After(httpPause)
	}
}

// receiptOf parses a receipt.
func receiptOf(text []byte) (bridge.Receipt, error) {
	var r struct {
		ID       string
		Due      time.Time
		Replaced bool
	}
	err := json.Unmarshal(text, &r)
	return bridge.Receipt{ID: r.ID, Due: r.Due, Replaced: r.Replaced}, err
}
