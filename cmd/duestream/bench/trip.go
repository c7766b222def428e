package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/stream"
)

// TripConfig configures Trip. Messages follows from Rates and Duration. Rounds is 1 by default. The default of
// Concurrency is the default of a worker.
type TripConfig struct {
	Config
	Rates    []int         // messages a second, each measured by itself; default 1, 10, 100, 1,000, 10,000
	Duration time.Duration // of each rate, and of the idle measurement; default 3s
}

const (
	tripDelay   = 300 * time.Millisecond // from schedule to due time
	tripCallers = 16                     // concurrent callers, more than calls in flight if the server keeps up
	tripRest    = 100 * time.Millisecond // time for the last acknowledgements
)

// Trip measures the server's work for one message from schedule to acknowledgement, when messages come at an even
// rate, one per call: CPU time, commands, and the lateness of the handler. One process has one bridge and one worker,
// as users run them. The floor is the same service by plain commands, see floorService.
//
// Each side is first measured while it is idle. The idle cost is a figure of its own. It is not part of the cost of a
// message, but part of the share of a core that the service uses at a rate.
func Trip(ctx context.Context, cfg TripConfig) (Result, error) {
	if len(cfg.Rates) == 0 {
		cfg.Rates = []int{1, 10, 100, 1000, 10_000}
	}
	cfg.Duration = cmp.Or(cfg.Duration, 3*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, stream.DefaultConcurrency)
	if err := errors.Join(Check("rates", cfg.Rates...), CheckDuration(cfg.Duration)); err != nil {
		return Result{}, err
	}
	cfg.Messages = cfg.messages(slices.Max(cfg.Rates))
	cfg.Config = cfg.Config.withDefaults(0, 1)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		cpu, commands := lower("trip_idle_server", "% of a core"), lower("trip_idle_commands", "commands/s")
		figures := []*series{cpu, commands}
		for _, rate := range cfg.Rates {
			name := fmt.Sprintf("trip_%d_per_second_", rate)
			figures = append(figures, lower(name+"server", "µs/msg"), lower(name+"share", "% of a core"),
				lower(name+"commands", "commands/msg"), lower(name+"p50", "ms"), lower(name+"p99", "ms"))
		}
		t := &trip{rig: r, cfg: cfg}
		note, err := r.timedRounds(ctx, func(ctx context.Context, c clock) error {
			t.server = c
			floor, err := t.side(ctx, "floor", t.floorService())
			if err != nil {
				return err
			}
			product, err := t.side(ctx, "product", t.service())
			for i := 0; err == nil && i < len(figures); i++ {
				if product[i] >= 0 && floor[i] >= 0 {
					figures[i].pair(product[i], floor[i])
				}
			}
			return err
		})
		return noted(result("trip", figures...), append(t.notes, note, "server and commands are above what idling costs, "+
			"share includes it; the floor asks every 10 ms what is due")...), err
	})
}

// messages returns the number of messages at a rate.
func (c TripConfig) messages(rate int) int { return max(1, int(float64(rate)*c.Duration.Seconds())) }

type trip struct {
	*rig
	cfg    TripConfig
	server clock
	notes  []string

	mu       sync.Mutex
	lateness []time.Duration // lateness of the handled messages
}

// service carries messages to a handler.
type service struct {
	start func(ctx context.Context) ([]*part, error)
	send  call // schedules one message, due after tripDelay
}

// service returns the service of duestream.
func (t *trip) service() service {
	return service{
		start: func(ctx context.Context) ([]*part, error) {
			return t.process(ctx, bridge.WorkerConfig{Group: group, Handler: func(_ context.Context, m *bridge.Message) error {
				t.handle(m.Due)
				return nil
			}})
		},
		send: func(ctx context.Context) error {
			_, err := t.client.Schedule(ctx, t.Queue, t.payload, bridge.In(tripDelay))
			return err
		},
	}
}

// handle is the handler of both services. It notes the lateness of a message.
func (t *trip) handle(due time.Time) {
	late := t.server.now().Sub(due)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lateness = append(t.lateness, late)
}

// count returns the number of handled messages since the last call of takeLateness.
func (t *trip) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lateness)
}

// takeLateness returns the lateness of the handled messages, sorted, and forgets these messages.
func (t *trip) takeLateness() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	late := t.lateness
	t.lateness = nil
	slices.Sort(late)
	return late
}

// side measures a service, idle and at all rates. It returns the values of the figures of Trip, negative if the
// server does not report them.
func (t *trip) side(ctx context.Context, name string, s service) (values []float64, err error) {
	if err := t.createGroups(ctx, group); err != nil {
		return nil, err
	}
	t.Progress(name+" idle", 0, 1)
	parts, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop(parts...), t.clear(context.WithoutCancel(ctx))) }()
	err = t.flow(ctx, name+" starts", 1, 1, s.send) // so that the server has the scripts
	if err = errors.Join(err, pause(ctx, min(time.Second, t.cfg.Duration))); err != nil {
		return nil, err
	}
	t.takeLateness()
	idle, err := t.spent(ctx, func() error { return pause(ctx, t.cfg.Duration) })
	if err != nil {
		return nil, err
	}
	const corePercent = 1e4 // µs of CPU time in a second that are one percent of a core
	idleShare, idleCommands := -1.0, -1.0
	if idle != nil {
		idleShare, idleCommands = idle.cpu/idle.took.Seconds()/corePercent, idle.commands/idle.took.Seconds()
	}
	values = append(values, idleShare, idleCommands)
	for _, rate := range t.cfg.Rates {
		n, step := t.cfg.messages(rate), fmt.Sprintf("%s, %d a second", name, rate)
		busy, err := t.spent(ctx, func() error { return t.flow(ctx, step, rate, n, s.send) })
		if err != nil {
			return nil, err
		}
		cpu, share, commands := -1.0, -1.0, -1.0
		if idle != nil && busy != nil {
			idleTimes := busy.took.Seconds() / idle.took.Seconds() // scales the idle cost to the time of this one
			cpu = max(0, busy.cpu-idleTimes*idle.cpu) / float64(n)
			commands = max(0, busy.commands-idleTimes*idle.commands) / float64(n)
			share = idleShare + cpu*float64(rate)/corePercent
		}
		late := t.takeLateness()
		values = append(values, cpu, share, commands, quantile(late, 0.5), quantile(late, 0.99))
	}
	return values, nil
}

// flow sends n messages at a rate, and waits until they are handled, and for the time in which they are acknowledged.
// It does not check the acknowledgements, because that would add to the measured cost.
func (t *trip) flow(ctx context.Context, step string, rate, n int, send call) error {
	var next atomic.Int64
	begin := time.Now()
	err := together(ctx, tripCallers, func(ctx context.Context) error {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			t.Progress(step, t.count(), n)
			err := pause(ctx, time.Until(begin.Add(time.Duration(i)*time.Second/time.Duration(rate))))
			if err = errors.Join(err, send(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
	if reached := float64(n) / time.Since(begin).Seconds(); reached < 0.9*float64(rate) && n >= rate {
		t.notes = append(t.notes, fmt.Sprintf("%s: only %.0f a second were reached", step, reached))
	}
	if err == nil {
		err = until(ctx, t.timeLimit(), notAllHandled, func() (bool, error) { return t.count() >= n, nil })
	}
	if err == nil {
		err = pause(ctx, tripRest)
	}
	return err
}
