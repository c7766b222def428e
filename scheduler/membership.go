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
	clockJump    = time.Second // a larger difference between the server's clock and this one counts as a step
	leaveTimeout = time.Second
)

// membership sends the heartbeats of this scheduler, and learns from the replies which schedulers are live.
type membership struct {
	client  rueidis.Client
	globals lua.Globals
	id      string // the identity of this scheduler, as others see it
	timeout time.Duration
	state   loop.Reporter
	series  observe.Series // nil = no observer
	// onHeartbeat is called after each heartbeat that succeeded. fresh is set for the first heartbeat, and for the
	// first after an error, a gap or a step of the clock.
	onHeartbeat func(ctx context.Context, live []string, fresh bool)

	// Only the heartbeat's goroutine uses these fields.
	last          heartbeat // the last heartbeat that succeeded
	lastSucceeded bool      // the last attempt succeeded

	mu       sync.Mutex
	lastGood heartbeat     // a copy of last for other goroutines
	lastEnd  time.Time     // end of the last attempt, whether it succeeded or not
	fastest  time.Duration // a recent minimum of the time that a heartbeat takes
}

// heartbeat holds the times of a heartbeat that succeeded. The server's clock was read between sent and received.
type heartbeat struct {
	sent, received time.Time
	server         time.Time
}

// hasGapOrJumpTo reports whether the time to the next heartbeat exceeds the timeout, or the server's clock was stepped
// in between.
func (b heartbeat) hasGapOrJumpTo(next heartbeat, timeout time.Duration) bool {
	least, most := next.sent.Sub(b.received), next.received.Sub(b.sent)
	passed := next.server.Sub(b.server)
	return next.received.Sub(b.received) > timeout || passed < least-clockJump || passed > most+clockJump
}

func newMembership(cfg Config, onHeartbeat func(context.Context, []string, bool)) *membership {
	return &membership{
		client: cfg.Client, globals: lua.NewGlobals(cfg.Prefix), id: cfg.Identity.String(),
		timeout: cfg.HeartbeatTimeout, onHeartbeat: onHeartbeat,
		state:  loop.Reporter{Log: cfg.Logger, Activity: "heartbeat"},
		series: observe.SeriesOf(cfg.Observer, observe.Bridge, "", ""),
	}
}

// Beat sends one heartbeat. After an error the live schedulers stay those of the last good heartbeat.
func (m *membership) Beat(ctx context.Context) error {
	err := m.beat(ctx)
	m.mu.Lock()
	m.lastEnd = time.Now()
	m.mu.Unlock()
	if ctx.Err() == nil {
		m.state.Report(err)
	}
	return err
}

func (m *membership) beat(ctx context.Context) error {
	// When ctx ends, a heartbeat in flight gets leaveTimeout to finish. If the server got it after leave, this bridge
	// would seem to be live.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })()
	b := heartbeat{sent: time.Now()}
	var live []string
	var err error
	b.server, live, err = lua.Heartbeat(call, m.client, m.globals, m.id, m.timeout)
	b.received = time.Now()
	if err != nil {
		m.lastSucceeded = false
		return fmt.Errorf("heartbeat: %w", err)
	}
	first := m.last.sent.IsZero()
	disturbed := !first && m.last.hasGapOrJumpTo(b, m.timeout)
	fresh := !m.lastSucceeded || disturbed
	m.last, m.lastSucceeded = b, true
	if m.series != nil {
		m.series.Add(observe.Heartbeat, 1)
		if fresh && !first {
			m.series.Add(observe.BridgeReconnect, 1)
		}
	}
	m.mu.Lock()
	m.lastGood = b
	if took := b.received.Sub(b.sent); first || took < m.fastest {
		m.fastest = took
	} else {
		m.fastest += m.fastest / 32 // let the minimum rise slowly, because the network may have become slower
	}
	m.mu.Unlock()
	// A member whose name is no identity was not added by a bridge. It must not own a queue, because nobody would drain
	// that queue before it is overdue.
	live = slices.DeleteFunc(live, func(member string) bool {
		_, ok := lua.ParseIdentity(member)
		return !ok
	})
	slices.Sort(live)
	m.onHeartbeat(ctx, live, fresh)
	return nil
}

// leave removes this scheduler from the live ones at the server, so that the others need not wait for its timeout. It
// ignores errors.
func (m *membership) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = lua.Leave(ctx, m.client, m.globals, m.id)
}

// lastBeat returns the local time of the last heartbeat that succeeded.
func (m *membership) lastBeat() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastGood.received
}

// lastTurn returns the local time at which the last heartbeat ended, whether it succeeded or not.
func (m *membership) lastTurn() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastEnd
}

// roundTrip returns the time in which the server answers a request that costs it nearly nothing. Before the first
// heartbeat it returns zero.
func (m *membership) roundTrip() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fastest
}
