package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

const (
	clockJump    = time.Second
	leaveTimeout = time.Second
)

// membership sends the heartbeats of this scheduler, and learns from the replies which others live.
type membership struct {
	client  rueidis.Client
	globals lua.Globals
	id      string // the identity of this scheduler, as others see it
	timeout time.Duration
	state   loop.Reporter
	tell    observe.Series // nil = no observer
	// joined is called after each good heartbeat. fresh: it is the first heartbeat, or the first after an error, a gap or
	// a step of the clock.
	joined func(ctx context.Context, live []string, fresh bool)

	// Of the heartbeat's goroutine.
	last     heartbeat
	answered bool // the last heartbeat succeeded

	mu       sync.Mutex
	good     heartbeat     // the last good one, read by other goroutines
	turned   time.Time     // when the last one ended, good or not
	quickest time.Duration // a recent minimum of the time that a heartbeat takes
}

// heartbeat is a good heartbeat: the server's clock was read between sent and received.
type heartbeat struct {
	sent, received time.Time
	server         time.Time
}

// gapOrJump reports whether too much time passed between two heartbeats, or the server's clock was stepped.
func (b heartbeat) gapOrJump(next heartbeat, timeout time.Duration) bool {
	least, most := next.sent.Sub(b.received), next.received.Sub(b.sent)
	passed := next.server.Sub(b.server)
	return next.received.Sub(b.received) > timeout || passed < least-clockJump || passed > most+clockJump
}

func newMembership(cfg Config, joined func(context.Context, []string, bool)) *membership {
	return &membership{
		client: cfg.Client, globals: lua.NewGlobals(cfg.Prefix), id: cfg.Identity.String(),
		timeout: cfg.HeartbeatTimeout, joined: joined,
		state: loop.Reporter{Log: cfg.Logger, Activity: "heartbeat"},
		tell:  observe.SeriesOf(cfg.Observer, observe.Bridge, "", ""),
	}
}

// Beat sends one heartbeat. An error changes no membership.
func (m *membership) Beat(ctx context.Context) error {
	err := m.beat(ctx)
	m.mu.Lock()
	m.turned = time.Now()
	m.mu.Unlock()
	if ctx.Err() == nil {
		m.state.Report(err)
	}
	return err
}

func (m *membership) beat(ctx context.Context) error {
	// Give a heartbeat in flight a little time when ctx ends. If it reached the server after leave, this bridge would
	// seem to live.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })()
	b := heartbeat{sent: time.Now()}
	var live []string
	var err error
	b.server, live, err = lua.Heartbeat(call, m.client, m.globals, m.id, m.timeout)
	b.received = time.Now()
	if err != nil {
		m.answered = false
		return fmt.Errorf("heartbeat: %w", err)
	}
	first := m.last.sent.IsZero()
	disturbed := !first && m.last.gapOrJump(b, m.timeout)
	back := !m.answered || disturbed
	m.last, m.answered = b, true
	if m.tell != nil {
		m.tell.Add(observe.Heartbeat, 1)
		if back && !first {
			m.tell.Add(observe.BridgeReconnect, 1)
		}
	}
	m.mu.Lock()
	m.good = b
	if took := b.received.Sub(b.sent); first || took < m.quickest {
		m.quickest = took
	} else {
		m.quickest += m.quickest / 32 // the way to the server may have become longer
	}
	m.mu.Unlock()
	// A foreign member is no bridge. It must own no queue, because nobody would drain it before it is overdue.
	live = slices.DeleteFunc(live, func(member string) bool {
		_, ok := lua.ParseIdentity(member)
		return !ok
	})
	slices.Sort(live)
	m.joined(ctx, live, back)
	return nil
}

// leave removes this scheduler at the server, so that the others need not wait for its timeout. Best effort.
func (m *membership) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = m.client.Do(ctx, m.client.B().Zrem().Key(m.globals.Bridges).Member(m.id).Build()).Error()
}

// lastBeat returns the local time of the last good heartbeat.
func (m *membership) lastBeat() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.good.received
}

// lastTurn returns the local time at which the last heartbeat ended, good or not.
func (m *membership) lastTurn() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turned
}

// roundTrip returns the time that the server needs to answer a request that costs nothing; zero before the first
// heartbeat.
func (m *membership) roundTrip() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.quickest
}
