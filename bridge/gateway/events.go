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
	"github.com/duestream/duestream/lua"
)

// Times of an event stream.
const (
	defaultEach = 5 * time.Second        // between two events
	minEach     = time.Second            // between two events
	maxEach     = time.Minute            // between two events
	sharedFor   = 500 * time.Millisecond // so long all listeners share one read of the queues
	heartbeat   = 15 * time.Second       // of silence, before a comment is sent
	allowedEach = time.Second            // between two checks of the token
	eventWithin = 10 * time.Second       // to write an event; a slower listener is cut off
)

// events sends the state of queues at intervals, until the caller hangs up, the gateway stops or the token is no longer
// valid.
func events(c *call) (int, any, error) {
	each, err := c.query.integer("interval_ms", defaultEach.Milliseconds(), minEach.Milliseconds(), maxEach.Milliseconds())
	if err != nil {
		return 0, nil, err
	}
	var only []string
	if text, is := c.query["queues"]; is {
		only = strings.Split(text, ",")
		if err := c.mayAll(access.Operate, only); err != nil {
			return 0, nil, err
		}
	}
	if _, err := c.body(0); err != nil {
		return 0, nil, err
	}
	done, err := c.beginWait(c.w)
	if err != nil {
		return 0, nil, err
	}
	defer done()
	s := &listener{call: c, rc: http.NewResponseController(c.w), only: only}
	_ = s.rc.SetReadDeadline(time.Time{})
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // tells a proxy not to buffer events
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return 0, nil, nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	defer c.shared.leave(s)
	s.run(ctx, time.Duration(each)*time.Millisecond)
	return 0, nil, nil
}

// mayAll returns an error unless the token allows the verb on all of these queues.
func (c *call) mayAll(verb access.Verb, queues []string) error {
	for _, queue := range queues {
		if err := lua.CheckQueue(queue); err != nil {
			return err
		}
		if !c.grant.May(verb, queue) {
			return forbidden(verb)
		}
	}
	return nil
}

// listener is a caller of events.
type listener struct {
	*call
	rc    *http.ResponseController
	only  []string  // queues; nil = all that the token allows
	wrote time.Time // when something was last sent
	told  string    // type of the problem that was sent last; "" = none since
}

// run sends events until ctx ends, the token is no longer valid or a write fails.
func (s *listener) run(ctx context.Context, each time.Duration) {
	if s.write([]byte("retry: 2000\n\n")) != nil {
		return
	}
	next, wake := time.Now(), time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake.C:
		}
		if !s.allowed(ctx) {
			return
		}
		var err error
		switch now := time.Now(); {
		case !now.Before(next):
			next = now.Add(each)
			s.shared.listen(s, queueFilter{s.only, s.grant})
			seen := s.shared.read()
			if ctx.Err() != nil {
				return
			}
			err = s.tell(seen)
		case now.Sub(s.wrote) >= s.shared.heartbeat:
			err = s.write([]byte(":\n\n"))
		}
		if err != nil {
			return
		}
		wake.Reset(min(time.Until(next), allowedEach))
	}
}

// allowed checks the token again. If the token is no longer valid, allowed sends that problem as the last event.
func (s *listener) allowed(ctx context.Context) bool {
	err := s.authenticate()
	if err == nil {
		err = s.mayAll(access.Operate, s.only)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		_ = s.problem(err)
	}
	return err == nil
}

// tell sends the last look as an event. If the look failed it sends the problem, but only once until the problem
// changes.
func (s *listener) tell(seen *snapshot) error {
	if seen.err != nil {
		if p := problemOf(seen.err); p.Type == s.told {
			return nil
		}
		return s.problem(seen.err)
	}
	s.told = ""
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: stats\ndata: {\"at\":%q,\"queues\":[", seen.at.UTC().Format(time.RFC3339Nano))
	some := false
	for _, one := range seen.queues {
		if !(queueFilter{s.only, s.grant}).in(one.name) {
			continue
		}
		if some {
			b.WriteByte(',')
		}
		b.Write(one.text)
		some = true
	}
	b.WriteString("]}\n\n")
	return s.write(b.Bytes())
}

func (s *listener) problem(err error) error {
	p := problemOf(err)
	p.Title, p.Request, s.told = http.StatusText(p.Status), s.w.id, p.Type
	text, err := encode(p)
	if err != nil {
		return err
	}
	return s.write(fmt.Appendf(nil, "event: problem\ndata: %s\n", text))
}

// write sends a text without buffering.
func (s *listener) write(text []byte) error {
	s.wrote = time.Now()
	_ = s.rc.SetWriteDeadline(s.wrote.Add(eventWithin))
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.rc.Flush()
}

// queueFilter names the queues that a listener wants events of.
type queueFilter struct {
	only  []string // nil = all that the token allows
	grant *access.Grant
}

func (i queueFilter) in(queue string) bool {
	return (i.only == nil || slices.Contains(i.only, queue)) && i.grant.May(access.Operate, queue)
}

// snapshot is the result of a look at all queues that listeners want events of, or the error of that look.
type snapshot struct {
	at              time.Time
	listenersAtRead int // value of sharedStats.listenersSoFar at the look
	queues          []seenQueue
	err             error
}

type seenQueue struct {
	name string
	text json.RawMessage
}

// sharedStats reads the state of queues for all listeners of a gateway together: of the queues that any of them wants.
type sharedStats struct {
	op       *admin.Admin
	stopping context.Context
	timeout  time.Duration

	heartbeat time.Duration // after so long a silence a listener gets a comment

	turn    chan struct{} // mutex of look: full while no goroutine looks
	watcher *admin.Watcher
	last    *snapshot

	mu             sync.Mutex
	listeners      map[*listener]queueFilter
	listenersSoFar int // listeners so far, including those that left
}

func newSharedStats(op *admin.Admin, stopping context.Context, timeout time.Duration) *sharedStats {
	l := &sharedStats{op: op, stopping: stopping, timeout: timeout, heartbeat: heartbeat, turn: make(chan struct{}, 1),
		listeners: map[*listener]queueFilter{}}
	l.turn <- struct{}{}
	return l
}

// listen records the queues that a listener wants events of from now on.
func (l *sharedStats) listen(s *listener, i queueFilter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.listeners[s]; !known {
		l.listenersSoFar++
	}
	l.listeners[s] = i
}

func (l *sharedStats) leave(s *listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, s)
}

// wanted returns a filter of the queues that listeners want, and how many listeners have come so far.
func (l *sharedStats) wanted() (in func(queue string) bool, came int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Values(l.listeners))
	return func(queue string) bool {
		return slices.ContainsFunc(all, func(i queueFilter) bool { return i.in(queue) })
	}, l.listenersSoFar
}

// read returns the state of the queues that listeners want, at most half a second old. For any number of listeners it
// asks Redis twice a second at most, and once more for each new listener.
func (l *sharedStats) read() *snapshot {
	<-l.turn
	defer func() { l.turn <- struct{}{} }()
	now := time.Now()
	wanted, came := l.wanted()
	if l.last != nil && now.Sub(l.last.at) < sharedFor && l.last.listenersAtRead == came {
		return l.last
	}
	if l.last == nil || now.Sub(l.last.at) > 2*maxEach { // a rate over such a time would be meaningless
		l.watcher = l.op.Watcher()
	}
	ctx, cancel := context.WithTimeout(l.stopping, l.timeout)
	defer cancel()
	samples, err := l.watcher.LookAt(ctx, wanted)
	seen := &snapshot{at: time.Now(), listenersAtRead: came, err: err}
	for _, one := range samples {
		text, err := encode(sampled{one, one.Err != nil})
		if err != nil {
			seen.err = err
			break
		}
		seen.queues = append(seen.queues, seenQueue{one.Queue, bytes.TrimSpace(text)})
	}
	l.last = seen
	return seen
}

// sampled is the JSON form of a sample. Old means that the queue could not be read now, and the values are older ones.
type sampled struct {
	admin.QueueSample
	Old bool `json:"old,omitempty"`
}
