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
	MaxTokens           = 10_000 // in a prefix
	MaxNameBytes        = 128
	MaxDescriptionBytes = 1 << 10
	MaxPatterns         = 32 // queue patterns of a token
	maxTokenBytes       = 16 << 10
)

// Verb is a class of operations that a token may allow.
type Verb string

// The verbs.
const (
	Publish Verb = "publish" // schedule, cancel and reschedule messages, and read one by its ID
	Consume Verb = "consume" // receive messages, and settle them
	Inspect Verb = "inspect" // read messages, queues, dead letters and settings
	Operate Verb = "operate" // read and change queues, dead letters and settings; includes Inspect
)

// Verbs returns all verbs.
func Verbs() []Verb { return []Verb{Publish, Consume, Inspect, Operate} }

// Token is the right that a secret gives: its verbs, on the queues that match its patterns.
type Token struct {
	Name        string   `json:"name"` // unique; logs and operators refer to the token by its name
	Description string   `json:"description,omitempty"`
	Verbs       []Verb   `json:"verbs"`
	Queues      []string `json:"queues"` // names of queues; * stands for any characters, also none
	// Expires is when the token stops working, by the clock of the gateway; zero = never.
	Expires time.Time `json:"expires,omitzero"`
	Created time.Time `json:"created,omitzero"`
	// Rate limits the messages and requests to all gateways together: 500/s, 30/m, 1/h; empty = no limit. Burst is how
	// many may come at once; 0 = a tenth of what Rate allows in a second, at least one.
	Rate  lua.Rate `json:"rate,omitempty"`
	Burst int      `json:"burst,omitempty"`
	// Limits limits publishing and consuming separately, in place of Rate; nil = no such limits.
	Limits *Limits `json:"limits,omitempty"`
}

// Limits are the sizes of a token's two token buckets, one for consuming and one for publishing. An empty bucket is
// full again after Interval. It refills evenly, and a full bucket may be emptied at once.
type Limits struct {
	Consume  int `json:"read"`     // requests; 0 = no limit
	Publish  int `json:"write"`    // messages; 0 = no limit
	Interval int `json:"interval"` // seconds
}

// MaxInterval is the longest Interval of Limits, in seconds: a day.
const MaxInterval = 24 * 60 * 60

// String returns the limits with the field names of a stored token: "read 2, write 3 in 4 s".
func (l *Limits) String() string {
	return fmt.Sprintf("read %d, write %d in %d s", l.Consume, l.Publish, l.Interval)
}

// Check refuses limits that are out of bounds.
func (l *Limits) Check() error {
	err := errors.Join(lua.Between("read", l.Consume, 0, lua.MaxBurst), lua.Between("write", l.Publish, 0, lua.MaxBurst),
		lua.Between("interval", l.Interval, 1, MaxInterval))
	if err == nil && l.Consume == 0 && l.Publish == 0 {
		err = lua.Invalid("read, write", "0", "must not both be 0, which means no limit")
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
		return lua.Invalid("token", name,
			"must be 1 to %d characters of A-Z a-z 0-9 . _ : @ / -, the first a letter or a digit", MaxNameBytes)
	}
	return nil
}

// Check returns every fault of the token, each with field, value and limit.
func (t *Token) Check() error {
	errs := []error{CheckName(t.Name), lua.CheckRate(t.Rate)}
	refuseIf := func(isWrong bool, field, value, rule string, args ...any) {
		if isWrong {
			errs = append(errs, lua.Invalid(field, value, rule, args...))
		}
	}
	refuseIf(len(t.Description) > MaxDescriptionBytes, "description", t.Description, "must be at most %d bytes",
		MaxDescriptionBytes)
	refuseIf(!utf8.ValidString(t.Description), "description", t.Description, "must be UTF-8")
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	refuseIf(strings.ContainsFunc(t.Description, isControl), "description", t.Description,
		"must not hold control characters")
	refuseIf(len(t.Verbs) == 0, "verb", "", "must be one or more of %s", verbList())
	tooMany := len(t.Verbs) > len(Verbs())
	refuseIf(tooMany, "verb", fmt.Sprint(len(t.Verbs), " of them"), "must be at most %d", len(Verbs()))
	for _, verb := range t.Verbs {
		refuseIf(!tooMany && !slices.Contains(Verbs(), verb), "verb", string(verb), "must be one of %s", verbList())
	}
	refuseIf(len(t.Queues) == 0, "queue", "", "must be one or more names or patterns: 'orders', 'orders.*', '*'")
	tooMany = len(t.Queues) > MaxPatterns
	refuseIf(tooMany, "queue", fmt.Sprint(len(t.Queues), " of them"), "must be at most %d", MaxPatterns)
	for _, pattern := range t.Queues {
		isPattern := len(pattern) <= lua.MaxQueueBytes && queuePattern.MatchString(pattern)
		refuseIf(!tooMany && !isPattern, "queue", pattern,
			"must be 1 to %d characters of A-Z a-z 0-9 . _ : - and *, which stands for any", lua.MaxQueueBytes)
	}
	if !t.Expires.IsZero() {
		errs = append(errs, lua.CheckTime("expires", t.Expires))
	}
	refuseIf(t.Burst < 0 || t.Burst > lua.MaxBurst, "burst", strconv.Itoa(t.Burst), "must be between 0 and %d",
		lua.MaxBurst)
	refuseIf(t.Burst != 0 && t.Rate == "", "burst", strconv.Itoa(t.Burst), "must stand beside a rate")
	if t.Limits != nil {
		errs = append(errs, t.Limits.Check())
		refuseIf(t.Rate != "", "limits", t.Limits.String(), "must not stand beside a rate")
	}
	return errors.Join(errs...)
}

func verbList() string {
	return fmt.Sprintf("%s, %s, %s, %s", Publish, Consume, Inspect, Operate)
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
		return errors.New("there is text after the token")
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
	first, rest, hasStar := strings.Cut(pattern, "*")
	name, begins := strings.CutPrefix(name, first)
	if !hasStar {
		return begins && name == ""
	}
	if !begins {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] { // the first match leaves the longest name for the parts that follow
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
	buckets map[Verb]*bucket // this Store's own bucket for each limited verb
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
				g.buckets[verb] = &bucket{keySuffix: ":" + string(verb), interval: each, size: most}
			}
		}
	}
	return g
}

// Name returns the token's name.
func (g *Grant) Name() string { return g.token.Name }

// Expires returns when the token stops working, or the zero time if it never does.
func (g *Grant) Expires() time.Time { return g.token.Expires }

// Rate returns the token's rate; "" if it has none.
func (g *Grant) Rate() lua.Rate { return g.token.Rate }

// Interval returns how long it takes until one unit of the token's limit for a verb comes back. It is the time between
// two messages or requests on average. 0 = the verb has no limit.
func (g *Grant) Interval(verb Verb) time.Duration {
	if b := g.buckets[verb]; b != nil {
		return b.interval
	}
	return 0
}

// Queues returns the patterns of the queues that the token is for.
func (g *Grant) Queues() []string { return slices.Clone(g.token.Queues) }

// Part returns how many messages of a large request to charge to the rate limit at a time, so that no part waits
// long: as many as the rate allows in a second, but at least 1, and at most the burst and most.
func (g *Grant) Part(verb Verb, most int) int {
	if b := g.buckets[verb]; b != nil {
		most = min(most, b.size, max(1, int(time.Second/max(b.interval, 1))))
	}
	return most
}

// MayAnywhere reports whether the token allows a verb on some queue, which may not exist yet.
func (g *Grant) MayAnywhere(verb Verb) bool {
	return slices.Contains(g.token.Verbs, verb) || verb == Inspect && slices.Contains(g.token.Verbs, Operate)
}

// May reports whether the token allows a verb on a queue, given by its full name. The name "" stands for an operation
// on no queue or on all queues, which needs the pattern *. A token with Operate may also Inspect. May returns false for
// an invalid queue name.
func (g *Grant) May(verb Verb, queue string) bool {
	if !g.MayAnywhere(verb) {
		return false
	}
	if queue == "" {
		return slices.Contains(g.token.Queues, "*")
	}
	return lua.CheckQueue(queue) == nil &&
		slices.ContainsFunc(g.token.Queues, func(pattern string) bool { return matches(pattern, queue) })
}
