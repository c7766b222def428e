package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// ErrNotFound: Redis does not hold the letter or message.
var ErrNotFound = errors.New("not found")

// Letter is a dead letter: a message in the state of its last failure in a group. It exists until it is redriven or
// purged.
type Letter struct {
	// its ID in the stream of dead letters, prefixed with its partition unless that is 0: <partition>/<ID>
	Letter      string            `json:"letter"`
	ID          string            `json:"id"` // of the message
	Group       string            `json:"group,omitempty"`
	Reason      string            `json:"reason"`
	Error       string            `json:"error,omitempty"`
	Attempt     int               `json:"attempt"`
	Dead        time.Time         `json:"dead,omitzero"`
	Due         time.Time         `json:"due,omitzero"`
	Entry       string            `json:"entry,omitempty"` // the stream entry that failed
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Headers     map[string]string `json:"headers,omitempty"`
	Payload     view.Payload      `json:"payload"` // nil if the body was lost or could not be kept
	Extra       map[string]string `json:"extra,omitempty"`
}

func letterOf(partition int, found rueidis.XRangeSlice) Letter {
	e := lua.ParseEntry(found.ID, found.FieldValues)
	return Letter{
		Letter: LetterName(partition, e.EntryID), ID: e.ID, Group: e.Group, Reason: e.Reason, Error: e.Error, Attempt: e.Attempt,
		Dead: e.Dead, Due: e.Due,
		Entry: e.Entry, MaxAttempts: e.MaxAttempts, Expires: e.Expires, Headers: e.Headers, Payload: e.Payload, Extra: e.Extra,
	}
}

// Filter selects dead letters. Zero fields do not restrict.
type Filter struct {
	Group     string        // exactly this one
	Reason    string        // exactly this one: a lua.Reason constant
	ErrorText string        // a part of the error text
	ID        string        // of the message; * stands for any text, ? for one character
	OlderThan time.Duration // dead for at least this long, by the server's clock
	NewerThan time.Duration // dead for at most this long
	Limit     int           // greatest number of letters
	Newest    bool          // newest first
}

func (f Filter) validate() error {
	var errs []error
	for _, one := range []struct {
		name, value string
		negative    bool
	}{{"older than", f.OlderThan.String(), f.OlderThan < 0}, {"newer than", f.NewerThan.String(), f.NewerThan < 0},
		{"limit", strconv.Itoa(f.Limit), f.Limit < 0}} {
		if one.negative {
			errs = append(errs, lua.Invalid(one.name, one.value, "must not be negative"))
		}
	}
	return errors.Join(errs...)
}

// all reports whether every letter passes.
func (f Filter) all() bool {
	f.Newest = false
	return f == Filter{}
}

// matches compares the fields of a letter. Its age is given by the range that is walked.
func (f Filter) matches(l Letter) bool {
	return (f.Group == "" || l.Group == f.Group) && (f.Reason == "" || l.Reason == f.Reason) &&
		strings.Contains(l.Error, f.ErrorText) && (f.ID == "" || matchPattern(f.ID, l.ID))
}

// matchPattern reports whether a text matches a pattern of * (any text) and ? (one character). Both may be any bytes;
// an invalid UTF-8 byte counts as a character. O(pattern × text): it backtracks to the last * only.
func matchPattern(pattern, text string) bool {
	star, rest := -1, 0 // position in the pattern after the last *, and in the text where that is tried
	p, t := 0, 0
	for t < len(text) {
		_, size := utf8.DecodeRuneInString(text[t:])
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, rest = p+1, t
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			t += size
		case strings.HasPrefix(pattern[p:], text[t:t+size]):
			p += size
			t += size
		case star >= 0:
			_, size = utf8.DecodeRuneInString(text[rest:])
			rest += size
			p, t = star, rest
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// DeadLetters reads, redrives and purges the dead letters of the queues of a prefix, in bounded steps. It is safe for
// concurrent use, also by several processes: only one of them redrives or purges a letter. Letters are named by
// Letter.Letter. For one that is gone Show returns ErrNotFound; the other methods do not count it. List yields its
// first error as its last value.
type DeadLetters struct {
	client   rueidis.Client
	prefix   string
	observer observe.Observer // nil = no observer
}

// New returns the dead letters of a prefix ("" = lua.DefaultPrefix).
func New(c rueidis.Client, prefix string) *DeadLetters {
	return &DeadLetters{client: c, prefix: cmp.Or(prefix, lua.DefaultPrefix)}
}

// Observed returns a DeadLetters that reports redrives and purges to an observer.
func (d *DeadLetters) Observed(o observe.Observer) *DeadLetters {
	return &DeadLetters{client: observe.Wrap(d.client, o), prefix: d.prefix, observer: o}
}

func (d *DeadLetters) told(queue string, e observe.Event, n int) {
	if d.observer != nil && n > 0 {
		d.observer.Series(observe.Operator, queue, "").Add(e, n)
	}
}

// check refuses illegal names before Redis is touched.
func (d *DeadLetters) check(queue string) error {
	return errors.Join(lua.CheckPrefix(d.prefix), lua.CheckQueue(queue))
}

// keys returns the keys of one partition.
func (d *DeadLetters) keys(queue string, partition int) lua.Keys {
	return lua.NewKeys(d.prefix, lua.PartitionName(queue, partition)).As(lua.Actor(lua.ActorOperator))
}

// Count returns how many letters pass the filter. With a filter it reads all letters; without one it takes one round
// trip per partition.
func (d *DeadLetters) Count(ctx context.Context, queue string, f Filter) (n int, err error) {
	if f.all() {
		return d.length(ctx, queue)
	}
	for _, err := range d.List(ctx, queue, f) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

func (d *DeadLetters) length(ctx context.Context, queue string) (sum int, err error) {
	counts, err := stream.Partitions(ctx, d.client, d.prefix, queue)
	if err != nil {
		return 0, err
	}
	lengths, err := view.ReadPartitions(d.prefix, counts.Names(queue), func(_ int, keys lua.Keys) (n int64, err error) {
		err = view.Ask(ctx, d.client, view.Number(d.client.B().Xlen().Key(keys.Dead).Build(), &n))
		return n, err
	})
	if err != nil {
		return 0, fmt.Errorf("count dead letters of %s: %w", queue, err)
	}
	for _, n := range lengths {
		sum += int(n)
	}
	return sum, nil
}

// List yields the letters that pass the filter, oldest first unless the filter says otherwise, and at most one error,
// at the end. It does not see letters added after it began. It reads pages of about 256 KiB, and may be stopped at any
// time. It merges the letters of several partitions in one order, and holds a page of each, smaller ones if they are
// many.
func (d *DeadLetters) List(ctx context.Context, queue string, f Filter) iter.Seq2[Letter, error] {
	return view.Sequence(func(give func(Letter) error) error {
		if err := d.list(ctx, queue, f, give); err != nil {
			return fmt.Errorf("list dead letters of %s: %w", queue, err)
		}
		return nil
	})
}

func (d *DeadLetters) list(ctx context.Context, queue string, f Filter, give func(Letter) error) error {
	if err := errors.Join(d.check(queue), f.validate()); err != nil {
		return err
	}
	n := 0
	for stored, err := range d.Stored(ctx, queue, f) {
		if err != nil {
			return err
		}
		letter := letterOf(stored.Partition, stored.Entry)
		if !f.matches(letter) {
			continue
		}
		if err := give(letter); err != nil {
			return err
		}
		if n++; n == f.Limit {
			return nil
		}
	}
	return nil
}

// bounds returns the range of IDs to walk: up to the present last letter, within the filter's ages. to is empty if
// there is no letter.
func (d *DeadLetters) bounds(ctx context.Context, key string, f Filter) (from, to string, err error) {
	last, err := view.ReadPage(ctx, d.client, key, "-", "+", 1, true)
	if err != nil || len(last) == 0 {
		return "", "", err
	}
	from, to = "-", last[0].ID
	if f.OlderThan == 0 && f.NewerThan == 0 {
		return from, to, nil
	}
	now, err := view.ServerTimeOf(ctx, d.client, key)
	if err != nil {
		return "", "", err
	}
	if f.NewerThan > 0 {
		from = fmt.Sprintf("%d-0", max(0, now.Add(-f.NewerThan).UnixMilli()))
	}
	if f.OlderThan > 0 {
		if oldest := now.Add(-f.OlderThan); oldest.Before(lua.EntryTime(to)) {
			to = fmt.Sprint(max(0, oldest.UnixMilli()))
		}
	}
	return from, to, nil
}

// Show returns one letter by its name, as List yields it. ErrNotFound: it was redriven or purged, or never existed. One
// round trip.
func (d *DeadLetters) Show(ctx context.Context, queue, letter string) (Letter, error) {
	partition, entry, err := SplitLetter(letter)
	if err = errors.Join(d.check(queue), err); err != nil {
		return Letter{}, err
	}
	found, ok, err := view.ReadEntry(ctx, d.client, d.keys(queue, partition).Dead, entry)
	if err == nil && !ok {
		err = ErrNotFound
	}
	if err != nil {
		return Letter{}, fmt.Errorf("dead letter %s of %s: %w", letter, queue, err)
	}
	return letterOf(partition, found), nil
}
