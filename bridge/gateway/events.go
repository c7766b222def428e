package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
)

// Times of an event stream.
const (
	defaultInterval = 5 * time.Second        // between two events
	minInterval     = time.Second            // between two events
	maxInterval     = time.Minute            // between two events
	maxReadAge      = 500 * time.Millisecond // listeners share a read of the queues that is younger
	heartbeat       = 15 * time.Second       // of silence, before a comment is sent
	checkInterval   = time.Second            // between two checks of the token
	writeTimeout    = 10 * time.Second       // of an event; a slower listener is disconnected
)

// events sends the state of queues at intervals, until the caller hangs up, the gateway stops or the token is no longer
// valid.
func events(c *call) (int, any, error) {
	interval, err := c.query.integer("interval_ms", defaultInterval.Milliseconds(), minInterval.Milliseconds(),
		maxInterval.Milliseconds())
	if err != nil {
		return 0, nil, err
	}
	var only []string
	if text, is := c.query["queues"]; is {
		only = strings.Split(text, ",")
		if err := c.mayAll(access.Inspect, only); err != nil {
			return 0, nil, err
		}
	}
	if _, err := c.Body(0); err != nil {
		return 0, nil, err
	}
	done, err := c.beginWait()
	if err != nil {
		return 0, nil, err
	}
	defer done()
	l := &listener{call: c, rc: http.NewResponseController(c.w), only: only}
	_ = l.rc.SetReadDeadline(time.Time{})
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // tells a proxy not to buffer events
	c.w.WriteHeader(http.StatusOK)
	if c.R.Method == http.MethodHead {
		return 0, nil, nil
	}
	ctx, cancel := context.WithCancel(c.Ctx)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	defer c.shared.leave(l)
	l.run(ctx, time.Duration(interval)*time.Millisecond)
	return 0, nil, nil
}

// listener is a caller of events.
type listener struct {
	*call
	rc        *http.ResponseController
	only      []string  // queues; nil = all queues that the token allows
	lastWrite time.Time // when something was last sent
	problem   string    // type of the last problem that was sent; "" = the last read of the queues succeeded
}

// run sends events until ctx ends, the token is no longer valid or a write fails.
func (l *listener) run(ctx context.Context, interval time.Duration) {
	if l.write([]byte("retry: 2000\n\n")) != nil {
		return
	}
	nextEvent, wake := time.Now(), time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake.C:
		}
		if !l.isAllowed(ctx) {
			return
		}
		var err error
		switch now := time.Now(); {
		case !now.Before(nextEvent):
			nextEvent = now.Add(interval)
			l.shared.listen(l, queueFilter{l.only, l.Grant}) // the grant is fresh: isAllowed read it above
			stats := l.shared.read()
			if ctx.Err() != nil {
				return
			}
			err = l.send(stats)
		case now.Sub(l.lastWrite) >= l.shared.heartbeat:
			err = l.write([]byte(":\n\n"))
		}
		if err != nil {
			return
		}
		wake.Reset(min(time.Until(nextEvent), checkInterval))
	}
}

// isAllowed checks the token again. If the token is no longer valid, it sends that problem as the last event.
func (l *listener) isAllowed(ctx context.Context) bool {
	err := l.stillMay(access.Inspect, l.only)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		_ = l.sendProblem(err)
	}
	return err == nil
}

// send sends the state of the queues as an event. If the read of the queues failed, send sends the problem, but only
// once until the type of the problem changes.
func (l *listener) send(stats *snapshot) error {
	if stats.err != nil {
		if p := problemOf(stats.err); p.Type == l.problem {
			return nil
		}
		return l.sendProblem(stats.err)
	}
	l.problem = ""
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: stats\ndata: {\"at\":%q,\"queues\":[", stats.at.UTC().Format(time.RFC3339Nano))
	isFirst := true
	for _, one := range stats.queues { // the read may hold queues that only other listeners want
		if !(queueFilter{l.only, l.Grant}).wants(one.name) {
			continue
		}
		if !isFirst {
			b.WriteByte(',')
		}
		b.Write(one.text)
		isFirst = false
	}
	b.WriteString("]}\n\n")
	return l.write(b.Bytes())
}

func (l *listener) sendProblem(err error) error {
	p := problemOf(err)
	p.Title, p.Request, l.problem = http.StatusText(p.Status), l.w.id, p.Type
	text, err := encode(p)
	if err != nil {
		return err
	}
	return l.write(fmt.Appendf(nil, "event: problem\ndata: %s\n", text))
}

// write sends a text without buffering.
func (l *listener) write(text []byte) error {
	l.lastWrite = time.Now()
	_ = l.rc.SetWriteDeadline(l.lastWrite.Add(writeTimeout))
	if _, err := l.w.Write(text); err != nil {
		return err
	}
	return l.rc.Flush()
}

// queueFilter names the queues that a listener wants events of.
type queueFilter struct {
	only  []string // nil = all queues that the token allows
	grant *access.Grant
}

func (f queueFilter) wants(queue string) bool {
	return (f.only == nil || slices.Contains(f.only, queue)) && f.grant.May(access.Inspect, queue)
}

// snapshot is the result of one read of all queues that listeners want events of, or the error of that read.
type snapshot struct {
	at              time.Time
	listenersAtRead int // value of sharedStats.listenersSoFar at the read
	queues          []queueStats
	err             error
}

// queueStats is the state of a queue in the form of an event.
type queueStats struct {
	name string
	text json.RawMessage
}

// sharedStats reads the state of queues for all listeners of a gateway together: the queues that any listener wants.
type sharedStats struct {
	op       *admin.Admin
	stopping context.Context
	timeout  time.Duration

	heartbeat time.Duration // a listener gets a comment after such a silence

	turn    chan struct{} // mutex of read: holds a value while no goroutine reads
	watcher *admin.Watcher
	last    *snapshot

	mu             sync.Mutex
	listeners      map[*listener]queueFilter
	listenersSoFar int // includes listeners that have left
}

func newSharedStats(op *admin.Admin, stopping context.Context, timeout time.Duration) *sharedStats {
	s := &sharedStats{op: op, stopping: stopping, timeout: timeout, heartbeat: heartbeat, turn: make(chan struct{}, 1),
		listeners: map[*listener]queueFilter{}}
	s.turn <- struct{}{}
	return s
}

// listen records the queues that a listener wants events of from now on.
func (s *sharedStats) listen(l *listener, filter queueFilter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.listeners[l]; !known {
		s.listenersSoFar++
	}
	s.listeners[l] = filter
}

func (s *sharedStats) leave(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// wanted returns a filter of the queues that any listener wants, and listenersSoFar.
func (s *sharedStats) wanted() (isWanted func(queue string) bool, listenersSoFar int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.listeners))
	return func(queue string) bool {
		return slices.ContainsFunc(all, func(f queueFilter) bool { return f.wants(queue) })
	}, s.listenersSoFar
}

// read returns the state of the queues that listeners want, at most maxReadAge old. For any number of listeners it asks
// Redis twice a second at most, and once more for each new listener.
func (s *sharedStats) read() *snapshot {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	now := time.Now()
	isWanted, listeners := s.wanted()
	if s.last != nil && now.Sub(s.last.at) < maxReadAge && s.last.listenersAtRead == listeners {
		return s.last
	}
	if s.last == nil || now.Sub(s.last.at) > 2*maxInterval { // a rate over a longer time would be meaningless
		s.watcher = s.op.Watcher()
	}
	ctx, cancel := context.WithTimeout(s.stopping, s.timeout)
	defer cancel()
	samples, err := s.watcher.LookAt(ctx, isWanted)
	stats := &snapshot{at: time.Now(), listenersAtRead: listeners, err: err}
	for _, one := range samples {
		text, err := encode(sampled{one, one.Err != nil})
		if err != nil {
			stats.err = err
			break
		}
		stats.queues = append(stats.queues, queueStats{one.Queue, bytes.TrimSpace(text)})
	}
	s.last = stats
	return stats
}

// sampled is the JSON form of a sample. Old means that the queue could not be read now, and the values are from an
// earlier read.
type sampled struct {
	admin.QueueSample
	Old bool `json:"old,omitempty"`
}
