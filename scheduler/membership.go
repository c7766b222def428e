package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const (
	clockJump        = time.Second
	identityInterval = 15 * time.Second
	leaveTimeout     = time.Second
)

// membership says that this scheduler lives, learns which others do, and watches over the calm.
type membership struct {
	client  rueidis.Client
	globals lua.Globals
	id      string // random per start
	timeout time.Duration
	calm    *calm
	state   state
	// joined is called after each good heartbeat; back: it is the first, or the first after an error, a gap or a step of the clock.
	joined func(ctx context.Context, live []string, back bool)

	// Of the heartbeat's goroutine.
	last     beat
	runID    string    // of the server, by INFO; changes with every start
	checked  time.Time // when runID was read
	answered bool      // the last heartbeat succeeded

	mu       sync.Mutex
	good     beat          // the last one, for others
	quickest time.Duration // answer to a heartbeat, lately
}

// beat is a good heartbeat: the server's clock was read between sent and received.
type beat struct {
	sent, received time.Time
	server         time.Time
}

// gapOrJump says whether something lies between two heartbeats: too much time, or a step of the server's clock.
func (b beat) gapOrJump(next beat, timeout time.Duration) bool {
	least, most := next.sent.Sub(b.received), next.received.Sub(b.sent)
	passed := next.server.Sub(b.server)
	return next.received.Sub(b.received) > timeout || passed < least-clockJump || passed > most+clockJump
}

func newMembership(cfg Config, joined func(context.Context, []string, bool)) *membership {
	return &membership{
		client: cfg.Client, globals: lua.NewGlobals(cfg.Prefix), id: ulid.Make().String(),
		timeout: cfg.HeartbeatTimeout, calm: newCalm(), joined: joined,
		state: state{log: cfg.Logger, what: "heartbeat"},
	}
}

// Beat is one heartbeat. With an error everything stays as it was.
func (m *membership) Beat(ctx context.Context) error {
	err := m.beat(ctx)
	if ctx.Err() == nil {
		m.state.report(err)
	}
	return err
}

func (m *membership) beat(ctx context.Context) error {
	// A heartbeat that is on its way when ctx ends is waited for, a little: overtaken by leave, it would bring a dead bridge back.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })()
	b := beat{sent: time.Now()}
	var live []string
	var err error
	b.server, live, err = lua.Heartbeat(call, m.client, m.globals, m.id, m.timeout)
	b.received = time.Now()
	if err != nil {
		m.answered = false
		m.calm.disturb()
		return fmt.Errorf("scheduler: heartbeat: %w", err)
	}
	first := m.last.sent.IsZero()
	disturbed := !first && m.last.gapOrJump(b, m.timeout)
	if disturbed {
		m.calm.disturb()
	}
	m.identify(call, b.received)
	// The first heartbeat begins the calm, however long the server may have been up: it may have been paused a moment ago, and what
	// was pending meanwhile looks abandoned to those who were not there.
	m.calm.settle()
	back := !m.answered || disturbed
	m.last, m.answered = b, true
	m.mu.Lock()
	m.good = b // after the calm: who goes by this clock must find it disturbed by a step
	if took := b.received.Sub(b.sent); first || took < m.quickest {
		m.quickest = took
	} else {
		m.quickest += m.quickest / 32 // the way to the server may have become longer
	}
	m.mu.Unlock()
	slices.Sort(live)
	m.joined(ctx, live, back)
	return nil
}

// identify finds out now and then, and when a connection broke, whether the server is still the same. On a cluster there are many, and
// where INFO is forbidden none can be told: there each broken connection disturbs the calm.
func (m *membership) identify(ctx context.Context, now time.Time) {
	suspected := m.calm.isSuspected()
	if !suspected && !m.checked.IsZero() && now.Sub(m.checked) < identityInterval {
		return
	}
	m.checked = now
	found := ""
	if m.client.Mode() != rueidis.ClientModeCluster {
		if info, err := m.client.Do(ctx, m.client.B().Info().Section("server").Build()).ToString(); err == nil {
			found = runIDOf(info)
		}
	}
	if found != m.runID || suspected && found == "" {
		m.calm.disturb()
	}
	m.runID = found
}

func runIDOf(info string) string {
	for line := range strings.Lines(info) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "run_id" {
			return value
		}
	}
	return ""
}

// leave removes this scheduler, so that the others need not wait for its timeout. Best effort.
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

// serverTime returns the latest that the server's clock can show by now unless it was stepped since the last heartbeat. The zero time:
// none was heard yet, or there are several servers, each with a clock of its own.
func (m *membership) serverTime() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.good.sent.IsZero() || m.client.Mode() == rueidis.ClientModeCluster {
		return time.Time{}
	}
	return m.good.server.Add(time.Since(m.good.sent))
}

// roundTrip returns how soon the server answers a request that costs it nothing; zero before the first heartbeat.
func (m *membership) roundTrip() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.quickest
}
