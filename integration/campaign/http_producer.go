package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
)

// posted is the JSON of a message for a gateway.
type posted struct {
	ID          string            `json:"id"`
	Payload     []byte            `json:"payload_base64,omitempty"`
	In          int64             `json:"in_ms,omitempty"`
	Spread      int64             `json:"spread_ms,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	RetryDelays json.RawMessage   `json:"retry_delays_ms,omitempty"`
	RetryFor    int64             `json:"retry_for_ms,omitempty"`
	MaxCrashes  int               `json:"max_crashes,omitempty"`
	Handler     int64             `json:"handler_timeout_ms,omitempty"`
	Dedup       int64             `json:"dedup_ms,omitempty"`
	Replace     string            `json:"replace,omitempty"`
	Key         string            `json:"key,omitempty"`
}

// postedOf gives a message a dedup window, so that a request whose answer was lost can be repeated. Versions get
// none, because a replacement must not be refused.
func postedOf(m *bridge.NewMessage) posted {
	p := posted{ID: m.ID, Payload: m.Payload, In: m.Delay.Milliseconds(), Spread: m.Spread.Milliseconds(), Headers: m.Headers,
		MaxAttempts: m.MaxAttempts, RetryFor: m.RetryFor.Milliseconds(), MaxCrashes: m.MaxCrashes, Key: m.Key,
		Handler: m.HandlerTimeout.Milliseconds(),
		Dedup:   m.Dedup.Milliseconds()}
	if m.RetryDelays != "" {
		p.RetryDelays = json.RawMessage("[" + string(m.RetryDelays) + "]")
	}
	if m.Replace != "" {
		p.Replace = "always"
	}
	if plan, _ := planOf(m.ID); plan.kind != kindVersion && p.Dedup == 0 {
		p.Dedup = dedupWindow.Milliseconds()
	}
	return p
}

// query returns the parameters of a single message: all fields but headers and payload.
func (p posted) query() string {
	q := url.Values{"id": {p.ID}}
	for name, n := range map[string]int64{"in_ms": p.In, "spread_ms": p.Spread, "max_attempts": int64(p.MaxAttempts),
		"retry_for_ms": p.RetryFor, "max_crashes": int64(p.MaxCrashes), "handler_timeout_ms": p.Handler, "dedup_ms": p.Dedup} {
		if n != 0 {
			q.Set(name, strconv.FormatInt(n, 10))
		}
	}
	for name, text := range map[string]string{"replace": p.Replace, "key": p.Key,
		"retry_delays_ms": string(bytes.Trim(p.RetryDelays, "[]"))} {
		if text != "" {
			q.Set(name, text)
		}
	}
	return q.Encode()
}

// trial is a message that is being published, with the known results.
type trial struct {
	posted
	began     time.Time // begin of the first request
	uncertain bool      // it may have been taken
	done      bool
	result    bridge.Result
}

// learn records the result of one request. If fresh is set, nobody used the ID before this message. So if the gateway
// refuses a repeated request as a duplicate, the earlier message with this ID is the message itself, and was taken at
// some time since the first request.
func (t *trial) learn(receipt bridge.Receipt, problem *httpProblem, fresh bool) {
	t.done = true
	switch {
	case problem == nil:
		t.result = bridge.Result{Receipt: receipt}
	case problem.uncertain():
		t.uncertain, t.done = true, t.Dedup == 0
		t.result.Err = bridge.ErrUncertain
	case problem.Type == problemDuplicate && t.uncertain && fresh:
		t.result = bridge.Result{Receipt: bridge.Receipt{ID: t.ID,
			Due: t.began.Add(time.Duration(t.In) * time.Millisecond).Truncate(time.Millisecond)}}
	case problem.Type == problemDuplicate:
		t.result.Err = bridge.ErrDuplicate
	case t.uncertain:
		t.result.Err = bridge.ErrUncertain
	case problem.oldBridge():
		t.result.Err = bridge.ErrOldBridge
	case problem.Type == problemBusy:
		t.done, t.result.Err = false, bridge.ErrUncertain
	case problem.Type == problemFull:
		t.result.Err = bridge.ErrFull
	default:
		t.result.Err = fmt.Errorf("%s: %s", problem.Type, problem.Detail)
	}
}

var unanswered = &httpProblem{Type: problemUncertain}

// publish publishes messages until the result of each is known. If a request got no answer, a gateway may still execute
// the request later, even after its message was cancelled.
func (h *httpClient) publish(queue string, messages []bridge.NewMessage, fresh bool) []bridge.Result {
	all := make([]*trial, len(messages))
	for i := range messages {
		all[i] = &trial{posted: postedOf(&messages[i]), began: time.Now()}
	}
	for until := time.Now().Add(httpTries); ; {
		var left []*trial
		for _, t := range all {
			if !t.done {
				left = append(left, t)
			}
		}
		if len(left) == 0 || time.Now().After(until) {
			break
		}
		switch way := hash(left[0].ID) % 3; {
		case way == 0 && len(left) < 5:
			for _, t := range left {
				h.publishOne(queue, t, fresh)
			}
		case way == 1:
			h.publishArray(queue, left, fresh)
		default:
			h.publishLines(queue, left, fresh)
		}
		if !left[0].done {
			<-time.After(httpPause)
		}
	}
	results := make([]bridge.Result, len(all))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, t := range all {
		results[i] = t.result
		if t.uncertain {
			h.late[t.ID] = true
		}
	}
	return results
}

func queuePath(queue string) string { return "/v1/queues/" + queue }

func (h *httpClient) publishOne(queue string, t *trial, fresh bool) {
	var headers []string
	for name, value := range t.Headers {
		headers = append(headers, "Duestream-Header-"+name, value)
	}
	a := h.ask(http.MethodPost, queuePath(queue)+"/messages?"+t.query(), t.Payload, callWait, headers...)
	receipt, err := receiptOf(a.body)
	switch {
	case a.uncertain || err != nil:
		t.learn(receipt, unanswered, fresh)
	case a.status >= http.StatusBadRequest:
		t.learn(receipt, &a.problem, fresh)
	default:
		t.learn(receipt, nil, fresh)
	}
}

// verdictLine is the result of one message in a response for several.
type verdictLine struct {
	Line    int
	Problem *httpProblem
	Due     time.Time
	ID      string

	Replaced bool
}

func (v verdictLine) receipt() bridge.Receipt {
	return bridge.Receipt{ID: v.ID, Due: v.Due, Replaced: v.Replaced}
}

func (h *httpClient) publishArray(queue string, left []*trial, fresh bool) {
	text, _ := json.Marshal(left)
	a := h.ask(http.MethodPost, queuePath(queue)+"/batch", text, callWait, "Content-Type", "application/json")
	var all struct{ Results []verdictLine }
	_ = json.Unmarshal(a.body, &all)
	learnAll(left, a, all.Results, fresh)
}

func (h *httpClient) publishLines(queue string, left []*trial, fresh bool) {
	var text bytes.Buffer
	for _, t := range left {
		_ = json.NewEncoder(&text).Encode(t)
	}
	a := h.ask(http.MethodPost, queuePath(queue)+"/batch", text.Bytes(), callWait, "Content-Type", "application/x-ndjson")
	var all []verdictLine
	for lines := json.NewDecoder(bytes.NewReader(a.body)); ; {
		var v verdictLine
		if lines.Decode(&v) != nil {
			break
		}
		all = append(all, v)
	}
	learnAll(left, a, all, fresh)
}

// learnAll records the results of several messages. A message without a result may have been taken, unless the whole
// request was refused.
func learnAll(left []*trial, a answered, verdicts []verdictLine, fresh bool) {
	told := map[int]verdictLine{}
	if a.status < http.StatusBadRequest {
		for _, v := range verdicts {
			told[v.Line] = v
		}
	}
	for i, t := range left {
		v, is := told[i+1]
		switch {
		case is:
			t.learn(v.receipt(), v.Problem, fresh)
		case !a.uncertain && a.status >= http.StatusBadRequest:
			t.learn(bridge.Receipt{}, &a.problem, fresh)
		default:
			t.learn(bridge.Receipt{}, unanswered, fresh)
		}
	}
}

// ScheduleBatch publishes messages with unused IDs.
func (h *httpClient) ScheduleBatch(_ context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
	return h.publish(queue, messages, true), nil
}

// Schedule publishes a message whose ID may be in use.
func (h *httpClient) Schedule(_ context.Context, queue string, payload []byte, options ...bridge.Option) (bridge.Receipt, error) {
	m := bridge.NewMessage{Payload: payload}
	for _, set := range options {
		set(&m)
	}
	result := h.publish(queue, []bridge.NewMessage{m}, false)[0]
	return result.Receipt, result.Err
}

// Cancel cancels a message. It returns ErrUncertain if a gateway may still execute a request to publish the message.
func (h *httpClient) Cancel(_ context.Context, queue, id string, _ ...bridge.Scope) error {
	_, err := h.change(http.MethodDelete, queuePath(queue)+"/messages/"+id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.late[id] {
		return bridge.ErrUncertain
	}
	return err
}

// Reschedule moves a message.
func (h *httpClient) Reschedule(_ context.Context, queue, id string, to bridge.Option, _ ...bridge.Scope) (time.Time, error) {
	var m bridge.NewMessage
	to(&m)
	a, err := h.change(http.MethodPatch, fmt.Sprintf("%s/messages/%s?in_ms=%d", queuePath(queue), id, m.Delay.Milliseconds()))
	if err != nil {
		return time.Time{}, err
	}
	receipt, err := receiptOf(a.body)
	return receipt.Due, err
}
