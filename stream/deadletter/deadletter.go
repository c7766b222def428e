package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
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

func letterOf(partition int, stored rueidis.XRangeSlice) Letter {
	l := lua.ParseLetter(stored.ID, stored.FieldValues)
	return Letter{
		Letter: LetterName(partition, l.EntryID), ID: l.ID, Group: l.Group, Reason: l.Reason, Error: l.Error,
		Attempt: l.Attempt, Dead: l.Dead, Due: l.Due, Entry: l.FailedEntry, MaxAttempts: l.MaxAttempts,
		Expires: l.Expires, Headers: l.Headers, Payload: l.Payload, Extra: l.Extra,
	}
}

// Filter selects dead letters. Zero fields do not restrict.
type Filter struct {
	Group     string        // the letter's group
	Reason    string        // the letter's reason: a lua.Reason constant
	ErrorText string        // a part of the letter's error text
	ErrorKind string        // the Error of the letter's LetterGroup
	ID        string        // ID of the message; * stands for any text, ? for one character
	OlderThan time.Duration // the letter has been dead for at least this long, by the server's clock
	NewerThan time.Duration // the letter has been dead for at most this long, by the server's clock
	Limit     int           // greatest number of letters
	Newest    bool          // the newest letters come first

	WithoutGroup  bool // the letter names no group
	WithoutError  bool // the letter has no error text
	WithoutReason bool // the letter has no reason

	// After is the name of a letter: only letters that come after it in the order of List. The letter itself may be gone.
	After string

	// UpTo is the name of a letter: only letters that are not newer. It need not exist.
	UpTo string
}

func (f Filter) validate() error {
	var errs []error
	if f.OlderThan < 0 {
		errs = append(errs, lua.Invalid("older than", f.OlderThan.String(), "must not be negative"))
	}
	if f.NewerThan < 0 {
		errs = append(errs, lua.Invalid("newer than", f.NewerThan.String(), "must not be negative"))
	}
	if f.Limit < 0 {
		errs = append(errs, lua.Invalid("limit", strconv.Itoa(f.Limit), "must not be negative"))
	}
	for field, name := range map[string]string{"after": f.After, "up to": f.UpTo} {
		if name == "" {
			continue
		}
		_, entry, err := SplitLetter(name)
		if err == nil && strings.Trim(entry, "0-") == "" {
			err = lua.Invalid(field, name, "must be the name of a letter")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// passesAll reports whether every letter passes the filter.
func (f Filter) passesAll() bool {
	return f == Filter{Newest: f.Newest}
}

// matches reports whether the fields of a letter pass. It does not check the age: List walks only letters of the right
// age.
func (f Filter) matches(l Letter) bool {
	return (f.Group == "" || l.Group == f.Group) &&
		(f.Reason == "" || l.Reason == f.Reason) &&
		!(f.WithoutGroup && l.Group != "") &&
		!(f.WithoutReason && l.Reason != "") &&
		!(f.WithoutError && strings.TrimSpace(l.Error) != "") &&
		strings.Contains(l.Error, f.ErrorText) &&
		(f.ErrorKind == "" || foldError(l.Error) == f.ErrorKind) &&
		(f.ID == "" || matchPattern(f.ID, l.ID))
}

// matchPattern reports whether a text matches a pattern of * (any text) and ? (one character). Pattern and text may be
// any bytes; an invalid UTF-8 byte counts as a character. It takes O(pattern × text) steps: at a mismatch, only the
// last * is extended, by one character.
func matchPattern(pattern, text string) bool {
	afterStar := -1 // position in the pattern after the last *; -1: there was none
	starEnd := 0    // position in the text up to which the last * matches
	p, t := 0, 0    // positions in the pattern and in the text
	for t < len(text) {
		_, size := utf8.DecodeRuneInString(text[t:])
		switch {
		case p < len(pattern) && pattern[p] == '*':
			p++
			afterStar, starEnd = p, t
		case p < len(pattern) && pattern[p] == '?':
			p++
			t += size
		case strings.HasPrefix(pattern[p:], text[t:t+size]):
			p += size
			t += size
		case afterStar >= 0:
			_, size = utf8.DecodeRuneInString(text[starEnd:])
			starEnd += size
			p, t = afterStar, starEnd
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// DeadLetters reads, redrives and purges the dead letters of the queues of a prefix, in bounded steps. It is safe for
// concurrent use, also by several processes: only one process redrives or purges a letter. A letter is named by its
// field Letter. For a letter that is gone Show returns ErrNotFound, Redrive counts it as Gone, and Purge does not count
// it.
type DeadLetters struct {
	client   rueidis.Client
	prefix   string
	observer observe.Observer // nil: there is no observer
}

// New returns the dead letters of a prefix. If prefix is "", it is lua.DefaultPrefix.
func New(c rueidis.Client, prefix string) *DeadLetters {
	return &DeadLetters{client: c, prefix: cmp.Or(prefix, lua.DefaultPrefix)}
}

// Observed returns a DeadLetters that reports redrives and purges to an observer.
func (d *DeadLetters) Observed(o observe.Observer) *DeadLetters {
	return &DeadLetters{client: observe.Wrap(d.client, o), prefix: d.prefix, observer: o}
}

// report reports n events of a queue to the observer.
func (d *DeadLetters) report(queue string, e observe.Event, n int) {
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
	if f.passesAll() {
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

// List yields the letters that pass the filter, oldest first unless the filter says otherwise. At an error it yields
// the error and stops. It does not see letters added after it began. It reads pages of about 256 KiB, and may be
// stopped at any time. It merges the letters of several partitions in one order, and holds a page of each partition;
// the more partitions, the smaller the pages.
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

// bounds returns the range of IDs to walk: the letters within the filter's ages, up to the present last one. to is ""
// if there is no letter.
func (d *DeadLetters) bounds(ctx context.Context, key string, f Filter) (from, to string, err error) {
	last, err := view.ReadPage(ctx, d.client, key, "-", "+", 1, true)
	if err != nil || len(last) == 0 {
		return "", "", err
	}
	from, to = "-", last[0].ID
	if f.UpTo != "" {
		if to, err = f.upTo(to); err != nil {
			return "", "", err
		}
	}
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
		if latest := now.Add(-f.OlderThan); latest.Before(lua.EntryTime(to)) {
			to = fmt.Sprint(max(0, latest.UnixMilli()))
		}
	}
	return from, to, nil
}

// showAtOnce is how many letters showEach reads in one round trip. Each may have a payload of 16 MiB.
const showAtOnce = 8

// showEach yields letters by their names, each with the error that Show would return. The names must be valid.
func (d *DeadLetters) showEach(ctx context.Context, queue string, letters []string) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		for names := range slices.Chunk(letters, showAtOnce) {
			found := make([][]rueidis.XRangeSlice, len(names))
			partitions := make([]int, len(names))
			questions := make([][]view.Question, len(names))
			for i, name := range names {
				var entry string
				partitions[i], entry, _ = SplitLetter(name)
				command := d.client.B().Xrange().Key(d.keys(queue, partitions[i]).Dead).Start(entry).End(entry).Count(1).Build()
				questions[i] = []view.Question{view.Entries(command, &found[i])}
			}
			for i, err := range view.AskEach(ctx, d.client, questions...) {
				letter := Letter{}
				switch {
				case err == nil && len(found[i]) == 0:
					err = ErrNotFound
				case err == nil:
					letter = letterOf(partitions[i], found[i][0])
				}
				if err != nil {
					err = fmt.Errorf("dead letter %s of %s: %w", names[i], queue, err)
				}
				if !yield(letter, err) {
					return
				}
			}
		}
	}
}

// upTo returns the older one of the letter UpTo and another letter of a partition.
func (f Filter) upTo(newest string) (string, error) {
	_, entry, err := SplitLetter(f.UpTo)
	if err != nil {
		return "", err
	}
	limit, errLimit := view.ParseEntryID(entry)
	last, errLast := view.ParseEntryID(newest)
	if last.Compare(limit) < 0 {
		return newest, errors.Join(errLimit, errLast)
	}
	return limit.String(), errors.Join(errLimit, errLast)
}

// Show returns one letter by its name, as List yields it. ErrNotFound: the letter was redriven or purged, or never
// existed. It takes one round trip.
func (d *DeadLetters) Show(ctx context.Context, queue, letter string) (Letter, error) {
	partition, entry, err := SplitLetter(letter)
	if err = errors.Join(d.check(queue), err); err != nil {
		return Letter{}, err
	}
	stored, ok, err := view.ReadEntry(ctx, d.client, d.keys(queue, partition).Dead, entry)
	if err == nil && !ok {
		err = ErrNotFound
	}
	if err != nil {
		return Letter{}, fmt.Errorf("dead letter %s of %s: %w", letter, queue, err)
	}
	return letterOf(partition, stored), nil
}
