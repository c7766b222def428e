package push

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Defaults of a Target.
const (
	DefaultTimeout     = 10 * time.Second // of Target.Timeout
	DefaultConcurrency = 8                // of Target.Concurrency
	DefaultFailures    = 10               // of Target.Failures
	DefaultInterval    = 5 * time.Second  // of Target.Interval
	DefaultMaxInterval = 5 * time.Minute  // of Target.MaxInterval
)

// Bounds of a Target.
const (
	MaxTimeout     = time.Minute // of a request
	MaxConcurrency = 1000        // requests in flight to a target, from each process
	MaxURLBytes    = 2048        // of a URL
	MaxList        = 20          // headers, status codes, networks
	MaxValueBytes  = 1024        // of a header
	MaxTargets     = 100         // of a queue

	minTimeout, minInterval = 10 * time.Millisecond, 10 * time.Millisecond
	maxInterval             = 24 * time.Hour
	maxTextBytes            = 64 << 10 // of a stored target
)

// Target is the URL that the messages of a queue's group are posted to, with its settings. A zero field has its
// default.
type Target struct {
	Queue string
	Group string

	// URL is https://…, without user, password or fragment; http://… only with AllowHTTP.
	URL       string
	AllowHTTP bool

	// Keys are one or two signing keys, "whsec_" and the base64 of 24 to 64 bytes: with two a request has two
	// signatures.
	Keys []string

	// Networks are the networks outside the public internet that may be dialled, like 10.1.0.0/16; none by default.
	Networks []netip.Prefix

	Headers    map[string]string // to add to each request
	DeadStatus []int             // status codes that dead-letter a message at once, besides 410

	Timeout     time.Duration // of a request, its answer included; default 10s, at most 1m
	Concurrency int           // requests in flight from each process; default 8, at most 1,000

	// Failures is the number of consecutive failures after which the circuit opens. A failure counts only if it means
	// that the target is down. Default 10, -1 = the circuit never opens.
	Failures int
	// Interval is the time between the opening of the circuit and the first probe; default 5s. The time doubles from
	// probe to probe, up to MaxInterval; default 5m.
	Interval, MaxInterval time.Duration

	// Rate limits the requests of all processes together: 50/s, 30/m, 1/h; empty = no limit. Burst is the number of
	// requests that may come at once; 0 = a tenth of the requests that Rate allows in a second, at least one.
	Rate  lua.Rate
	Burst int
}

// stored is the JSON form of a target in Redis.
type stored struct {
	URL         string            `json:"url"`
	AllowHTTP   bool              `json:"allow_http,omitempty"`
	Keys        []string          `json:"keys"`
	Networks    []netip.Prefix    `json:"networks,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	DeadStatus  []int             `json:"dead_status,omitempty"`
	Timeout     view.Millis       `json:"timeout_ms,omitempty"`
	Concurrency int               `json:"concurrency,omitempty"`
	Failures    int               `json:"failures,omitempty"`
	Interval    view.Millis       `json:"interval_ms,omitempty"`
	MaxInterval view.Millis       `json:"max_interval_ms,omitempty"`
	Rate        lua.Rate          `json:"rate,omitempty"`
	Burst       int               `json:"burst,omitempty"`
}

// WithDefaults returns the target with defaults in place of zero fields.
func (t Target) WithDefaults() Target {
	t.Timeout = cmp.Or(t.Timeout, DefaultTimeout)
	t.Concurrency = cmp.Or(t.Concurrency, DefaultConcurrency)
	t.Failures = cmp.Or(t.Failures, DefaultFailures)
	t.Interval = cmp.Or(t.Interval, DefaultInterval)
	t.MaxInterval = cmp.Or(t.MaxInterval, max(t.Interval, DefaultMaxInterval))
	return t
}

// text returns the target as JSON, as it is stored in Redis.
func (t Target) text() string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(stored{t.URL, t.AllowHTTP, t.Keys, t.Networks, t.Headers, t.DeadStatus, view.Millis(t.Timeout),
		t.Concurrency, t.Failures, view.Millis(t.Interval), view.Millis(t.MaxInterval), t.Rate.Normal(), t.Burst}); err != nil {
		panic(err) // texts and numbers always encode
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// parseTarget reads a stored target and checks it, because another program may have written it. It refuses unknown
// fields, so that a setting of a newer release is not ignored silently. No error shows a key.
func parseTarget(queue, group, text string) (Target, error) {
	var s stored
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	switch {
	case len(text) > maxTextBytes:
		return Target{}, &lua.InvalidError{Field: "target", Value: fmt.Sprintf("of %d bytes", len(text)),
			Rule: fmt.Sprintf("must be at most %d bytes", maxTextBytes)}
	case dec.Decode(&s) != nil || dec.More():
		return Target{}, &lua.InvalidError{Field: "target", Value: fmt.Sprintf("of %d bytes", len(text)),
			Rule: "must be a JSON object of the fields that docs/guides/callbacks.md names"}
	}
	t := Target{queue, group, s.URL, s.AllowHTTP, s.Keys, s.Networks, s.Headers, s.DeadStatus, time.Duration(s.Timeout),
		s.Concurrency, s.Failures, time.Duration(s.Interval), time.Duration(s.MaxInterval), s.Rate, s.Burst}.WithDefaults()
	return t, t.Check()
}

// Check returns ErrInvalid if no request, or no safe one, can be made for the target. The error names every fault.
func (t Target) Check() error {
	t = t.WithDefaults()
	errs := []error{lua.CheckQueue(t.Queue), lua.CheckGroup(t.Group), t.checkURL(), t.checkKeys(), checkHeaders(t.Headers),
		t.checkNumbers()}
	if len(t.Networks) > MaxList {
		errs = append(errs, lua.Invalid("networks", fmt.Sprint(len(t.Networks)), "must be at most %d", MaxList))
	}
	for _, network := range t.Networks {
		if !network.IsValid() || network != network.Masked() {
			errs = append(errs, lua.Invalid("network", network.String(),
				"must be like 10.1.0.0/16, with zeros after the prefix"))
		}
	}
	return errors.Join(errs...)
}

// sharesHealth reports whether t is up exactly when old is up. This is so if the settings that decide whether the
// target answers are the same: URL, timeout, networks and headers.
func (t Target) sharesHealth(old Target) bool {
	return t.URL == old.URL && t.Timeout == old.Timeout && slices.Equal(t.Networks, old.Networks) &&
		maps.Equal(t.Headers, old.Headers)
}

func (t Target) checkURL() error {
	invalid := func(rule string, args ...any) error { // shows only the host, because the rest of the URL may be secret
		return &lua.InvalidError{Field: "url", Value: showHost(t.URL), Rule: fmt.Sprintf(rule, args...)}
	}
	u, err := url.Parse(t.URL)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return invalid("must be like https://example.com/hook")
	case len(t.URL) > MaxURLBytes:
		return invalid("must be at most %d bytes", MaxURLBytes)
	case u.Scheme == "http" && !t.AllowHTTP:
		return invalid("must be https, unless http is allowed for this target")
	case u.Scheme != "https" && u.Scheme != "http":
		return invalid("must be https")
	case u.User != nil:
		return invalid("must not have a user or a password: add a header")
	case strings.Contains(t.URL, "#"):
		return invalid("must not have a fragment")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && !t.mayDial(addr) {
		return invalid("is not in the public internet: to reach it, allow its network")
	}
	return nil
}

func (t Target) checkKeys() error {
	if len(t.Keys) < 1 || len(t.Keys) > 2 {
		return lua.Invalid("keys", fmt.Sprint(len(t.Keys)), "must be one or two")
	}
	for _, key := range t.Keys {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	return nil
}

func (t Target) checkNumbers() error {
	var errs []error
	checkDuration := func(field string, d, least, most time.Duration) {
		if d < least || d > most {
			errs = append(errs, lua.Invalid(field, d.String(), "must be between %s and %s", least, most))
		}
	}
	checkDuration("timeout", t.Timeout, minTimeout, MaxTimeout)
	checkDuration("interval", t.Interval, minInterval, maxInterval)
	checkDuration("max_interval", t.MaxInterval, t.Interval, maxInterval)
	if t.Concurrency < 1 || t.Concurrency > MaxConcurrency {
		errs = append(errs, lua.Invalid("concurrency", fmt.Sprint(t.Concurrency), "must be between 1 and %d", MaxConcurrency))
	}
	if t.Failures < -1 || t.Failures > 1_000_000 {
		errs = append(errs, lua.Invalid("failures", fmt.Sprint(t.Failures), "must be between 1 and 1000000, or -1 for never"))
	}
	errs = append(errs, lua.CheckRate(t.Rate))
	if t.Burst < 0 || t.Burst > lua.MaxBurst || t.Burst > 0 && t.Rate == "" {
		errs = append(errs, lua.Invalid("burst", fmt.Sprint(t.Burst), "must be between 0 and %d, and stand beside a rate",
			lua.MaxBurst))
	}
	if len(t.DeadStatus) > MaxList {
		errs = append(errs, lua.Invalid("dead_status", fmt.Sprint(len(t.DeadStatus)), "must be at most %d", MaxList))
	}
	for _, code := range t.DeadStatus {
		if code < 300 || code > 599 || code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
			errs = append(errs, lua.Invalid("dead_status", fmt.Sprint(code),
				"must be between 300 and 599, and neither 429 nor 503, which ask for another attempt"))
		}
	}
	return errors.Join(errs...)
}

var (
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")
	headerValue = regexp.MustCompile(`^[!-~]([ -~]*[!-~])?$`)

	// ownHeaders are the headers that the request sets itself, and the hop-by-hop headers.
	ownHeaders = []string{"Host", "Content-Length", "Content-Type", "Content-Encoding", "Accept-Encoding", "Expect", "Connection",
		"Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding",
		"Upgrade"}
)

// checkHeaders refuses headers that would change the request itself, and invalid names and values.
func checkHeaders(headers map[string]string) error {
	if len(headers) > MaxList {
		return lua.Invalid("headers", fmt.Sprint(len(headers)), "must be at most %d", MaxList)
	}
	seen := map[string]bool{}
	for name, value := range headers {
		canonical := http.CanonicalHeaderKey(name)
		lower := strings.ToLower(name)
		switch {
		case !headerName.MatchString(name):
			return lua.Invalid("header", name, "must be a name of 1 to 64 letters, digits and -")
		case slices.Contains(ownHeaders, canonical) || strings.HasPrefix(lower, "webhook-") ||
			strings.HasPrefix(lower, "duestream-"):
			return lua.Invalid("header", name, "must not be set, because the request sets it itself")
		case seen[canonical]:
			return lua.Invalid("header", name, "must be given only once")
		case len(value) > MaxValueBytes || !headerValue.MatchString(value):
			return &lua.InvalidError{Field: "header " + name, Value: fmt.Sprintf("of %d bytes", len(value)),
				Rule: fmt.Sprintf("must be 1 to %d visible ASCII characters, with spaces only between them", MaxValueBytes)}
		}
		seen[canonical] = true
	}
	return nil
}

// showURL returns a URL without the parts that may be secret: user, password and query.
func showURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" {
		return "…"
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.String()
}

// showHost returns the scheme and the host of a URL, and "…" for what follows.
func showHost(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "…"
	}
	host := u.Scheme + "://" + u.Host
	if text == host || text == host+"/" {
		return text
	}
	return host + "/…"
}
