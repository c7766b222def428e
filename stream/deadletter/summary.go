package deadletter

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
)

// LetterGroup counts the letters that one group gave up for one reason with one error.
type LetterGroup struct {
	Group  string    `json:"group,omitempty"`
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"` // its first line; each run of digits is a #
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
}

// summaryErrors is how many errors a summary tells apart. Further ones are counted together, under OtherErrors.
const summaryErrors = 10_000

// OtherErrors stands in a summary for the errors beyond those that it tells apart.
const OtherErrors = "(other errors)"

// Summarize counts the letters that pass the filter by group, reason and error, the most frequent first. All letters are read, in
// bounded steps.
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

var digitRun = regexp.MustCompile(`[0-9]+`)

// foldError returns what errors of one kind have in common: the first line, without its numbers.
func foldError(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return digitRun.ReplaceAllString(strings.TrimSpace(line), "#")
}
