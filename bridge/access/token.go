package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/lua"
)

// Limits of the number of tokens, and of a token's fields.
const (
	MaxTokens           = 10_000 // of a prefix
	MaxNameBytes        = 128
	MaxDescriptionBytes = 1 << 10
	MaxPatterns         = 32 // of queues
	maxTokenBytes       = 16 << 10
)

// Verb is a class of operations that a token may allow.
type Verb string

// The verbs.
const (
	Publish Verb = "publish" // schedule, cancel and reschedule messages, and read one by its ID
	Consume Verb = "consume" // receive messages, and settle them
	Operate Verb = "operate" // read and change queues, dead letters and settings
)

// Verbs returns all verbs.
func Verbs() []Verb { return []Verb{Publish, Consume, Operate} }

// Token is the right that a secret gives: its verbs, on the queues that match its patterns.
type Token struct {
	Name        string   `json:"name"` // by which logs and operators call it; no other token has it
	Description string   `json:"description,omitempty"`
	Verbs       []Verb   `json:"verbs"`
	Queues      []string `json:"queues"` // names of queues; * stands for any characters, also none
	// The time from which on it is refused; zero = never. By the clock of the gateway.
	Expires time.Time `json:"expires,omitzero"`
	Created time.Time `json:"created,omitzero"`
	// How much may be asked for, of all gateways together: 500/s, 30/m, 1/h; empty = no limit. Burst is how much at once, 0 = a
	// tenth of a second's, at least one.
	Rate  lua.Rate `json:"rate,omitempty"`
	Burst int      `json:"burst,omitempty"`
	// Limits for publishing and consuming apart, in place of a rate. Nil = none.
	Limits *Limits `json:"limits,omitempty"`
}

// Limits are the token buckets of a token for consuming and for publishing: how much passes in an interval. A bucket
// refills evenly, and a full one may be emptied at once.
type Limits struct {
	Consume  int `json:"read"`     // requests; 0 = no limit
	Publish  int `json:"write"`    // messages; 0 = no limit
	Interval int `json:"interval"` // seconds
}

// MaxInterval is the longest Interval of Limits, in seconds: a day.
const MaxInterval = 24 * 60 * 60

// Check refuses limits that are out of bounds.
func (l *Limits) Check() error {
	err := errors.Join(lua.Between("read", l.Consume, 0, lua.MaxBurst), lua.Between("write", l.Publish, 0, lua.MaxBurst),
		lua.Between("interval", l.Interval, 1, MaxInterval))
	if err == nil && l.Consume == 0 && l.Publish == 0 {
		err = lua.Invalid("read, write", "0", "must not both be 0, which is no limit")
	}
	return err
}

var (
	tokenName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/-]*$`)
	queuePattern = regexp.MustCompile(`^[A-Za-z0-9._:*-]+$`)
)

// CheckName returns an error unless a token's name is 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -, the first of
// them a letter or a digit.
func CheckName(name string) error {
	if len(name) > MaxNameBytes || !tokenName.MatchString(name) {
		return lua.Invalid("token", name, "must be 1 to %d characters of A-Z a-z 0-9 . _ : @ / -, the first a letter or a digit",
			MaxNameBytes)
	}
	return nil
}

// Check returns every fault of the token, each with field, value and limit.
func (t *Token) Check() error {
	errs := []error{CheckName(t.Name), lua.CheckRate(t.Rate)}
	wrong := func(is bool, field, value, rule string, args ...any) {
		if is {
			errs = append(errs, lua.Invalid(field, value, rule, args...))
		}
	}
	wrong(len(t.Description) > MaxDescriptionBytes, "description", t.Description, "must be at most %d bytes", MaxDescriptionBytes)
	wrong(!utf8.ValidString(t.Description), "description", t.Description, "must be UTF-8")
	wrong(strings.ContainsFunc(t.Description, func(r rune) bool { return r < ' ' || r == 0x7f }), "description", t.Description,
		"must not hold control characters")
	wrong(len(t.Verbs) == 0, "verb", "", "must be one or more of %s", verbList())
	many := len(t.Verbs) > len(Verbs())
	wrong(many, "verb", fmt.Sprint(len(t.Verbs), " of them"), "must be at most %d", len(Verbs()))
	for _, verb := range t.Verbs {
		wrong(!many && !slices.Contains(Verbs(), verb), "verb", string(verb), "must be one of %s", verbList())
	}
	wrong(len(t.Queues) == 0, "queue", "", "must be one or more names or patterns: 'orders', 'orders.*', '*'")
	many = len(t.Queues) > MaxPatterns
	wrong(many, "queue", fmt.Sprint(len(t.Queues), " of them"), "must be at most %d", MaxPatterns)
	for _, pattern := range t.Queues {
		wrong(!many && (len(pattern) > lua.MaxQueueBytes || !queuePattern.MatchString(pattern)), "queue", pattern,
			"must be 1 to %d characters of A-Z a-z 0-9 . _ : - and *, which stands for any", lua.MaxQueueBytes)
	}
	if !t.Expires.IsZero() {
		errs = append(errs, lua.CheckTime("expires", t.Expires))
	}
	wrong(t.Burst < 0 || t.Burst > lua.MaxBurst, "burst", strconv.Itoa(t.Burst), "must be between 0 and %d", lua.MaxBurst)
	wrong(t.Burst != 0 && t.Rate == "", "burst", strconv.Itoa(t.Burst), "must stand beside a rate")
	if t.Limits != nil {
		errs = append(errs, t.Limits.Check())
		wrong(t.Rate != "", "limits", fmt.Sprintf("%+v", *t.Limits), "must not stand beside a rate")
	}
	return errors.Join(errs...)
}

func verbList() string {
	return fmt.Sprintf("%s, %s, %s", Publish, Consume, Operate)
}

// expired reports whether the token has expired at a time.
func (t *Token) expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// parse reads a token. It refuses unknown fields, because a field of a newer version may restrict the token.
func parse(text []byte, into any) error {
	if len(text) > maxTokenBytes {
		return fmt.Errorf("%d bytes are more than %d", len(text), maxTokenBytes)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something stands behind the token")
	}
	return nil
}

func parseToken(text []byte) (*Token, error) {
	t := &Token{}
	if err := parse(text, t); err != nil {
		return nil, err
	}
	return t, t.Check()
}

// matches reports whether a name matches a pattern. A * matches any characters, or none.
func matches(pattern, name string) bool {
	first, rest, any := strings.Cut(pattern, "*")
	name, ok := strings.CutPrefix(name, first)
	if !ok || !any {
		return ok && name == ""
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] { // the first match leaves the most for the parts that follow
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, last)
}

// Grant is the right of an authenticated caller.
type Grant struct {
	token   Token
	digest  digest
	buckets map[Verb]*bucket // this Store's own bucket for a verb; none = the verb is not limited
}

func newGrant(d digest, t *Token) *Grant {
	g := &Grant{token: *t, digest: d, buckets: map[Verb]*bucket{}}
	switch l := t.Limits; {
	case t.Rate != "":
		all := newBucket(t.Rate, t.Burst)
		for _, verb := range Verbs() {
			g.buckets[verb] = all
		}
	case l != nil:
		for verb, most := range map[Verb]int{Consume: l.Consume, Publish: l.Publish} {
			if most > 0 {
				each := time.Duration(l.Interval) * time.Second / time.Duration(most)
				g.buckets[verb] = &bucket{part: ":" + string(verb), interval: each, size: most}
			}
		}
	}
	return g
}

// Name returns the token's name.
func (g *Grant) Name() string { return g.token.Name }

// Part returns how many messages of a large request to charge to the rate limit at a time, so that no part waits
// long. It is the number that the rate allows in a second, but at least 1, and at most the burst and most.
func (g *Grant) Part(verb Verb, most int) int {
	if b := g.buckets[verb]; b != nil {
		most = min(most, b.size, max(1, int(time.Second/max(b.interval, 1))))
	}
	return most
}

// May reports whether the token allows a verb on a queue, given by its full name. The name "" stands for operations
// on no queue or on all; they need the pattern *. May returns false for an invalid queue name.
func (g *Grant) May(verb Verb, queue string) bool {
	if !slices.Contains(g.token.Verbs, verb) {
		return false
	}
	if queue == "" {
		return slices.Contains(g.token.Queues, "*")
	}
	return lua.CheckQueue(queue) == nil &&
		slices.ContainsFunc(g.token.Queues, func(pattern string) bool { return matches(pattern, queue) })
}
