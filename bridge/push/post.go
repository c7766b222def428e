package push

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// MaxRetryAfter is the longest delay that a target may ask for with Retry-After. A longer one is shortened to it.
const MaxRetryAfter = 24 * time.Hour

const (
	maxShownBody = 512             // bytes of an answer's body in an error
	maxReadBody  = 64 << 10        // bytes of an answer's body that are read, so that the connection can be used again
	bodyTime     = 2 * time.Second // to read an answer's body
	maxShownHost = 120             // bytes of a redirect's host in an error

	userAgent = "duestream"
	dueLayout = "2006-01-02T15:04:05.000Z07:00"
)

// errTimeout: the request took longer than its target's timeout.
var errTimeout = errors.New("no answer in time")

// downStatus are the status codes that mean that the target is down, whatever the message. Any other status code
// above 299, 500 included, means that the target works and failed at this message, so the request counts as an attempt.
// 429 limits the rate: the message waits as long as Retry-After says.
var downStatus = []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

// poster sends the requests of one target.
type poster struct {
	target    Target
	host      string
	secrets   [][]byte
	transport *http.Transport
}

func newPoster(t Target, config *tls.Config, resolver *net.Resolver) *poster {
	p := &poster{target: t, transport: newTransport(t, config, resolver)}
	if u, err := url.Parse(t.URL); err == nil {
		p.host = u.Host
	}
	for _, key := range t.Keys {
		if secret, ok := secretOf(key); ok {
			p.secrets = append(p.secrets, secret)
		}
	}
	return p
}

func (p *poster) close() { p.transport.CloseIdleConnections() }

// response is a target's answer to a request.
type response struct {
	status   int
	location string        // the header Location, of a redirect
	after    time.Duration // the header Retry-After; 0 = no such header
	body     string        // the beginning of the body
}

// deliver posts one message. down means that the target seems to be down, and has not refused this message. The error
// is the error that the handler returns.
func (p *poster) deliver(ctx context.Context, m *bridge.Message) (down bool, err error) {
	a, err := p.post(ctx, m)
	if err != nil {
		return true, fmt.Errorf("POST to %s: %w", p.host, err)
	}
	if a.status >= 200 && a.status < 300 {
		return false, nil
	}
	down = slices.Contains(downStatus, a.status)
	err = fmt.Errorf("POST to %s: %s", p.host, a)
	switch {
	case a.status == http.StatusGone || slices.Contains(p.target.DeadStatus, a.status):
		return false, bridge.DeadLetter(err) // the target refuses the message for good
	case a.after > 0:
		return down, bridge.RetryAfter(a.after, err)
	}
	return down, err
}

// String describes the answer, for dead letters and histories.
func (a response) String() string {
	text := "answered " + strings.TrimSpace(strconv.Itoa(a.status)+" "+http.StatusText(a.status))
	if a.status >= 300 && a.status < 400 { // the body may repeat a URL that is secret
		text += ", and redirects are not followed"
		if u, err := url.Parse(a.location); err == nil && u.Host != "" {
			text += fmt.Sprintf(" (to %s)", clip(u.Scheme+"://"+u.Host, maxShownHost))
		}
		return text
	}
	if a.body != "" {
		text += ": " + a.body
	}
	return text
}

// post sends one request and reads the beginning of the answer. The target's timeout bounds the time until the status
// has arrived. Then reading the body may take bodyTime more. The body does not affect the outcome.
func (p *poster) post(ctx context.Context, m *bridge.Message) (response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(p.target.Timeout, func() { cancel(fmt.Errorf("%w: %s", errTimeout, p.target.Timeout)) })
	defer limit.Stop()
	r, err := p.request(ctx, m)
	if err != nil {
		return response{}, err
	}
	reply, err := p.transport.RoundTrip(r) // not through an http.Client, which handles redirects
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			return response{}, cause
		}
		return response{}, err
	}
	defer reply.Body.Close()
	limit.Reset(min(bodyTime, p.target.Timeout))
	a := response{status: reply.StatusCode, location: reply.Header.Get("Location"), after: retryAfter(reply)}
	if a.status == http.StatusSwitchingProtocols { // no body follows, and cancelling ctx would not end the read
		return a, nil
	}
	var shown bytes.Buffer
	_, _ = io.Copy(&shown, io.LimitReader(reply.Body, maxShownBody+utf8.UTFMax))
	_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, maxReadBody))
	a.body = clip(shown.String(), maxShownBody)
	return a, nil
}

func (p *poster) request(ctx context.Context, m *bridge.Message) (*http.Request, error) {
	body, contentType, encoded := bodyOf(m.Payload)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.target.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used") // the library's own error would show the URL
	}
	now, id := time.Now(), DeliveryID(m.Queue, m.ID)
	r.Header.Set("User-Agent", userAgent)
	for name, value := range p.target.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set(HeaderID, id)
	r.Header.Set(HeaderTimestamp, seconds(now))
	r.Header.Set(HeaderSignature, sign(p.secrets, id, now, body))
	r.Header.Set(HeaderQueue, m.Queue)
	r.Header.Set(HeaderGroup, percentEncode(m.Group))
	r.Header.Set(HeaderAttempt, strconv.Itoa(m.Attempt))
	if !m.Due.IsZero() {
		r.Header.Set(HeaderDue, m.Due.UTC().Format(dueLayout))
	}
	if encoded {
		r.Header.Set(HeaderEncoding, "base64")
	}
	return r, nil
}

// retryAfter returns the delay that a 429 or 503 answer asks for. It returns 0 if the answer asks for no delay, or if
// Retry-After is unreadable. A date is compared with the answer's Date header, if the answer has one, because the
// target's clock may differ from ours.
func retryAfter(reply *http.Response) time.Duration {
	text := strings.TrimSpace(reply.Header.Get("Retry-After"))
	mayAsk := reply.StatusCode == http.StatusTooManyRequests || reply.StatusCode == http.StatusServiceUnavailable
	if !mayAsk || text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n > int64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(reply.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(0, at.Sub(now)), MaxRetryAfter)
}

// clip returns at most limit bytes from the beginning of a text, as UTF-8 without control characters.
func clip(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = text[:limit]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
		text += "…"
	}
	return strings.TrimSpace(lua.CutText(text))
}
