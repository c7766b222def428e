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

	interval time.Duration // between looks
	sort     string
	offset   int // number of lines that are scrolled away
	paused   bool
	hasKeys  bool // the frame is on a terminal, and its last line explains the keys

	lostAt     time.Time // when the server was lost; zero while it answers
	lostReason string
}

// Sorts are the orders of queues. All except name sort in descending order.
var Sorts = []string{"name", "lag", "rate", "lateness"}

// NewState returns the state before the first look. interval is the time between looks. order is one of Sorts.
func NewState(host, prefix string, interval time.Duration, order string) *State {
	return &State{Now: time.Now(), host: host, prefix: prefix, interval: interval, sort: order}
}

// Look is the result of one look.
type Look struct {
	Server        admin.ServerLoad
	Bridges       []admin.Heartbeat
	BridgesFailed bool // the heartbeats could not be read
	Queues        []admin.QueueSample
	Advice        []doctor.Finding // worst first
}

// Take stores the result of a look, and records that the server answers.
func (s *State) Take(l Look) {
	s.server, s.bridges, s.bridgesFailed, s.queues, s.advice = l.Server, l.Bridges, l.BridgesFailed, l.Queues, l.Advice
	s.lostAt, s.lostReason = time.Time{}, ""
}

// Lost records that a look failed. It keeps the time of the first failure in a row.
func (s *State) Lost(at time.Time, err error) {
	if s.lostAt.IsZero() {
		s.lostAt = at
	}
	s.lostReason = err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		s.lostReason = "the server does not answer"
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
	Disconnected *Disconnected      `json:"disconnected,omitempty"` // nil if the last look succeeded
}

// Disconnected is set while looks fail. The other fields of the report are of the last look that succeeded.
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
	if !s.lostAt.IsZero() {
		j.Disconnected = &Disconnected{s.lostAt.UnixMilli(), s.lostReason}
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
				w = orZero(q.PerSecond.In) + orZero(q.PerSecond.Out) + orZero(q.PerSecond.Done)
			}
		case "lateness":
			w = float64(max(q.Behind, orZero(q.Late)))
		}
		return w
	}
	queues := slices.Clone(s.queues)
	slices.SortStableFunc(queues, func(a, b admin.QueueSample) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Queue, b.Queue))
	})
	return queues
}
