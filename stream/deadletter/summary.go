package deadletter

import (
	"cmp"
	"context"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"
)

// LetterGroup counts the letters of one group with the same reason and error.
type LetterGroup struct {
	Group  string    `json:"group,omitempty"`
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"` // the first line, with # for IDs, addresses, durations and long numbers
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Hourly counts the letters of each hour of a Survey's trend, the earliest hour first. Summarize leaves it out.
	Hourly []int `json:"hourly,omitempty"`
}

// Filter returns the filter that selects the letters of the group. ok is false for the group of OtherErrors, because
// no filter selects its letters.
func (g LetterGroup) Filter() (f Filter, ok bool) {
	if g.Error == OtherErrors {
		return Filter{}, false
	}
	return Filter{Group: g.Group, WithoutGroup: g.Group == "", Reason: g.Reason, ErrorKind: g.Error,
		WithoutReason: g.Reason == "", WithoutError: g.Error == ""}, true
}

// Like returns the filter that selects the letters with the same group, reason and kind of error as this one.
func (l Letter) Like() Filter {
	f, _ := LetterGroup{Group: l.Group, Reason: l.Reason, Error: foldError(l.Error)}.Filter()
	return f
}

// summaryErrors is the number of errors that a summary distinguishes. Further ones are counted as OtherErrors.
const summaryErrors = 10_000

// OtherErrors stands in a summary for all errors beyond the first summaryErrors.
const OtherErrors = "(other errors)"

// Summarize counts the letters that pass the filter by group, reason and error, most frequent first. It reads all
// letters, in bounded steps.
func (d *DeadLetters) Summarize(ctx context.Context, queue string, f Filter) ([]LetterGroup, error) {
	return summarize(d.List(ctx, queue, f), summaryErrors)
}

func summarize(letters iter.Seq2[Letter, error], mostErrors int) ([]LetterGroup, error) {
	t := newTally(mostErrors)
	for l, err := range letters {
		if err != nil {
			return nil, err
		}
		t.add(l)
	}
	return t.groups(), nil
}

// tally counts letters by group, reason and error.
type tally struct {
	mostErrors int
	found      map[tallyKey]*LetterGroup
}

type tallyKey struct{ group, reason, err string }

func newTally(mostErrors int) *tally { return &tally{mostErrors, map[tallyKey]*LetterGroup{}} }

// add counts a letter, and returns its group.
func (t *tally) add(l Letter) *LetterGroup {
	k := tallyKey{l.Group, l.Reason, foldError(l.Error)}
	if t.found[k] == nil && len(t.found) >= t.mostErrors {
		k.err = OtherErrors
	}
	g := t.found[k]
	if g == nil {
		g = &LetterGroup{Group: k.group, Reason: k.reason, Error: k.err, Oldest: l.Dead, Newest: l.Dead}
		t.found[k] = g
	}
	g.Count++
	if !l.Dead.IsZero() {
		if g.Oldest.IsZero() || l.Dead.Before(g.Oldest) {
			g.Oldest = l.Dead
		}
		if l.Dead.After(g.Newest) {
			g.Newest = l.Dead
		}
	}
	return g
}

// groups returns copies of the groups, the most frequent first.
func (t *tally) groups() []LetterGroup {
	all := make([]LetterGroup, 0, len(t.found))
	for _, g := range t.found {
		one := *g
		one.Hourly = slices.Clone(g.Hourly)
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b LetterGroup) int {
		return cmp.Or(
			cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Error, b.Error),
		)
	})
	return all
}

// variable matches the parts of an error that differ between messages: IDs, addresses, durations, long numbers. Short
// numbers tell the kind of the error (404, 503, exit status 1), and do not match. Codes such as ORA-00942 tell it, too:
// the first group matches them, so that foldError can keep them.
var variable = regexp.MustCompile(`(\b[A-Z]{2,6}-?[0-9]{3,5}\b)` + // a code
	`|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b` + // UUID
	`|\b[0-9A-HJKMNP-TV-Z]{26}\b` + // ULID
	`|\[[0-9a-fA-F:.]+\](?::[0-9]+)?` + // IPv6
	`|\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+)?\b` + // IPv4
	`|:[0-9]{2,5}\b` + // port
	`|\b(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{6,}\b` + // hexadecimal
	`|\b[0-9]+(?:\.[0-9]+)?(?: ?(?:ns|µs|us|ms|s|sec|seconds|m|min|minutes|h)\b)` + // duration
	`|[0-9]+\.[0-9]{3,}` + // a number with three or more decimals
	`|[0-9]{5,}`) // a number of five or more digits

// numbered matches the number after a lower-case name: order-42, user_7, job7.
var numbered = regexp.MustCompile(`([a-z][-_]?)[0-9]+\b`)

// foldBytes is how many bytes of an error tell its kind. A worker keeps 1 KiB of an error; another program may have
// stored a letter with more.
const foldBytes = 1 << 10

// foldError returns the common part of errors of one kind: the first line, with # for each variable part.
func foldError(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > foldBytes {
		line = strings.ToValidUTF8(line[:foldBytes], "")
	}
	line = variable.ReplaceAllStringFunc(strings.TrimSpace(line), func(part string) string {
		if variable.FindStringSubmatch(part)[1] != "" {
			return part
		}
		return "#"
	})
	return numbered.ReplaceAllString(line, "$1#")
}
