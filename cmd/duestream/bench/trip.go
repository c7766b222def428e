package bench

import (
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

// TripConfig configures Trip. Messages follows from rates and duration. Rounds is 1 by default, Concurrency that of a
// worker.
type TripConfig struct {
	Config
	Rates    []int         // messages a second, each measured by itself; default 1, 10, 100, 1,000, 10,000
	Duration time.Duration // of each rate, and of the idle measurement; default 3s
}

const (
	tripDelay   = 300 * time.Millisecond // from schedule to due time
	tripCallers = 16                     // concurrent callers: more than calls in flight while the server keeps up
	tripRest    = 100 * time.Millisecond // for the last acknowledgements
)

// Trip measures the server's work for one message from schedule to acknowledgement, when messages come at an even
// rate, one per call: CPU time, commands, and the lateness of the handler. One process has one bridge and one worker,
// as users run them. The floor is the same service by plain commands, see floorService.
//
// Each side is first measured while it is idle. That cost is a figure of its own. It is not part of the cost of a
// message, but part of the share of a core that the service uses at a rate.
func Trip(ctx context.Context, cfg TripConfig) (Result, error) {
	if len(cfg.Rates) == 0 {
		cfg.Rates = []int{1, 10, 100, 1000, 10_000}
	}
	preset(map[*time.Duration]time.Duration{&cfg.Duration: 3 * time.Second})
	preset(map[*int]int{&cfg.Concurrency: stream.DefaultConcurrency})
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
		note, err := r.times(ctx, func(ctx context.Context, c clock) error {
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
				t.handled(m.Due)
				return nil
			}})
		},
		send: func(ctx context.Context) error {
			_, err := t.client.Schedule(ctx, t.Queue, t.payload, bridge.In(tripDelay))
			return err
		},
	}
}

// handled is the handler of both services.
func (t *trip) handled(due time.Time) {
	late := t.server.now().Sub(due)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lateness = append(t.lateness, late)
}

// count returns the number of handled messages.
func (t *trip) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lateness)
}

// taken returns the lateness of the handled messages, sorted, and resets it.
func (t *trip) taken() []time.Duration {
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
	if err := t.group(ctx, group); err != nil {
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
	t.taken()
	idle, err := t.spent(ctx, func() error { return pause(ctx, t.cfg.Duration) })
	if err != nil {
		return nil, err
	}
	idling, asking := -1.0, -1.0
	if idle != nil {
		idling, asking = idle.cpu/idle.took.Seconds()/1e4, idle.commands/idle.took.Seconds()
	}
	values = append(values, idling, asking)
	for _, rate := range t.cfg.Rates {
		n, what := t.cfg.messages(rate), fmt.Sprintf("%s, %d a second", name, rate)
		all, err := t.spent(ctx, func() error { return t.flow(ctx, what, rate, n, s.send) })
		if err != nil {
			return nil, err
		}
		cpu, share, commands := -1.0, -1.0, -1.0
		if idle != nil && all != nil {
			as := all.took.Seconds() / idle.took.Seconds()
			cpu, commands = max(0, all.cpu-as*idle.cpu)/float64(n), max(0, all.commands-as*idle.commands)/float64(n)
			share = idling + cpu*float64(rate)/1e4
		}
		late := t.taken()
		values = append(values, cpu, share, commands, quantile(late, 0.5), quantile(late, 0.99))
	}
	return values, nil
}

// flow sends n messages at a rate, and waits until they are handled and had time to be acknowledged. Checking the
// acknowledgements would add to the measured cost.
func (t *trip) flow(ctx context.Context, what string, rate, n int, send call) error {
	var next atomic.Int64
	begin := time.Now()
	err := together(ctx, tripCallers, func(ctx context.Context) error {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			t.Progress(what, t.count(), n)
			err := pause(ctx, time.Until(begin.Add(time.Duration(i)*time.Second/time.Duration(rate))))
			if err = errors.Join(err, send(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
	if reached := float64(n) / time.Since(begin).Seconds(); reached < 0.9*float64(rate) && n >= rate {
		t.notes = append(t.notes, fmt.Sprintf("%s: only %.0f a second were reached", what, reached))
	}
	if err == nil {
		err = until(ctx, t.longest(), "not all messages come through", func() (bool, error) { return t.count() >= n, nil })
	}
	if err == nil {
		err = pause(ctx, tripRest)
	}
	return err
}
