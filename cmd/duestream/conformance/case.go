package conformance

import (
	"fmt"
	"path"
	"slices"
)

// Case tests one rule of the protocol.
type Case struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Section string `json:"section"` // of docs/reference/protocol.md
	Rule    string `json:"rule"`

	alone     string // why the case needs a server of its own; "" = it needs none
	unhurried bool   // needs a bridge of its own, with a visibility timeout longer than any case
	tapped    bool   // breaks the network, so it needs a tap between program and server

	worker   func(*workerTrial)   // the steps of a case of workers
	producer func(*producerTrial) // the steps of a case of producers
}

// Cases returns the cases of a kind up to a level, sorted by level.
func Cases(kind Kind, level Level) []Case {
	all := producerCases
	if kind == Worker {
		all = slices.Concat(basicCases, failureCases, comingBackCases, policyCases, healingCases, outageCases, stoppingCases,
			partitionCases, completeCases)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c Case) bool { return c.Level > level })
	slices.SortStableFunc(all, func(a, b Case) int { return int(a.Level - b.Level) })
	return all
}

// Select returns the cases whose name matches a pattern of path.Match. No match is an error.
func Select(cases []Case, pattern string) ([]Case, error) {
	var matching []Case
	for _, c := range cases {
		match, err := path.Match(pattern, c.Name)
		if err != nil {
			return nil, fmt.Errorf("case %q: %w", pattern, err)
		}
		if match {
			matching = append(matching, c)
		}
	}
	if len(matching) == 0 {
		return nil, fmt.Errorf("case %q: there is none of that name at this level; --list shows them", pattern)
	}
	return matching, nil
}

// longCases names the cases that take long even with a good program, the longest first.
var longCases = []string{
	"outage", "policy-changes", "late-reply", "policy-of-retries", "partitions-grow", "extend", "policy-of-queue", "policy-of-group", "partitions-extend",
	"stop-in-work", "killed-after-extending", "ack-after-work", "killed", "entries-of-others", "server-restart",
}

// startOrder returns the indices of cases in the order of their start. Long and short cases take turns, so that the
// first result comes soon and the run does not end with one long case alone.
func startOrder(cases []Case) (all []int) {
	var long, short []int
	for i, c := range cases {
		if slices.Contains(longCases, c.Name) {
			long = append(long, i)
		} else {
			short = append(short, i)
		}
	}
	slices.SortStableFunc(long, func(a, b int) int {
		return slices.Index(longCases, cases[a].Name) - slices.Index(longCases, cases[b].Name)
	})
	for i := range max(len(long), len(short)) {
		// Each slice has one index, or none at the end of its list.
		all = append(all, long[min(i, len(long)):min(i+1, len(long))]...)
		all = append(all, short[min(i, len(short)):min(i+1, len(short))]...)
	}
	return all
}
