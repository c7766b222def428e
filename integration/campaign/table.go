package campaign

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Result is the result of a campaign.
type Result struct {
	Tally
	Seed   uint64
	Server string
	Load   time.Duration // duration of load and faults
	Took   time.Duration // total duration, with rest and audit
	Faults []Fault
	Kinds  int // kinds of faults that were possible

	TwoReleases bool     // processes of the previous release took part
	Endless     bool     // messages whose handlers do not end by themselves took part
	Languages   []string // other languages whose packages took part
}

// counts returns how often each kind of fault came, with observed faults separately.
func (r *Result) counts() (done, seen map[string]int, total int) {
	done, seen = map[string]int{}, map[string]int{}
	for _, f := range r.Faults {
		if f.Observed {
			seen[f.Kind]++
		} else {
			done[f.Kind]++
			total++
		}
	}
	return done, seen, total
}

// Bad returns the number of violations.
func (r *Result) Bad() int {
	n := 0
	for _, column := range columns {
		n += r.Zero[column]
	}
	return n
}

func sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// unused names features that no message used.
func (r *Result) unused() (text string) {
	for _, kind := range featureKinds {
		if r.ByKind[kind.kind] == 0 && (r.Endless || !isEndless(kind.kind)) {
			text += ", none " + featureNames[kind.kind]
		}
	}
	for what, n := range map[string]int{"recurs": r.Occurrences, "was replaced": r.Overwritten,
		"was snoozed":     sum(r.Snoozed),
		"died of crashes": r.Crashed} {
		if n == 0 {
			text += ", none that " + what
		}
	}
	for what, n := range map[string]int{"was cancelled while somebody held it": r.HaltedHeld,
		"died of a handler that hung": r.Hung} {
		if n == 0 && r.Endless {
			text += ", none that " + what
		}
	}
	if min(r.PublishedHTTP, r.DeliveredHTTP) == 0 {
		text += ", none over HTTP"
	}
	if r.TwoReleases {
		text += r.Releases.unused()
	}
	return text + r.LanguageWork.unused(r.Languages)
}

// Line returns the result in one line.
func (r *Result) Line() string {
	done, _, total := r.counts()
	zero := make([]string, len(columns))
	for i, column := range columns {
		zero[i] = fmt.Sprintf("%s=%d", strings.ReplaceAll(column, " ", "_"), r.Zero[column])
	}
	return fmt.Sprintf("campaign: accepted=%d deliveries=%d first=%d retries=%d dead=%d duplicates_explained=%d",
		r.Accepted, sum(r.Deliveries), sum(r.First), sum(r.Retries), sum(r.Dead), sum(r.Again)) +
		fmt.Sprintf(" %s faults=%d kinds=%d rate=%.0f/s seed=%d", strings.Join(zero, " "), total, len(done),
			float64(r.Accepted)/r.Load.Seconds(), r.Seed)
}

// Table writes the result as Markdown.
func (r *Result) Table(w io.Writer) error {
	var b strings.Builder
	row := func(name string, value any) { fmt.Fprintf(&b, "| %s | %v |\n", name, value) }
	done, seen, total := r.counts()
	fmt.Fprintf(&b, "| campaign | |\n| --- | ---: |\n")
	row("server", r.Server)
	row("seed", r.Seed)
	row("duration of load and faults", r.Load.Round(time.Second))
	row("duration with quiescence and audit", r.Took.Round(time.Second))
	row("messages accepted", r.Accepted)
	row("throughput, accepted a second", fmt.Sprintf("%.0f", float64(r.Accepted)/r.Load.Seconds()))
	row("messages refused (full server)", r.Refused)
	row("messages whose producer died or was not told", r.Unknown)
	row("accepted over HTTP", r.PublishedHTTP)
	row("deliveries over HTTP", r.DeliveredHTTP)
	if r.TwoReleases {
		row("accepted from producers of the release before", r.Releases.accepted)
		row("deliveries to workers of the release before", r.Releases.deliveries)
		row("messages refused because a bridge of the release before lived", r.Releases.refused)
	}
	for _, language := range r.Languages {
		row("accepted from producers in "+language, r.LanguageWork.accepted[language])
		row("deliveries to workers in "+language, r.LanguageWork.deliveries[language])
	}
	row("cancelled, confirmed", r.Cancelled)
	row("rescheduled, confirmed", r.Moved)
	row("versions replaced by newer ones, confirmed", r.Overwritten)
	row("cancelled while nobody held it, and while somebody did", fmt.Sprintf("%d, %d", r.Halted, r.HaltedHeld))
	row("dead letters of handlers that hung", r.Hung)
	row("dead letters of crashes", r.Crashed)
	row("occurrences of what recurs", r.Occurrences)
	for _, kind := range featureKinds {
		row(fmt.Sprintf("accepted of kind %c: %s", kind.kind, featureNames[kind.kind]), r.ByKind[kind.kind])
	}
	for _, group := range groups {
		row("deliveries to group "+group, r.Deliveries[group])
		row("… of them first deliveries", r.First[group])
		row("… of them retries after a handler failed", r.Retries[group])
		row("… of them after a snooze", r.Snoozed[group])
		row("dead letters of group "+group, r.Dead[group])
	}
	row("duplicates, explained by a fault", sum(r.Again))
	row("attempts used up by a fault, explained", sum(r.Burnt))
	row("settlements after the entry was lost (the worker was told)", r.Late)
	row("lost by the operator's own command (messages × groups)", r.LostByOperator)
	for _, column := range columns {
		row("**"+column+"**", fmt.Sprintf("**%d**", r.Zero[column]))
	}
	fmt.Fprintf(&b, "\n| fault | times | duplicates | attempts |\n| --- | ---: | ---: | ---: |\n")
	again, burnt := r.Again, r.Burnt
	for _, kind := range byCount(done) {
		fmt.Fprintf(&b, "| %s | %d | %s | %s |\n", kind, done[kind], number(int64(again[kind])), number(int64(burnt[kind])))
	}
	fmt.Fprintf(&b, "| **%d kinds** | **%d** | | |\n", len(done), total)
	for _, kind := range byCount(seen) {
		fmt.Fprintf(&b, "| %s (seen, not ours) | %d | %s | %s |\n", kind, seen[kind], number(int64(again[kind])),
			number(int64(burnt[kind])))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Report writes the findings with the full history of each message.
func (r *Result) Report(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s", strings.ToUpper(f.Column), f.ID)
		if f.Group != "" {
			fmt.Fprintf(&b, " in group %s", f.Group)
		}
		fmt.Fprintf(&b, ": %s\n", f.Problem)
		for _, line := range f.History {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func byCount(counts map[string]int) []string {
	kinds := sortedKeys(counts)
	slices.SortStableFunc(kinds, func(a, b string) int { return counts[b] - counts[a] })
	return kinds
}
