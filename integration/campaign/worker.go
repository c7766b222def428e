package campaign

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Errors that handlers return.
var (
	errFail = errors.New("this one fails")
	errBury = errors.New("this one is dead-lettered by its handler")
)

// work runs a Go worker in this process: two bridge.Workers, one for each queue, or one bridge.Worker that serves both.
func (p part) work(ctx context.Context, r *bridge.Redis, l *ledger, log *slog.Logger) error {
	handler := func(ctx context.Context, m *bridge.Message) error { return p.handle(ctx, l, m) }
	if queues, strict := queuesOf(p.Index); queues != nil {
		cfg := p.workerConfig("", r, l, log, handler)
		cfg.Queues, cfg.Strict = queues, strict
		w, err := bridge.NewWorker(cfg)
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, queue := range []string{queueMain, queueSide} {
		cfg := p.workerConfig(queue, r, l, log, handler)
		w, err := bridge.NewWorker(cfg)
		if err != nil {
			return err
		}
		both.Go(func() { errs[i] = w.Run(ctx) })
	}
	both.Wait()
	return errors.Join(errs...)
}

// workerConfig returns the configuration of a worker of a queue.
func (p part) workerConfig(queue string, r *bridge.Redis, l *ledger, log *slog.Logger,
	handler bridge.Handler) bridge.WorkerConfig {
	return bridge.WorkerConfig{
		Redis: r, Prefix: p.Prefix, Queue: queue, Group: p.Group, Consumer: p.Name, Concurrency: p.Concurrency,
		Handler: handler, Logger: log,
		ShutdownTimeout: shutdownTimeout, CancelGrace: cancelGrace, AbandonAfter: abandonAfter,
		Settled: func(m *bridge.Message, s bridge.Settlement) {
			if s != bridge.Skipped { // a skipped entry was never started
				l.must(line{verbSettle, bookedAs(m.ID, m.Payload), []any{m.EntryID, string(s)}})
			}
		},
	}
}

// recordStart records that a handler began.
func (p part) recordStart(l *ledger, m *bridge.Message) {
	forGroup, due := m.For, int64(0)
	if forGroup == "" {
		forGroup = "-"
	}
	if !m.Due.IsZero() {
		due = m.Due.UnixMilli()
	}
	l.must(line{verbStart, bookedAs(m.ID, m.Payload), []any{m.EntryID, m.Attempt, forGroup, due}})
}

func (p part) handle(ctx context.Context, l *ledger, m *bridge.Message) error {
	if planned, _ := planOf(m.ID); planned.kind == kindHang {
		p.recordStart(l, m)
		return p.hang(ctx, l, m)
	}
	switch p.perform(ctx, l, m, plan.featuredByGo) {
	case endSnooze:
		return bridge.Snooze(snoozeFor)
	case endFail:
		return errFail
	case endDead:
		return bridge.DeadLetter(errBury)
	case endCut:
		return context.Cause(ctx)
	}
	return nil
}

// perform does the work of a handler, and records its start and its end, which it returns. featured returns the end for
// the kinds in features.go.
func (p part) perform(ctx context.Context, l *ledger, m *bridge.Message,
	featured func(plan, *bridge.Message) string) string {
	p.recordStart(l, m)
	planned, _ := planOf(m.ID)
	takes, end, heeds := planned.handling(m.ID, m.Group, m.Attempt, p.Visibility)
	if takes > 0 {
		stop := ctx.Done()
		if !heeds {
			stop = nil
		}
		timer := time.NewTimer(takes)
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			end = endCut
		}
	}
	if isFeature(planned.kind) && end != endCut {
		end = featured(planned, m)
	}
	l.must(line{verbEnd, bookedAs(m.ID, m.Payload), []any{m.EntryID, end}})
	return end
}

// hold runs the holder: it receives the first messages of its group, up to its capacity, and holds all of them until
// SIGUSR1.
func (p part) hold(ctx context.Context, r *bridge.Redis, l *ledger, log *slog.Logger) error {
	finish, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	cfg := p.workerConfig(queueMain, r, l, log, func(_ context.Context, m *bridge.Message) error {
		p.recordStart(l, m)
		<-finish.Done() // even if its context ends
		l.must(line{verbEnd, m.ID, []any{m.EntryID, endOK}})
		return nil
	})
	w, err := bridge.NewWorker(cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// finishHolding is the signal that ends the holder's handlers.
var finishHolding os.Signal = syscall.SIGUSR1
