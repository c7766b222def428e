// Package live is the view of `duestream top`: what was seen last, drawn as a frame of any size, and the loop that looks, draws
// and heeds keys. It knows neither Redis nor flags: who calls it says how to look.
//
// Invariants:
//   - a frame fits into every window, and says what it leaves out (TestTopFramesFitIntoEveryWindow,
//     TestTopCountsWhatItLeavesOut);
//   - the terminal is given back, also after a panic (TestTopGivesTheTerminalBackWhenItPanics, a test of the command).
package live

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
)

// Bounds of the interval between looks.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Hour
)

// State is all that a frame of top shows.
type State struct {
	Now           time.Time
	host, prefix  string
	server        admin.ServerLoad
	bridges       []admin.Heartbeat
	bridgesFailed bool // and so nothing is known of them
	queues        []admin.QueueSample
	advice        []doctor.Finding

	every  time.Duration
	sort   string
	offset int // lines of queues and groups that are scrolled away
	paused bool
	live   bool // on a terminal: keys do something

	since  time.Time // when the server was lost; zero = it is there
	reason string
}

// Sorts are the orders of queues. All but name put the greatest first.
var Sorts = []string{"name", "lag", "rate", "lateness"}

// NewState returns the state before the first look: of which server and prefix, how often to look, and the order of queues.
func NewState(host, prefix string, every time.Duration, order string) *State {
	return &State{Now: time.Now(), host: host, prefix: prefix, every: every, sort: order}
}

// Look is what top asks for at once.
type Look struct {
	Server        admin.ServerLoad
	Bridges       []admin.Heartbeat
	BridgesFailed bool // and so nothing is known of them
	Queues        []admin.QueueSample
	Advice        []doctor.Finding // the worst first
}

// Take stores what a look found. The server is connected again then.
func (s *State) Take(l Look) {
	s.server, s.bridges, s.bridgesFailed, s.queues, s.advice = l.Server, l.Bridges, l.BridgesFailed, l.Queues, l.Advice
	s.since, s.reason = time.Time{}, ""
}

// Lost notes that a look failed, and keeps the time of the first failure in a row.
func (s *State) Lost(at time.Time, err error) {
	if s.since.IsZero() {
		s.since = at
	}
	s.reason = err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		s.reason = "the server does not answer"
	}
}

// Report is a frame in JSON.
type Report struct {
	Time         int64              `json:"time_ms"`
	Server       admin.ServerLoad   `json:"server"`
	Prefix       string             `json:"prefix"`
	Bridges      []heartbeat.Health `json:"bridges"`
	Queues       []QueueReport      `json:"queues"`
	Advice       []doctor.Finding   `json:"advice"`                 // the worst first
	Disconnected *Disconnected      `json:"disconnected,omitempty"` // then the rest is of the last look that succeeded
}

type Disconnected struct {
	Since int64  `json:"since_ms"`
	Error string `json:"error"`
}

type QueueReport struct {
	admin.QueueSample
	Error string `json:"error,omitempty"`
}

// JSON is the state as --json prints it.
func (s *State) JSON() Report {
	j := Report{
		Time: s.Now.UnixMilli(), Server: s.server, Prefix: s.prefix,
		Bridges: heartbeat.HealthOf(s.bridges), Queues: []QueueReport{}, Advice: slices.Concat([]doctor.Finding{}, s.advice),
	}
	for _, q := range s.sorted() {
		one := QueueReport{QueueSample: q}
		if q.Err != nil {
			one.Error = q.Err.Error()
		}
		j.Queues = append(j.Queues, one)
	}
	if !s.since.IsZero() {
		j.Disconnected = &Disconnected{s.since.UnixMilli(), s.reason}
	}
	return j
}

// sorted returns the queues in the order that was asked for, and equal ones by name.
func (s *State) sorted() []admin.QueueSample {
	weight := func(q admin.QueueSample) (w float64) {
		switch s.sort {
		case "lag":
			w = float64(q.Ready)
			for _, g := range q.Groups {
				w = max(w, float64(g.Lag))
			}
		case "rate":
			if q.PerSecond != nil {
				w = deref(q.PerSecond.In) + deref(q.PerSecond.Out) + deref(q.PerSecond.Done)
			}
		case "lateness":
			w = float64(max(q.Behind, deref(q.Late)))
		}
		return w
	}
	queues := slices.Clone(s.queues)
	slices.SortStableFunc(queues, func(a, b admin.QueueSample) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Queue, b.Queue))
	})
	return queues
}
