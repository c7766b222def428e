package conformance

import (
	"fmt"
	"strings"
	"time"
)

// Version is that of the protocol that is tested.
const Version = 1

// Kind says what a program is.
type Kind string

// Kinds.
const (
	Worker   Kind = "worker"
	Producer Kind = "producer"
)

// Level of a client, as in section 15 of the protocol. Zero is none.
type Level int

// Levels.
const (
	Minimal Level = iota + 1
	Good
	Complete
)

var levelNames = []string{"none", "minimal", "good", "complete"}

// ParseLevel reads the name of a level.
func ParseLevel(name string) (Level, error) {
	for level, n := range levelNames {
		if level > 0 && n == name {
			return Level(level), nil
		}
	}
	return 0, fmt.Errorf("level %q: must be one of %s", name, strings.Join(levelNames[1:], ", "))
}

func (l Level) String() string { return levelNames[l] }

// MarshalText writes the name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// State says how a case ended.
type State string

// States.
const (
	Passed   State = "passed"
	Failed   State = "failed"
	NotTried State = "not_tried"
)

// Result is what became of one case.
type Result struct {
	Case
	State  State    `json:"state"`
	Broke  string   `json:"broke,omitempty"`  // name of the broken rule, when it is one that every case watches; then Rule and Section are of that rule
	Seen   string   `json:"seen,omitempty"`   // failed: what was seen instead; not tried: why
	Notes  []string `json:"notes,omitempty"`  // what is worth knowing, and allowed
	Stderr string   `json:"stderr,omitempty"` // failed: the last lines that the program wrote there
	Millis int64    `json:"ms"`
}

// Server names the server that was used.
type Server struct {
	Product string `json:"product"`
	Version string `json:"version"`
}

// Report is what a run has found out. It is a certificate when all cases of the level were asked for.
type Report struct {
	Kind      Kind      `json:"kind"`
	Command   []string  `json:"command"`
	Protocol  int       `json:"protocol"`
	Server    Server    `json:"server"`
	Unwatched string    `json:"unwatched,omitempty"` // why what the program sends could not be watched; "" = it was
	Date      time.Time `json:"date"`
	Asked     Level     `json:"asked"`
	Level     Level     `json:"level"` // reached; none when only some cases were run
	Partial   bool      `json:"partial"`
	Counts    Counts    `json:"counts"`
	Cases     []Result  `json:"cases"`
}

// Counts of cases by state.
type Counts struct {
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	NotTried int `json:"not_tried"`
}

// Reached says whether the asked level was reached; of a run of some cases, whether none of them failed.
func (r *Report) Reached() bool {
	if r.Partial {
		return r.Counts.Failed == 0 && r.Counts.Passed > 0
	}
	return r.Level >= r.Asked
}

// judge counts, and finds the highest level none of whose cases failed and of which any was tried.
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
		r.Level = 0 // the kit does not try the level minimal of producers: it is a ZADD
	}
}
