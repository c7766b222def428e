package conformance

import (
	"fmt"
	"path"
	"slices"
)

// Case shows one rule of the protocol.
type Case struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Section string `json:"section"` // of PROTOCOL.md
	Rule    string `json:"rule"`

	alone     string // why it needs a server of its own; "" = it does not
	unhurried bool   // it needs a bridge of its own, whose defaults have a visibility timeout that plays no part
	tapped    bool   // it has the network break, so there must be a tap between the program and the server
	run       func(*trial) error
}

// Cases returns those of a kind up to a level, in order of level.
func Cases(kind Kind, level Level) []Case {
	all := producerCases
	if kind == Worker {
		all = slices.Concat(basicCases, failureCases, comingBackCases, policyCases, healingCases, outageCases, stoppingCases, partitionCases, completeCases)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c Case) bool { return c.Level > level })
	slices.SortStableFunc(all, func(a, b Case) int { return int(a.Level - b.Level) })
	return all
}

// Select returns those cases whose name matches a pattern, as of path.Match.
func Select(cases []Case, pattern string) ([]Case, error) {
	var some []Case
	for _, c := range cases {
		match, err := path.Match(pattern, c.Name)
		if err != nil {
			return nil, fmt.Errorf("case %q: %w", pattern, err)
		}
		if match {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("case %q: there is none of that name at this level; --list shows them", pattern)
	}
	return some, nil
}
