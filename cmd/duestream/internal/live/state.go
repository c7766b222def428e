// Package live is the view of `duestream top`: the last look, drawn as a frame of any size, and the loop that looks,
// draws and handles keys. It knows neither Redis nor flags: its caller supplies the function that looks.
//
// Invariants:
//   - a frame fits into every window, and shows how much it leaves out (TestTopFramesFitIntoEveryWindow,
//     TestTopCountsWhatItLeavesOut);
//   - the terminal is restored, also after a panic (TestTopGivesTheTerminalBackWhenItPanics, a test of the command).
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

// State holds everything that a frame of top shows.
type State struct {
	Now           time.Time
	host, prefix  string
	server        admin.ServerLoad
	bridges       []admin.Heartbeat
	bridgesFailed bool // the heartbeats could not be read
	queues        []admin.QueueSample
	advice        []doctor.Finding

	every  time.Duration
	sort   string
	offset int // number of lines that are scrolled away
	paused bool
	live   bool // on a terminal, with keys

	since  time.Time // when the server was lost; zero = connected
	reason string
}

// Sorts are the orders of queues. All except name sort in descending order.
var Sorts = []string{"name", "lag", "rate", "lateness"}

// NewState returns the state before the first look. every is the interval between looks, order one of Sorts.
func NewState(host, prefix string, every time.Duration, order string) *State {
	return &State{Now: time.Now(), host: host, prefix: prefix, every: every, sort: order}
}

// Look is the result of one look.
type Look struct {
	Server        admin.ServerLoad
	Bridges       []admin.Heartbeat
	BridgesFailed bool // the heartbeats could not be read
	Queues        []admin.QueueSample
	Advice        []doctor.Finding // worst first
}

// Take stores the result of a look. It also ends a lost connection.
func (s *State) Take(l Look) {
	s.server, s.bridges, s.bridgesFailed, s.queues, s.advice = l.Server, l.Bridges, l.BridgesFailed, l.Queues, l.Advice
	s.since, s.reason = time.Time{}, ""
}

// Lost records that a look failed. It keeps the time of the first failure in a row.
func (s *State) Lost(at time.Time, err error) {
	if s.since.IsZero() {
		s.since = at
	}
	s.reason = err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		s.reason = "the server does not answer"
	}
}

// Report is the JSON of a frame.
type Report struct {
	Time         int64              `json:"time_ms"`
	Server       admin.ServerLoad   `json:"server"`
	Prefix       string             `json:"prefix"`
	Bridges      []heartbeat.Health `json:"bridges"`
	Queues       []QueueReport      `json:"queues"`
	Advice       []doctor.Finding   `json:"advice"`                 // worst first
	Disconnected *Disconnected      `json:"disconnected,omitempty"` // then the rest is of the last good look
}

type Disconnected struct {
	Since int64  `json:"since_ms"`
	Error string `json:"error"`
}

type QueueReport struct {
	admin.QueueSample
	Error string `json:"error,omitempty"`
}

// JSON returns the state as --json prints it.
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

// sorted returns the queues in the chosen order. Equal queues are sorted by name.
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
