package conformance

import (
	"fmt"
	"strings"
	"time"
)

// Version is the version of the protocol that is tested.
const Version = 1

// Kind is the kind of a program.
type Kind string

// The kinds of programs.
const (
	Worker   Kind = "worker"
	Producer Kind = "producer"
)

// Level is a level of conformance, as in section 15 of the protocol. 0 is none.
type Level int

// The levels of conformance.
const (
	Minimal Level = iota + 1
	Good
	Complete
)

var levelNames = []string{"none", "minimal", "good", "complete"}

// ParseLevel returns the level with a name.
func ParseLevel(name string) (Level, error) {
	for level, n := range levelNames {
		if level > 0 && n == name {
			return Level(level), nil
		}
	}
	return 0, fmt.Errorf("level %q: must be one of %s", name, strings.Join(levelNames[1:], ", "))
}

func (l Level) String() string { return levelNames[l] }

// MarshalText returns the name of the level.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// State is the outcome of a case.
type State string

// The outcomes of a case.
const (
	Passed   State = "passed"
	Failed   State = "failed"
	NotTried State = "not_tried"
)

// Result is the result of one case.
type Result struct {
	Case
	State  State    `json:"state"`
	Broke  string   `json:"broke,omitempty"`  // broken rule that holds in every case; Rule and Section are of this rule
	Seen   string   `json:"seen,omitempty"`   // failed: the observation; not tried: the reason
	Notes  []string `json:"notes,omitempty"`  // remarks about allowed behaviour
	Stderr string   `json:"stderr,omitempty"` // failed: the last lines on standard error
	Millis int64    `json:"ms"`
}

// Server identifies the server that was used.
type Server struct {
	Product string `json:"product"`
	Version string `json:"version"`
}

// Report is the result of a run. It is a certificate if all cases of the level were run.
type Report struct {
	Kind      Kind      `json:"kind"`
	Command   []string  `json:"command"`
	Protocol  int       `json:"protocol"`
	Server    Server    `json:"server"`
	Unwatched string    `json:"unwatched,omitempty"` // why the program's commands could not be watched; "" = they were
	Date      time.Time `json:"date"`
	Asked     Level     `json:"asked"`
	Level     Level     `json:"level"` // reached; none if only some cases were run
	Partial   bool      `json:"partial"`
	Counts    Counts    `json:"counts"`
	Cases     []Result  `json:"cases"`
}

// Counts are numbers of cases by state.
type Counts struct {
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	NotTried int `json:"not_tried"`
}

// Reached reports whether the asked level was reached. For a run of some cases, it reports whether none failed and
// one passed.
func (r *Report) Reached() bool {
	if r.Partial {
		return r.Counts.Failed == 0 && r.Counts.Passed > 0
	}
	return r.Level >= r.Asked
}

// judge counts the cases, and sets the level that was reached: the highest one, up to the asked level, so that no case
// of it or of a lower level failed. If no case passed, no level is reached.
func (r *Report) judge() {
	failed := Complete + 1
	for _, c := range r.Cases {
		switch c.State {
		case Passed:
			r.Counts.Passed++
		case Failed:
			r.Counts.Failed++
			failed = min(failed, c.Level)
		case NotTried:
			r.Counts.NotTried++
		}
	}
	if r.Partial || r.Counts.Passed == 0 {
		return
	}
	if r.Level = min(r.Asked, failed-1); r.Kind == Producer && r.Level < Good {
		r.Level = 0 // level minimal is not tested for producers: it is a single ZADD
	}
}
