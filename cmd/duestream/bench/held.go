package bench

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
)

// HeldConfig configures Held. Messages is 1,000,000 by default, Rounds 1.
type HeldConfig struct {
	Config
	Flight int           // messages in flight; default 20,000
	Rest   time.Duration // as for Memory
}

// Held measures the memory that one held entry costs. A worker holds and extends the entry while other messages pass
// through the queue with two groups. The figures are the server's memory above that of the empty server, at its
// maximum and at the end, with and without that worker.
func Held(ctx context.Context, cfg HeldConfig) (Result, error) {
	cfg.Config = cfg.Config.withDefaults(1_000_000, 1)
	cfg.Flight, cfg.Rest = cmp.Or(cfg.Flight, 20_000), cmp.Or(cfg.Rest, DefaultRest)
	if err := Check("flight", cfg.Flight); err != nil {
		return Result{}, err
	}
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		most, final := lower("held_memory_max", "MiB"), lower("held_memory_final", "KiB")
		without, more := lower("held_memory_final_without", "KiB"), lower("held_memory_final_difference", "KiB")
		slow := r.slowLog(ctx)
		warmUp := cfg // a pass that does not count, so that scripts and buffers are allocated
		warmUp.Rest = time.Millisecond
		r.Messages = min(cfg.Messages, cfg.Flight)
		if _, _, err := r.pass(ctx, warmUp, true); err != nil {
			return Result{}, err
		}
		r.Messages = cfg.Messages
		err := r.rounds("held round", func() error {
			floorMost, floorFinal, err := r.pass(ctx, cfg, false)
			if err != nil {
				return err
			}
			heldMost, heldFinal, err := r.pass(ctx, cfg, true)
			if err != nil {
				return err
			}
			most.pair(heldMost/(1<<20), floorMost/(1<<20))
			final.add(heldFinal / (1 << 10))
			without.add(floorFinal / (1 << 10))
			more.add((heldFinal - floorFinal) / (1 << 10))
			return nil
		})
		return noted(result("held", most, final, without, more), "used_memory without mem_clients_normal, above that of the "+
			"empty server; the floor is the same without the entry that is held", slow(ctx)), err
	})
}

// pass sends the messages through, with or without a held entry. It returns the memory above that of the empty queue:
// its maximum, and its value at the end.
func (r *rig) pass(ctx context.Context, cfg HeldConfig, hold bool) (most, final float64, err error) {
	if err := r.clear(ctx); err != nil {
		return 0, 0, err
	}
	empty, err := r.rested(ctx, cfg.Rest)
	if err != nil {
		return 0, 0, err
	}
	if err := r.createGroups(ctx, twoGroups...); err != nil {
		return 0, 0, err
	}
	var parts []*part
	defer func() { err = errors.Join(err, stop(parts...), r.clear(context.WithoutCancel(ctx))) }()
	b, err := r.serve(ctx)
	if err != nil {
		return 0, 0, err
	}
	parts = append(parts, b)
	if hold {
		p, err := r.holder(ctx)
		if err != nil {
			return 0, 0, err
		}
		parts = append(parts, p)
	}
	handled := make([]atomic.Int64, len(twoGroups))
	for i, g := range twoGroups {
		w, err := r.work(ctx, bridge.WorkerConfig{Group: g, Handler: func(_ context.Context, m *bridge.Message) error {
			if string(m.Payload) != heldPayload {
				handled[i].Add(1)
			}
			return nil
		}})
		if err != nil {
			return 0, 0, err
		}
		parts = append(parts, w)
	}
	endSampling := r.sampleMemory(ctx)
	err = r.feed(ctx, cfg.Flight, handled)
	most, sampleErr := endSampling()
	if err := errors.Join(err, sampleErr); err != nil {
		return 0, 0, err
	}
	held := 0
	if hold {
		held = 1
	}
	const nodeEntries = 100 // one node of the stream may still hold acknowledged entries
	err = until(ctx, r.timeLimit(), "acknowledged entries are not freed", func() (bool, error) {
		n, err := r.number(ctx, r.c.B().Xlen().Key(r.keys.Stream).Build())
		return n <= held+nodeEntries, err
	})
	if err != nil {
		return 0, 0, err
	}
	final, err = r.rested(ctx, cfg.Rest)
	return most - empty, final - empty, err
}

const heldPayload = "held"

// holder starts a worker that takes one entry and holds it until it is stopped.
func (r *rig) holder(ctx context.Context) (*part, error) {
	holds := make(chan struct{}, 1)
	w, err := r.work(ctx, bridge.WorkerConfig{Group: group, Concurrency: 1, ShutdownTimeout: -1,
		Handler: func(ctx context.Context, _ *bridge.Message) error {
			select {
			case holds <- struct{}{}:
			default: // the entry was reclaimed and delivered again
			}
			<-ctx.Done()
			return ctx.Err()
		}})
	if err != nil {
		return nil, err
	}
	if _, err := r.client.Schedule(ctx, r.Queue, []byte(heldPayload)); err != nil {
		return nil, errors.Join(err, stop(w))
	}
	select {
	case <-holds:
		return w, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop(w))
	}
}

// feed schedules messages until all are handled. At most flight of them are in flight.
func (r *rig) feed(ctx context.Context, flight int, handled []atomic.Int64) error {
	done := func() int {
		least := handled[0].Load()
		for i := range handled {
			least = min(least, handled[i].Load())
		}
		return int(least)
	}
	for sent := 0; sent < r.Messages || done() < r.Messages; {
		r.Progress("messages", done(), r.Messages)
		room := min(r.batch(), r.Messages-sent)
		// Waits until the batch fits into flight, or all messages are handled.
		err := until(ctx, r.timeLimit(), notAllHandled, func() (bool, error) {
			return sent < r.Messages && sent+room-done() <= flight || done() >= r.Messages, nil
		})
		if err != nil {
			return err
		}
		if room == 0 {
			continue
		}
		batch := make([]bridge.NewMessage, room)
		for i := range batch {
			batch[i] = bridge.NewMessage{Payload: r.payload}
		}
		if err := r.schedule(ctx, r.client, batch); err != nil {
			return err
		}
		sent += room
	}
	return nil
}
