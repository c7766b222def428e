package deadletter

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
)

// LetterGroup counts the letters of one group with the same reason and error.
type LetterGroup struct {
	Group  string    `json:"group,omitempty"`
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"` // its first line, with # for IDs, addresses, durations and long numbers
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
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

func summarize(letters func(func(Letter, error) bool), most int) ([]LetterGroup, error) {
	type key struct{ group, reason, err string }
	found := map[key]*LetterGroup{}
	for l, err := range letters {
		if err != nil {
			return nil, err
		}
		k := key{l.Group, l.Reason, foldError(l.Error)}
		if found[k] == nil && len(found) >= most {
			k.err = OtherErrors
		}
		g := found[k]
		if g == nil {
			g = &LetterGroup{Group: k.group, Reason: k.reason, Error: k.err, Oldest: l.Dead, Newest: l.Dead}
			found[k] = g
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
	}
	all := make([]LetterGroup, 0, len(found))
	for _, g := range found {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b LetterGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Error, b.Error))
	})
	return all, nil
}

// variable matches the parts of an error that differ between messages: IDs, addresses, durations, long numbers. Short
// numbers stand for the kind of the error (404, 503, exit status 1), and so do codes such as ORA-00942, which the first
// group matches.
var variable = regexp.MustCompile(`(\b[A-Z]{2,6}-?[0-9]{3,5}\b)` + // a code
	`|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b` + // UUID
	`|\b[0-9A-HJKMNP-TV-Z]{26}\b` + // ULID
	`|\[[0-9a-fA-F:.]+\](?::[0-9]+)?` + // IPv6
	`|\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+)?\b` + // IPv4
	`|:[0-9]{2,5}\b` + // port
	`|\b(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{6,}\b` + // hexadecimal
	`|\b[0-9]+(?:\.[0-9]+)?(?: ?(?:ns|µs|us|ms|s|sec|seconds|m|min|minutes|h)\b)` + // duration
	`|[0-9]+\.[0-9]{3,}` + // measured
	`|[0-9]{5,}`) // long

// numbered matches the number after a lower-case name: order-42, user_7, job7.
var numbered = regexp.MustCompile(`([a-z][-_]?)[0-9]+\b`)

// foldError returns the common part of errors of one kind: the first line, with # for each variable part.
func foldError(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = variable.ReplaceAllStringFunc(strings.TrimSpace(line), func(part string) string {
		if variable.FindStringSubmatch(part)[1] != "" {
			return part
		}
		return "#"
	})
	return numbered.ReplaceAllString(line, "$1#")
}
