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

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway/access"
	"github.com/duestream/duestream/lua"
)

// How often those who listen are told.
const (
	defaultEach = 5 * time.Second
	minEach     = time.Second
	maxEach     = time.Minute
	sharedFor   = 500 * time.Millisecond // what was seen so recently is not looked at again
	heartbeat   = 15 * time.Second
	allowedEach = time.Second      // how often the token is looked at
	eventWithin = 10 * time.Second // else whoever listens is too slow, and is cut off
)

// events tells what queues hold, again and again, until the caller hangs up, the gateway stops or the token is no longer good.
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
	done, err := c.waits(c.w)
	if err != nil {
		return 0, nil, err
	}
	defer done()
	s := &sink{call: c, rc: http.NewResponseController(c.w), only: only}
	_ = s.rc.SetReadDeadline(time.Time{})
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for a proxy that would collect events
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return 0, nil, nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	defer c.live.leave(s)
	s.run(ctx, time.Duration(each)*time.Millisecond)
	return 0, nil, nil
}

// mayAll says why the token is not for all of these queues.
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

// sink is somebody who listens.
type sink struct {
	*call
	rc    *http.ResponseController
	only  []string // queues; nil = all that the token is for
	wrote time.Time
	told  string // the problem that was told last; "" = there is none
}

// run tells what there is until ctx ends, the token is no longer good or nobody takes it.
func (s *sink) run(ctx context.Context, each time.Duration) {
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
			s.live.listen(s, interest{s.only, s.grant})
			seen := s.live.look()
			if ctx.Err() != nil {
				return
			}
			err = s.tell(seen)
		case now.Sub(s.wrote) >= s.live.heartbeat:
			err = s.write([]byte(":\n\n"))
		}
		if err != nil {
			return
		}
		wake.Reset(min(time.Until(next), allowedEach))
	}
}

// allowed takes up what the token is for now. One that is revoked is the last thing that is told.
func (s *sink) allowed(ctx context.Context) bool {
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

// tell sends what was seen, or why nothing was: that once until it changes.
func (s *sink) tell(seen *sight) error {
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
		if !(interest{s.only, s.grant}).in(one.name) {
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

func (s *sink) problem(err error) error {
	p := problemOf(err)
	p.Title, p.Request, s.told = http.StatusText(p.Status), s.w.id, p.Type
	text, err := encode(p)
	if err != nil {
		return err
	}
	return s.write(fmt.Appendf(nil, "event: problem\ndata: %s\n", text))
}

// write sends at once.
func (s *sink) write(text []byte) error {
	s.wrote = time.Now()
	_ = s.rc.SetWriteDeadline(s.wrote.Add(eventWithin))
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.rc.Flush()
}

// interest names the queues that a listener wants to hear of.
type interest struct {
	only  []string // nil = all that the token is for
	grant *access.Grant
}

func (i interest) in(queue string) bool {
	return (i.only == nil || slices.Contains(i.only, queue)) && i.grant.May(access.Operate, queue)
}

// sight holds the last look at all queues that listeners want to hear of, or the error of that look.
type sight struct {
	at     time.Time
	asked  int // which listeners there were: how many had come
	queues []seenQueue
	err    error
}

type seenQueue struct {
	name string
	text json.RawMessage
}

// live looks at queues for all who listen at a gateway together: at those that any of them wants to be told of.
type live struct {
	op       *admin.Admin
	stopping context.Context
	timeout  time.Duration

	heartbeat time.Duration // after so long without anything a listener gets a comment

	turn    chan struct{} // holds one when nobody looks
	watcher *admin.Watcher
	last    *sight

	mu        sync.Mutex
	listeners map[*sink]interest
	came      int // listeners, in all
}

func newLive(op *admin.Admin, stopping context.Context, timeout time.Duration) *live {
	l := &live{op: op, stopping: stopping, timeout: timeout, heartbeat: heartbeat, turn: make(chan struct{}, 1),
		listeners: map[*sink]interest{}}
	l.turn <- struct{}{}
	return l
}

// listen notes what a listener wants to be told of from now on.
func (l *live) listen(s *sink, i interest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.listeners[s]; !known {
		l.came++
	}
	l.listeners[s] = i
}

func (l *live) leave(s *sink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, s)
}

// wanted returns what is to be looked at, and how many listeners have come.
func (l *live) wanted() (in func(queue string) bool, came int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Values(l.listeners))
	return func(queue string) bool {
		return slices.ContainsFunc(all, func(i interest) bool { return i.in(queue) })
	}, l.came
}

// look returns what is in the queues that any listener wants to be told of, as of half a second ago at most: however many call,
// Redis is asked twice a second, and once for each listener that comes.
func (l *live) look() *sight {
	<-l.turn
	defer func() { l.turn <- struct{}{} }()
	now := time.Now()
	wanted, came := l.wanted()
	if l.last != nil && now.Sub(l.last.at) < sharedFor && l.last.asked == came {
		return l.last
	}
	if l.last == nil || now.Sub(l.last.at) > 2*maxEach { // rates since then would mean nothing
		l.watcher = l.op.Watcher()
	}
	ctx, cancel := context.WithTimeout(l.stopping, l.timeout)
	defer cancel()
	samples, err := l.watcher.LookAt(ctx, wanted)
	seen := &sight{at: time.Now(), asked: came, err: err}
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

// sampled is a sample as listeners get it. What is old is what was seen while the queue could be looked at.
type sampled struct {
	admin.QueueSample
	Old bool `json:"old,omitempty"`
}
