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

// MaxRetryAfter is how long a target may have a message wait with Retry-After; more counts as this.
const MaxRetryAfter = 24 * time.Hour

const (
	keptBytes  = 512      // of an answer's body, in errors
	readBytes  = 64 << 10 // of an answer's body at most, so that the connection can be used again
	bodyTime   = 2 * time.Second
	userAgent  = "duestream"
	dueLayout  = "2006-01-02T15:04:05.000Z07:00"
	shownBytes = 120 // of where a redirect leads
)

// errTimeout is the cause of a request that took longer than its target's timeout.
var errTimeout = errors.New("no answer in time")

// downStatus are the answers that are about the target and not about the message: nobody behind it can serve anything now.
// Whoever answers anything else, also 500, has looked at the message and failed at it: that is an attempt of the message, and
// says that the target works. 429 is about the pace, and waits by its Retry-After.
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

// answer is what a target said to a request.
type answer struct {
	status   int
	location string        // of a redirect
	after    time.Duration // of Retry-After; 0 = it asked for nothing
	body     string        // its beginning
}

// deliver posts one message. down says whether the target seems to be down, rather than to refuse this message. The error is what
// a handler returns.
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
		return false, bridge.DeadLetter(err) // it has said what it means
	case a.after > 0:
		return down, bridge.RetryAfter(a.after, err)
	}
	return down, err
}

// String says what a target answered, for dead letters and stories.
func (a answer) String() string {
	text := "answered " + strings.TrimSpace(strconv.Itoa(a.status)+" "+http.StatusText(a.status))
	if a.status >= 300 && a.status < 400 { // what they say may repeat a URL that is secret
		text += ", and redirects are not followed"
		if u, err := url.Parse(a.location); err == nil && u.Host != "" {
			text += fmt.Sprintf(" (to %s)", clip(u.Scheme+"://"+u.Host, shownBytes))
		}
		return text
	}
	if a.body != "" {
		text += ": " + a.body
	}
	return text
}

// post sends one request and reads the beginning of its answer. Its time is bounded by the target's timeout, and once the status
// is there by two seconds more for the body, which decides nothing.
func (p *poster) post(ctx context.Context, m *bridge.Message) (answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(p.target.Timeout, func() { cancel(fmt.Errorf("%w: %s", errTimeout, p.target.Timeout)) })
	defer limit.Stop()
	r, err := p.request(ctx, m)
	if err != nil {
		return answer{}, err
	}
	reply, err := p.transport.RoundTrip(r) // without a client, which would look at where a redirect leads
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			return answer{}, cause
		}
		return answer{}, err
	}
	defer reply.Body.Close()
	limit.Reset(min(bodyTime, p.target.Timeout))
	a := answer{status: reply.StatusCode, location: reply.Header.Get("Location"), after: retryAfter(reply)}
	if a.status == http.StatusSwitchingProtocols { // what follows is no body, and no context would end its reading
		return a, nil
	}
	var kept bytes.Buffer
	_, _ = io.Copy(&kept, io.LimitReader(reply.Body, keptBytes+utf8.UTFMax))
	_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, readBytes))
	a.body = clip(kept.String(), keptBytes)
	return a, nil
}

func (p *poster) request(ctx context.Context, m *bridge.Message) (*http.Request, error) {
	body, contentType, encoded := bodyOf(m.Payload)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.target.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used") // the error of the library shows it
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
	r.Header.Set(HeaderGroup, plain(m.Group))
	r.Header.Set(HeaderAttempt, strconv.Itoa(m.Attempt))
	if !m.Due.IsZero() {
		r.Header.Set(HeaderDue, m.Due.UTC().Format(dueLayout))
	}
	if encoded {
		r.Header.Set(HeaderEncoding, "base64")
	}
	return r, nil
}

// retryAfter returns how long an answer 429 or 503 asks to wait; 0 when it says nothing that can be used. A date is compared with
// the target's own clock, where the answer tells it.
func retryAfter(reply *http.Response) time.Duration {
	text := strings.TrimSpace(reply.Header.Get("Retry-After"))
	if reply.StatusCode != http.StatusTooManyRequests && reply.StatusCode != http.StatusServiceUnavailable || text == "" {
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

// clip returns the beginning of a text, as UTF-8 without control characters.
func clip(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		text = text[:most]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
		text += "…"
	}
	return strings.TrimSpace(lua.CutText(text))
}
